"""A comparison as text: a table, worst first, and the next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfguard.model.records import Word
from perfguard.model.records.comparison import Comparison, Row
from perfguard.model.units import Unit, format_change, format_percent, format_value

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 60
COLORS = {
    Word.WRONG: "red", Word.BROKEN: "red", Word.SLOWER: "red", Word.CHANGED: "red", Word.FASTER: "green",
    Word.PASS: "green", Word.UNCHANGED: "green",
}  # fmt: skip


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
    hidden = len(comparison.rows) - len(shown)
    if hidden:
        console.print(f"… and {hidden} more rows: --json FILE writes them all")
    if comparison.problem:
        console.print(f"ended early: {comparison.problem}", style="red")
    console.print(closing(comparison))


def title(comparison: Comparison) -> str:
    """One line: device, base and working tree."""
    work = f"{comparison.head_commit[:12]}{' with uncommitted changes' if comparison.uncommitted else ''}"
    return (
        f"{comparison.hardware.name or 'no device'}: merge base {comparison.base_commit[:12]} with {comparison.base} "
        f"-> working tree {work}"
    )


def cells(row: Row) -> tuple[str, ...]:
    """The row's text, column by column."""
    values = ""
    if row.before is not None and row.after is not None and not _is_long(row):
        values = f"{format_value(row.before, row.unit)} -> {format_value(row.after, row.unit)}"
    effect = "" if row.effect is None else format_change(1 + row.effect)
    interval = ""
    if row.interval is not None:
        interval = " … ".join(format_change(1 + bound) for bound in row.interval)
    reason = row.reason
    if row.word is Word.PASS and row.smallest is not None:
        reason = f"would have seen {format_percent(row.smallest)}"
    return (row.case, row.metric, values, effect, interval, str(row.pairs or ""), str(row.word), reason)


def _is_long(row: Row) -> bool:
    """Whether the values are text or lists, whose changes are in the reason."""
    return row.unit is Unit.TEXT or isinstance(row.before, list)


def closing(comparison: Comparison) -> str:
    """The number of rows with each word, and of process pairs."""
    counts = Counter(comparison.words)
    words: Sequence[str] = [f"{counts[word]} {word}" for word in Word if counts[word]]
    said = ", ".join(words) or "nothing to compare"
    cases = f"{comparison.measured} case{'s' * (comparison.measured != 1)}"
    return f"{said}; {cases} on both sides, {comparison.pairs} process pair{'s' * (comparison.pairs != 1)}"
