"""The record of a reading: what is stored, whether the two are comparable, what an update makes of a time.

A stored time has an anchor: the level at its first recording, or at the last one that was accepted with a reason. Slow
growth is measured from the anchor, over any number of recordings (docs/baselines.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from msgspec.structs import replace

from perfguard.judge.across_ranks import by_rank
from perfguard.judge.statistics import MEDIAN_PENALTY, UNLEARNT, Noise, history_of, least_effect, moderate
from perfguard.model.config import Category
from perfguard.model.records import (
    BY_TOOLCHAIN,
    Across,
    Baseline,
    Better,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Word,
)

#: Type of a reading -> the value that is implied if the record of an observed test lacks the reading.
NOTHING: Mapping[type, Entry] = {int: 0, list: [], dict: {}}

#: A larger change in one recording is not due to another board. Boards move single cases by a heavy-tailed amount
#: (Student's t with about 2 degrees, MAD 0.2 %): upwards by more than 3 % once in 290 recordings, and by more than this
#: once in 1,750.
OTHER_BOARD = 0.075
_CHANCE = 0.005  # The probability, in one direction, that noise alone moves a level so far.


def anchor_of(entry: TimedEntry) -> float:
    """The level from which growth is counted, µs."""
    return median(entry.sessions) if entry.anchor is None else entry.anchor


def slowdown(before: float, after: float, better: Better = Better.LOWER) -> float:
    """How much worse `after` is than `before` (both above 0), a natural logarithm."""
    change = math.log(after / before)
    return -change if better is Better.HIGHER else change


@dataclass(frozen=True)
class Growth:
    """A new level of a time, compared with its anchor.

    Attributes:
        over: the change for the worse over the anchor, a natural logarithm.
        needs_reason: whether the new level needs a reason.
        is_open: whether it exceeds the promise, but in one recording on another board only, which is no proof.
        entry: the entry to store, with its anchor.
    """

    over: float
    needs_reason: bool
    is_open: bool
    entry: TimedEntry


def grow(before: TimedEntry, after: TimedEntry, reading: Reading, *, one_board: bool) -> Growth:
    """The new anchor if `after` replaces `before`, and whether that needs a reason.

    A level that exceeds the anchor by more than the promise needs a reason, and then becomes the anchor. A level as far
    below the anchor lowers it. Any other level leaves the anchor unchanged. On another board, one recording proves
    neither: either the replaced level has to exceed the promise as well, or the new one has to exceed `OTHER_BOARD`.
    One recording never lowers the anchor there: if noise lowered it, all later levels would need a reason.

    Args:
        before, after: entries that were read with the same timer from the same kind of inputs.
        reading: the source of promise, floor and direction.
        one_board: whether both are known to be recorded on the same board.
    """
    anchor, better = anchor_of(before), reading.better
    over = slowdown(anchor, median(after.sessions), better)
    before_over = slowdown(anchor, median(before.sessions), better)
    proves = one_board or reading.promise >= OTHER_BOARD

    def beyond(effect: float) -> bool:
        return effect > math.log1p(reading.promise) and anchor * math.expm1(effect) > reading.floor

    grew = beyond(over)
    asks = grew and (proves or beyond(before_over) or over > math.log1p(OTHER_BOARD))
    fell = beyond(-over) and (proves or beyond(-before_over))
    return Growth(over, asks, grew and not asks, replace(after, anchor=None if asks or fell else anchor))


@dataclass(frozen=True)
class Record:
    """The stored counterpart of one reading of a case. Create it with `Lane.record`.

    Attributes:
        hardware, toolchain: those of the reading.
        baseline: the file that holds the reading; None if there is none.
        key: the key of the case in that file.
        covering: of a time, the records of the exact readings that cover it.
        same_tree: whether the working tree is known to be that of the record, but for files that the run does not use.
    """

    hardware: Hardware
    toolchain: Toolchain
    result: CaseResult
    reading: Reading
    baseline: Baseline | None
    key: str
    covering: Sequence[Record] = ()
    same_tree: bool = False

    @property
    def case(self) -> CaseBaseline | None:
        """The case in that file."""
        return None if self.baseline is None else self.baseline.cases.get(self.key)

    @property
    def entry(self) -> Entry | None:
        """The stored value, or sessions."""
        return None if self.case is None else self.case.entries.get(self.reading.metric)

    @property
    def implied(self) -> Entry | None:
        """The stored value, or the one that a record without the metric implies. Empty readings of observed tests are
        not stored."""
        if not self.reading.is_recorded:
            return None
        value, implied = self.reading.value, self.reading.unrecorded
        if self.case is not None and self.entry is None and self.result.case.direction == "test":
            return NOTHING.get(type(value))
        if self.case is None or self.entry is not None or implied is None:
            return self.entry
        return dict.fromkeys(value, implied) if isinstance(value, dict) else implied

    @property
    def provenance(self) -> Provenance:
        """The provenance of the stored case."""
        assert self.baseline is not None
        return self.baseline.provenance_of(self.key)

    # -- whether the reading is compared with it -----------------------------------------------------------------------

    @property
    def drift(self) -> list[str]:
        """The recorded versions that differ now."""
        portable = self.reading.portable and self.hardware.target is not None
        return differing_versions(self.provenance, self.toolchain, portable=portable)

    def other_method(self, entry: Entry) -> str:
        """Why a stored `entry` was read otherwise, or from other inputs; empty if it was not."""
        stored, inputs = self.case, self.result.inputs
        if stored is not None and stored.inputs and stored.inputs != inputs:
            if self.result.case.direction == "test":
                return "the test was edited since it was recorded"
            return f"other inputs: {stored.inputs} -> {inputs or 'unknown'}"
        before, now = _method(entry), _method(self.reading)
        if self.reading.across is Across.EACH and not self.reading.timed and not isinstance(entry, TimedEntry):
            before, now = map(_method, by_rank(entry, self.reading.value))
        return f"read otherwise: {before} -> {now}" if before != now else ""

    @cached_property
    def why_time_differs(self) -> tuple[Word, str] | None:
        """Why the stored time is not compared with the reading, as a verdict's word and reason; None if it is."""
        entry = self.entry
        assert entry is not None
        if changed := other_power(self.provenance, self.hardware):
            return Word.OTHER_HARDWARE, changed
        if (changed := self.other_method(entry)) or not isinstance(entry, TimedEntry):
            return Word.METHOD_CHANGED, changed
        return (Word.DRIFT, f"{BY_TOOLCHAIN}{', '.join(self.drift)}") if self.drift else None

    @property
    def under_other_conditions(self) -> bool:
        """Whether there is a stored time that is not compared."""
        return self.entry is not None and self.why_time_differs is not None

    @property
    def comparable(self) -> TimedEntry | None:
        """The stored time if it was read with the reading's timer from the same kind of inputs; otherwise None."""
        entry = self.entry
        return entry if isinstance(entry, TimedEntry) and not self.other_method(entry) else None

    # -- what an update makes of a time --------------------------------------------------------------------------------

    @property
    def is_outdated(self) -> bool:
        """Whether no stored time is valid for the reading: there is none, or it has other conditions or code."""
        return self.entry is None or self.under_other_conditions or self.same_code is False

    @cached_property
    def same_code(self) -> bool | None:
        """Whether the exact readings that cover the time are as stored; None if that is unknown."""
        known = [record.reading.value == record.entry for record in self.covering if record.case is not None]
        return all(known) if known else self.same_tree or None

    def takes(self, value: float) -> bool:
        """Whether a reading in µs (above 0) joins the stored sessions: it has their code or, if that is unknown, is off
        their level by no more than the promise or their noise."""
        if self.is_outdated:
            return False
        effect, _ = self._change(value)
        return bool(self.same_code) or abs(effect) <= max(
            math.log1p(self.reading.promise), _noise(self._sessions, (value,))
        )

    def category(self, values: Sequence[float], *, paired: bool = False) -> Category | None:
        """The category of the change if an update replaces the stored time by `values` (µs, at least one); None if the
        stored time stays.

        Unchanged code keeps its time. Other code gets a new one, whether the time moved or not.

        Args:
            paired: whether the values are the stored ones, multiplied by the ratio of process pairs, so that their
                noise does not count.
        """
        if self.entry is None:
            return "new"
        if self.under_other_conditions:
            return "changed"
        if self.same_code:
            return None
        effect, theta = self._change(median(values))
        if abs(effect) > max(theta, 0.0 if paired else _noise(self._sessions, values)):
            return "slower" if effect > 0 else "faster"
        return None if self.same_code is None else "changed"

    @property
    def _sessions(self) -> Sequence[float]:
        """The stored sessions of a comparable time, µs."""
        assert self.comparable is not None
        return self.comparable.sessions

    def _change(self, value: float) -> tuple[float, float]:
        """How much slower `value` is than the stored sessions, and θ, both logarithms."""
        centre = median(self._sessions)
        theta = least_effect(self.reading.promise, self.reading.floor, centre)
        return slowdown(centre, value, self.reading.better), theta


def _noise(before: Sequence[float], after: Sequence[float]) -> float:
    """The distance by which noise alone separates two medians, a logarithm; sigma is pooled from both."""
    old, new = (moderate(history_of(values), UNLEARNT) for values in (before, after))
    degrees = old.degrees + new.degrees
    sigma = math.sqrt((old.degrees * old.sigma**2 + new.degrees * new.sigma**2) / degrees)
    error = sigma * math.sqrt(MEDIAN_PENALTY * (1 / old.sessions + 1 / new.sessions))
    return Noise(sigma, degrees, old.sessions + new.sessions).quantile(_CHANCE) * error


def _method(read: object) -> str:
    if isinstance(read, Reading | TimedEntry) and read.timer is not None:
        return f"timer {read.timer}"
    value = read.value if isinstance(read, Reading) else read
    if isinstance(value, dict):
        return "parts"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "a number"


def other_power(stored: Provenance, now: Hardware) -> str:
    """The difference of the power limit from the record's; empty if equal. The partition is part of the slug."""
    before, after = stored.power_limit_watts, now.power_limit_watts
    if before is None or after is None or abs(after - before) < 1:
        return ""
    return f"recorded under a power limit of {before:g} W, now {after:g} W"


def same_board(stored: Provenance, result: CaseResult) -> bool:
    """Whether the case is known to be timed on the same board as its record."""
    now = result.conditions.board if result.conditions is not None else None
    return now is not None and stored.board == now


def differing_versions(stored: Provenance, now: Toolchain, *, portable: bool = False) -> list[str]:
    """`triton 3.6.0 -> 3.7.0` for every recorded version that differs now.

    Python counts by its minor version. Portable metrics do not depend on the machine's driver and toolkit.
    """
    changes = []
    for name in ("torch", "triton", "python") if portable else Toolchain.__struct_fields__:
        before, after = getattr(stored, name), getattr(now, name)
        if name == "python":
            before, after = _minor(before), _minor(after)
        if before is not None and before != after:
            changes.append(f"{name} {before} -> {after or 'unknown'}")
    return changes


def _minor(version: str | None) -> str | None:
    return None if version is None else ".".join(version.split(".")[:2])
