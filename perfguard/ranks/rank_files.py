"""The files in which the ranks of a launch report to the process that started it.

`rank-0.jsonl` has two lines per test: its start and its outcome. A rank that ends itself in the middle of a test adds a
line with its position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct

from perfguard.model.records import CaseResult


class Collective(Struct, frozen=True, omit_defaults=True):
    """A collective that a rank has issued: its number within the process group, the shapes that it moves, the group's
    name, and whether it still waits."""

    number: int
    name: str
    sizes: str = ""
    group: str = ""
    pending: bool = False

    @property
    def text(self) -> str:
        """`#3 all_reduce of [[4]]`."""
        return f"#{self.number} {self.name}{f' of {self.sizes}' if self.sizes else ''}"


class RankExit(Struct, frozen=True, omit_defaults=True):
    """The position of a rank that ended itself in the middle of a test.

    Attributes:
        cause: the reason why it ended.
        step: the step of perfguard and the user's line (`describe_step`).
        stack: the calls of its main thread, without those of pytest.
        collective: the last one that it issued; None if it issued none.
    """

    cause: str
    step: str
    stack: str = ""
    collective: Collective | None = None


class RankOutcome(Struct, omit_defaults=True):
    """One test on one rank.

    Attributes:
        nodeid: the test.
        ended: False in the line that is written at its start.
        reports: pytest's reports of its phases, serialised by pytest.
        results: results of its guarded calls, without verdicts.
        broken: the reason why it raised, other than a verdict; otherwise empty.
        unsupported: the reason why this hardware cannot run it, as the test declares; otherwise empty.
        exit: the position of a rank that ended itself.
    """

    nodeid: str
    ended: bool = False
    reports: list[dict[str, Any]] = []
    results: list[CaseResult] = []
    broken: str = ""
    unsupported: str = ""
    exit: RankExit | None = None

    @property
    def phase_outcomes(self) -> list[str]:
        """The outcomes of its phases: passed, failed, skipped."""
        return [str(report["outcome"]) for report in self.reports]


def append(folder: Path, rank: int, outcome: RankOutcome) -> None:
    """Add a line to the file of a rank."""
    with (folder / f"rank-{rank}.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(outcome) + b"\n")


@dataclass
class RankFile:
    """Reads a rank's file while it grows.

    Attributes:
        begun: the tests that the rank has begun.
        ended: the outcomes of the tests that it has ended.
        exit: its position if it ended itself.
    """

    folder: Path
    rank: int
    begun: set[str] = field(default_factory=set)
    ended: dict[str, RankOutcome] = field(default_factory=dict)
    exit: RankExit | None = None
    _position: int = 0

    def read(self) -> Self:
        """Read the lines that are new."""
        try:
            with (self.folder / f"rank-{self.rank}.jsonl").open("rb") as file:
                file.seek(self._position)
                lines = file.read().split(b"\n")[:-1]  # The last line may still grow.
        except FileNotFoundError:
            return self
        self._position += sum(len(line) + 1 for line in lines)
        for line in lines:
            outcome = msgspec.json.decode(line, type=RankOutcome)
            self.begun.add(outcome.nodeid)
            self.exit = outcome.exit
            if outcome.ended:
                self.ended[outcome.nodeid] = outcome
        return self
