"""The table as people read it."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from perfguard.model.records import Hardware, Toolchain, Word
from perfguard.model.units import Unit
from perfguard.render.comparison import SCHEMA, Comparison, Row, dump_comparison, print_comparison

ROWS = [
    Row("suite", "double[bold]/forward", "device_time_us", Word.SLOWER, "because: launches 1 -> 2", 50.0,
        55.0, Unit.MICROSECONDS, 0.1, (0.095, 0.105), 3, 0.02),
    Row("suite", "double[64]/forward", "launches", Word.CHANGED, "launches 1 -> 2 (+100.0 %)", 1, 2, Unit.COUNT, 1.0),
    Row("suite", "double[64]/forward", "device_time_us", Word.PASS, "", 50.0, 50.1, Unit.MICROSECONDS, 0.002,
        (-0.005, 0.009), 2, 0.018),
]  # fmt: skip

COMPARISON = Comparison(
    schema=SCHEMA,
    base="main",
    base_commit="a" * 40,
    head_commit="b" * 40,
    uncommitted=True,
    started="2026-11-21T00:00:00+00:00",
    perfguard="0.1.0",
    hardware=Hardware("fake-gpu", "fake", "Fake GPU", "fake"),
    toolchain=Toolchain(),
    rows=ROWS,
    measured=2,
    pairs=3,
)

GOLDEN = """\
Fake GPU: merge base aaaaaaaaaaaa with main -> working tree bbbbbbbbbbbb with uncommitted changes
case                 metric         base -> now      change  95 % interval    pairs word    why
double[bold]/forward device_time_us 50 µs -> 55 µs   +10.0 % +9.5 % … +10.5 % 3     SLOWER  because: launches 1 -> 2
double[64]/forward   launches       1 -> 2           +100.0 %                       CHANGED launches 1 -> 2 (+100.0 %)
double[64]/forward   device_time_us 50 µs -> 50.1 µs +0.2 %  -0.5 % … +0.9 %  2     PASS    would have seen 1.8 %
1 SLOWER, 1 CHANGED, 1 PASS; 2 cases on both sides, 3 process pairs
"""


def printed(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=240, highlight=False, markup=False, emoji=False)
    print_comparison(comparison, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_table_worst_first() -> None:
    assert words(printed(COMPARISON)) == words(GOLDEN)


def test_what_ended_it_early_is_told_and_rows_beyond_the_most_are_counted() -> None:
    early = msgspec.structs.replace(COMPARISON, rows=ROWS * 30, problem="the working tree: pytest ended")
    text = printed(early)
    assert "… and 30 more rows: --json FILE writes them all" in text
    assert "ended early: the working tree: pytest ended" in text


def test_the_json_holds_everything() -> None:
    assert msgspec.json.decode(dump_comparison(COMPARISON), type=Comparison) == COMPARISON
