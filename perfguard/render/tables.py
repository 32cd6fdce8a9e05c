"""Tables of the terminal: measured cases, and kernels that are compiled otherwise on two sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfguard.model.records import CaseResult, Reading, Report, Word
from perfguard.model.units import format_move, format_percent, format_value
from perfguard.render.words import in_columns, rates

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


def first_time(result: CaseResult) -> Reading | None:
    return next((reading for reading in result.readings if reading.timed), None)


def is_unread_time(result: CaseResult) -> bool:
    """Whether a time was not read because the device runs the same code."""
    return any(verdict.word is Word.UNCHANGED and result.reading(verdict.metric) is None for verdict in result.verdicts)


def case_table(report: Report, every: bool) -> list[str]:
    """The lines of a table of case, time, throughput, share of a rival's time and verdict.

    Args:
        every: whether it includes cases whose time was not read.
    """
    rows = [("case", "time", "throughput", "% of copy", "of rival", "verdict")]
    for result in report.results:
        primary = first_time(result)
        if primary is None or is_unread_time(result):
            if every:
                rows.append((result.case.key, "", "", "", "", str(result.word)))
            continue
        through = result.throughput
        share = format_percent(through.copy_fraction, 0) if through and through.copy_fraction else ""
        time = format_value(primary.value, primary.unit)
        rows.append((result.case.key, time, ", ".join(rates(result)), share, beside_rival(result), str(result.word)))
    if len(rows) == 1:
        return []
    timed = any(row[1] for row in rows[1:])
    always = ("case", "verdict", *(("time", "throughput", "% of copy") if timed else ()))
    columns = [column for column in zip(*rows, strict=True) if column[0] in always or any(column[1:])]
    return in_columns([*zip(*columns, strict=True)])


def beside_rival(result: CaseResult) -> str:
    """`0.58x`, the case's time as a share of its rival's; empty without a rival."""
    shares = [r.value / r.rival for r in result.readings if r.rival and isinstance(r.value, int | float)]
    return f"{shares[0]:.2f}x" if shares else ""
