"""A table of the differences between the same kernels as compiled on two sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfguard.model.records import Reading
from perfguard.model.units import format_move
from perfguard.render.words import in_columns

_COLUMNS = ("spills", "registers", "instructions", "shared_bytes", "unfit")
_MOST_ROWS = 60

KernelRow = tuple[str, ...]  # Kernel, target, and a text such as `0 -> 12` per column, empty if the sides are alike.


def kernel_rows(base: Sequence[Reading], work: Sequence[Reading]) -> list[KernelRow]:
    """A row for each kernel and target that differs, from the readings of both sides
    (`perfguard.measure.binaries.comparison`)."""
    before = {reading.metric: reading.value for reading in base}
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for reading in work:
        column, old = reading.metric.removeprefix(f"{reading.target}."), before.get(reading.metric)
        if column not in _COLUMNS or not isinstance(reading.value, dict) or not isinstance(old, dict):
            continue
        for kernel in dict.fromkeys((*old, *reading.value)):
            then, now = old.get(kernel, ""), reading.value.get(kernel, "")
            texts = cells.setdefault((kernel, reading.target), {})
            texts[column] = "" if then == now else format_move(then or "fits", now or "fits", reading.unit)
            if column != "unfit" and then == 0 and now != 0:
                texts[column] = format_move(then, now, reading.unit)
    rows = [(*key, *(texts.get(column, "") for column in _COLUMNS)) for key, texts in cells.items()]
    return [row for row in rows if any(row[2:])]


def kernel_table(rows: Iterable[KernelRow]) -> list[str]:
    """The lines of the table; none without rows. A row that several cases have is shown once."""
    shown = [*dict.fromkeys(rows)]
    if not shown:
        return []
    head = ("kernel", "target", *(column.removesuffix("_bytes") for column in _COLUMNS[:-1]), "")
    hidden = [f"… and {len(shown) - _MOST_ROWS} more"] if len(shown) > _MOST_ROWS else []
    return [f"kernels with other binaries: {len(shown)}", *in_columns([head, *shown[:_MOST_ROWS]]), *hidden]
