"""What runs of the corpus said, as files: parts come from other machines and other hours, one page is made of all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.planting import Grade, Mutant, Place, Weighed
from tests.corpus.rivals import Seen


class Judged(Struct, frozen=True):
    """What perfguard said of a mutant in one place; as in `Weighed`, less what only a failing test shows."""

    grade: Grade
    problems: list[str]
    tests: list[str]
    figure: str
    seconds: float

    @classmethod
    def of(cls, weighed: Weighed, seconds: float) -> Judged:
        return cls(weighed.grade, weighed.problems, sorted(weighed.tests), weighed.figure, round(seconds, 1))


class CleanRuns(Struct, frozen=True):
    """Runs of one clean suite against its own baselines.

    Attributes:
        verdicts: in all, of every case in every run, metric by metric.
        alarms: those that fail a test, a line each.
        unresolved: those that could not tell.
    """

    runs: int
    verdicts: int
    alarms: list[str]
    unresolved: int
    seconds: float


class Part(Struct):
    """What one command judged on one machine. Mutants by name and place, "few rows [G]"; suites by name.

    Attributes:
        machine: kind of processor or GPU, versions, load.
        note: what whoever reads of these runs has to know besides.
    """

    machine: str
    note: str = ""
    judged: dict[str, Judged] = {}
    rivals: dict[str, Seen] = {}
    clean: dict[str, CleanRuns] = {}

    @property
    def minutes(self) -> float:
        """That perfguard's side took."""
        return sum(each.seconds for each in [*self.judged.values(), *self.clean.values()]) / 60


def key(mutant: Mutant, place: Place) -> str:
    return f"{mutant.name} [{place}]"


class Saving:
    """Writes a part after each thing that was judged, so that whatever ends a run leaves what it knew."""

    def __init__(self, path: Path | None, machine: str, note: str = "") -> None:
        self._path = path
        self.part = Part(machine, note)
        self._started = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last call."""
        now = time.monotonic()
        seconds, self._started = now - self._started, now
        return seconds

    def save(self) -> None:
        if self._path is not None:
            text = msgspec.json.format(msgspec.json.encode(self.part, order="deterministic"), indent=1)
            self._path.write_bytes(text + b"\n")


def read_parts(paths: Sequence[Path]) -> list[Part]:
    return [msgspec.json.decode(path.read_bytes(), type=Part) for path in paths]
