"""The result of `perfguard compare`: one row for each case and metric, as JSON and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from perfguard.model.records import Hardware, Reading, Toolchain, Value, Word
from perfguard.model.units import Unit, counted, format_change, format_move, format_percent
from perfguard.render.words import change_text, tally

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1
MOST_ROWS = 60
COLORS = {
    Word.WRONG: "red", Word.BROKEN: "red", Word.SLOWER: "red", Word.CHANGED: "red", Word.FASTER: "green",
    Word.PASS: "green", Word.UNCHANGED: "green",
}  # fmt: skip


class Row(Struct, frozen=True, omit_defaults=True):
    """One metric of one case, the merge base against the working tree; or the whole case if `metric` is empty.

    `effect`, `interval` and `smallest` are relative changes (0.02: 2 % slower), `pairs` the process pairs that
    they rest on. `before` and `after` are in `unit`.
    """

    suite: str
    case: str
    metric: str
    word: Word
    reason: str = ""
    before: Value | None = None
    after: Value | None = None
    unit: Unit = Unit.TEXT
    effect: float | None = None
    interval: tuple[float, float] | None = None
    pairs: int = 0
    smallest: float | None = None
    timer: str = ""
    nodeid: str = ""


class KernelRow(Struct, frozen=True):
    """What the compilers make of one kernel on one target, at the base and now: texts such as `0 -> 12`, empty where
    both are alike."""

    kernel: str
    target: str
    spills: str = ""
    registers: str = ""
    instructions: str = ""
    shared_bytes: str = ""
    unfit: str = ""


class Comparison(Struct, frozen=True):
    """All rows, worst first, and the two sides. `kernels`: those with other binaries; `base_toolchain`: the base's, if
    it ran. `problem` is the reason for an early end, otherwise empty."""

    schema: int
    base: str
    base_commit: str
    head_commit: str
    uncommitted: bool
    started: str  # ISO date and time, UTC
    perfguard: str
    hardware: Hardware
    toolchain: Toolchain
    rows: list[Row] = []
    kernels: list[KernelRow] = []
    base_toolchain: Toolchain | None = None
    measured: int = 0  # cases that both sides measured
    pairs: int = 0
    problem: str = ""

    @property
    def words(self) -> list[Word]:
        return [row.word for row in self.rows]


def dump_comparison(comparison: Comparison) -> bytes:
    """Readable JSON."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print all of it. The console must not read markup: names of cases hold brackets."""
    from rich.table import Table

    console.print(title(comparison))
    shown = comparison.rows[:MOST_ROWS]
    if shown:
        table = Table("case", "metric", "base -> now", "change", "95 % interval", "pairs", "word", "why", box=None,
                      pad_edge=False)  # fmt: skip
        for row in shown:
            table.add_row(*cells(row), style=COLORS.get(row.word, "yellow"))
        console.print(table)
    if comparison.kernels:
        _print_kernels(comparison, console)
    hidden = len(comparison.rows) - len(shown)
    if hidden:
        console.print(f"… and {hidden} more rows: --json FILE writes them all")
    if comparison.problem:
        console.print(f"ended early: {comparison.problem}", style="red")
    console.print(closing(comparison))


_COLUMNS = ("spills", "registers", "instructions", "shared_bytes", "unfit")


def kernel_rows(base: Sequence[Reading], work: Sequence[Reading]) -> list[KernelRow]:
    """A row for each kernel and target, from the readings of both sides (`perfguard.measure.binaries.comparison`)."""
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
    return [KernelRow(*key, **texts) for key, texts in cells.items() if any(texts.values())]


def _print_kernels(comparison: Comparison, console: Console) -> None:
    from rich.table import Table

    console.print(f"kernels with other binaries: {len(comparison.kernels)}")
    table = Table("kernel", "target", "spills", "registers", "instructions", "shared", "", box=None, pad_edge=False)
    for row in comparison.kernels[:MOST_ROWS]:
        table.add_row(row.kernel, row.target, row.spills, row.registers, row.instructions, row.shared_bytes, row.unfit)
    console.print(table)


def title(comparison: Comparison) -> str:
    """One line: device, base and working tree."""
    work = f"{comparison.head_commit[:12]}{' with uncommitted changes' if comparison.uncommitted else ''}"
    before, now = comparison.base_toolchain, comparison.toolchain
    names = [name for name in Toolchain.__struct_fields__ if before is not None]
    changed = [f"{name} {getattr(before, name)} -> {getattr(now, name)}" for name in names
               if getattr(before, name) != getattr(now, name)]  # fmt: skip
    return (
        f"{comparison.hardware.name or 'no device'}: merge base {comparison.base_commit[:12]} with {comparison.base} "
        f"-> working tree {work}{''.join(f', {each}' for each in changed)}"
    )


def cells(row: Row) -> tuple[str, ...]:
    """The row's text, column by column."""
    values = ""
    if row.before is not None and row.after is not None and not _is_long(row):
        values = change_text(row.before, row.after, row.unit)
    effect = "" if row.effect is None else format_change(1 + row.effect)
    interval = ""
    if row.interval is not None:
        interval = " … ".join(format_change(1 + bound) for bound in row.interval)
    told = row.word in (Word.PASS, Word.UNRESOLVED) and row.smallest is not None
    seen = f"would have seen {format_percent(row.smallest or 0.0)}" if told else ""
    reason = "; ".join(filter(None, (row.reason, seen)))
    return (row.case, row.metric, values, effect, interval, str(row.pairs or ""), str(row.word), reason)


def _is_long(row: Row) -> bool:
    """Whether the values are text or lists, whose changes are in the reason."""
    return row.unit is Unit.TEXT or isinstance(row.before, list)


def closing(comparison: Comparison) -> str:
    """The number of rows with each word, and of process pairs."""
    said = tally(Counter(comparison.words)) or ("nothing moved" if comparison.measured else "nothing to compare")
    pairs = counted(comparison.pairs, "process pair")
    return f"{said}; {counted(comparison.measured, 'case')} on both sides, {pairs}"
