"""Compares a time with its record: the category of the change in an update, and whether it needs a reason.

A record has an anchor: the level at its first recording, or at the last one that was accepted with a reason. Slow
growth is measured from the anchor, over any number of recordings (docs/baselines.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from msgspec.structs import replace

from perfguard.judge.lane import Lane, Record, differing_versions, other_power
from perfguard.judge.statistics import MEDIAN_PENALTY, UNLEARNT, Noise, history_of, least_effect, moderate
from perfguard.model.config import Category
from perfguard.model.records import (
    Better,
    CaseResult,
    Entry,
    Provenance,
    Reading,
    TimedEntry,
)

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
class TimeRecord:
    """One stored time of a case and the reading that may take its place.

    Attributes:
        lane: the records; its hardware and toolchain are those of the reading.
        same_tree: whether the working tree is known to be that of the record, but for documents.
    """

    result: CaseResult
    reading: Reading
    lane: Lane
    same_tree: bool = False

    @cached_property
    def _record(self) -> Record:
        return self.lane.record(self.result, self.reading)

    @property
    def entry(self) -> Entry | None:
        """The stored time, or another entry if the metric was once no time."""
        return self._record.entry

    @property
    def provenance(self) -> Provenance:
        """The provenance of the stored time."""
        return self._record.provenance

    @cached_property
    def comparable(self) -> TimedEntry | None:
        """The stored time if it was read with the reading's timer from the same kind of inputs; otherwise None."""
        entry, case = self.entry, self._record.case
        if not isinstance(entry, TimedEntry) or case is None or entry.timer != self.reading.timer:
            return None
        return entry if case.inputs in ("", self.result.inputs) else None

    @cached_property
    def under_other_conditions(self) -> bool:
        """Whether a stored time was read under other conditions, so that it is not compared."""
        if self.entry is None:
            return False
        if self.comparable is None or other_power(self.provenance, self.lane.hardware):
            return True
        return bool(differing_versions(self.provenance, self.lane.toolchain))

    @property
    def is_outdated(self) -> bool:
        """Whether no stored time is valid for the reading: there is none, or it has other conditions or code."""
        return self.entry is None or self.under_other_conditions or self.same_code is False

    @cached_property
    def same_code(self) -> bool | None:
        """Whether the exact readings that cover the time are as stored; None if that is unknown."""
        covers = [each for each in self.result.readings if self.reading.metric in each.covers]
        covering = [self.lane.record(self.result, each) for each in covers]
        known = [record.reading.value == record.entry for record in covering if record.case is not None]
        return all(known) if known else self.same_tree or None

    def takes(self, value: float) -> bool:
        """Whether a reading in µs (above 0) joins the stored sessions: it has their code or, if that is unknown, is off
        their level by no more than the promise or their noise."""
        if self.is_outdated:
            return False
        effect, _ = self._change(value)
        return bool(self.same_code) or abs(effect) <= max(
            math.log1p(self.reading.promise), _noise(self._stored, (value,))
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
        if abs(effect) > max(theta, 0.0 if paired else _noise(self._stored, values)):
            return "slower" if effect > 0 else "faster"
        return None if self.same_code is None else "changed"

    @property
    def _stored(self) -> Sequence[float]:
        """The stored sessions of a comparable time, µs."""
        assert self.comparable is not None
        return self.comparable.sessions

    def _change(self, value: float) -> tuple[float, float]:
        """How much slower `value` is than the stored sessions, and θ, both logarithms."""
        centre = median(self._stored)
        theta = least_effect(self.reading.promise, self.reading.floor, centre)
        return slowdown(centre, value, self.reading.better), theta


def _noise(before: Sequence[float], after: Sequence[float]) -> float:
    """The distance by which noise alone separates two medians, a logarithm; sigma is pooled from both."""
    old, new = (moderate(history_of(values), UNLEARNT) for values in (before, after))
    degrees = old.degrees + new.degrees
    sigma = math.sqrt((old.degrees * old.sigma**2 + new.degrees * new.sigma**2) / degrees)
    error = sigma * math.sqrt(MEDIAN_PENALTY * (1 / old.sessions + 1 / new.sessions))
    return Noise(sigma, degrees, old.sessions + new.sessions).quantile(_CHANCE) * error
