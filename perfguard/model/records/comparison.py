"""The result of a comparison: one row for each case and metric. JSON follows from the types."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perfguard.model.records import Hardware, Toolchain, Value, Word
from perfguard.model.units import Unit

SCHEMA = 1


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


class Comparison(Struct, frozen=True):
    """All rows, worst first, and the two sides. `problem` is the reason for an early end, otherwise empty."""

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
    measured: int = 0  # cases that both sides measured
    pairs: int = 0
    problem: str = ""

    @property
    def words(self) -> list[Word]:
        return [row.word for row in self.rows]


def dump_comparison(comparison: Comparison) -> bytes:
    """Readable JSON."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1)
