"""Timed metrics: slower or faster, the same, or cannot tell (docs/judging.md).

One session screens; fresh processes accuse. What cannot be told is UNRESOLVED with the reason and a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from perfguard.judge.statistics import (
    MIN_SESSIONS,
    MISS_ERROR,
    SCREEN_ERROR,
    UNLEARNT,
    History,
    Noise,
    Prior,
    holm_threshold,
    least_effect,
    minimum_detectable,
    moderate,
    remember,
)
from perfguard.records import Better, Reading, TimedEntry, Verdict, Word
from perfguard.units import format_change, format_percent


@dataclass(frozen=True)
class Family:
    """What a timed reading shares with the others of its lane and class.

    Attributes:
        size: timed readings of the lane, over which false accusations are counted.
        prior: noise of the reading's timer class.
        confirmations: fresh processes that must agree before anything is SLOWER or FASTER.
    """

    size: int
    prior: Prior = UNLEARNT
    confirmations: int = 3


def judge_timed(
    reading: Reading,
    entry: TimedEntry,
    family: Family,
    fresh: Sequence[float] = (),
    *,
    drift: Sequence[str] = (),
    fresh_problem: str = "",
) -> Verdict:
    """A timed reading against the stored sessions of its case.

    Args:
        fresh: values of the same reading in fresh processes, µs. None of them, without a problem: a
            suspicious reading is SUSPECT. Fewer than `family.confirmations`: it is UNRESOLVED.
        drift: the versions that differ from the baseline's, as text; empty under the same toolchain.
        fresh_problem: why fresh processes could not be run.
    """
    value = reading.value
    if isinstance(value, str | list) or not 0 < value < math.inf:
        reason = f"NOISY: read {value}, which is no time"
        return Verdict(Word.UNRESOLVED, reading.metric, reason, unit=reading.unit)
    history = remember(entry.sessions)
    judgement = _Judgement(reading, history, family, moderate(history, family.prior))
    shift = judgement.slowdown(value)
    if not reading.gated:
        return judgement.shown(Word.PASS, f"not gated: {_change(shift)}", shift)
    if drift:
        reason = f"{_change(shift)}; another toolchain: {', '.join(drift)}"
        return judgement.shown(Word.DRIFT, reason, shift)
    if len(entry.sessions) < MIN_SESSIONS:
        reason = (
            f"FEW: {len(entry.sessions)} sessions stored, {MIN_SESSIONS} are needed to judge a time "
            f"({_change(shift)} in this one); add them: pytest --perfguard --perfguard-update=new"
        )
        return judgement.shown(Word.UNRESOLVED, reason, shift)
    if not judgement.suspects(shift):
        return judgement.pass_or_noisy(shift)
    if len(fresh) >= family.confirmations:
        return judgement.confirm(shift, fresh)
    if not fresh and not fresh_problem:
        return judgement.verdict(Word.SUSPECT, f"{_change(shift)} in one session", shift)
    problem = fresh_problem or f"{len(fresh)} of {family.confirmations} fresh processes read it"
    reason = f"UNCONFIRMED: {_change(shift)} in one session; {problem}"
    return judgement.verdict(Word.UNRESOLVED, reason, shift)


@dataclass(frozen=True)
class _Judgement:
    """One reading beside its history. Effects are slowdowns: differences of logarithms, positive is worse."""

    reading: Reading
    history: History
    family: Family
    noise: Noise

    @property
    def theta(self) -> float:
        """The smallest effect that may fail."""
        return least_effect(self.reading.promise, self.reading.floor, math.exp(self.history.centre))

    @property
    def smallest(self) -> float:
        """The minimum detectable effect."""
        return minimum_detectable(self.noise, self.theta, self.family.size, self.family.confirmations)

    def slowdown(self, value: float) -> float:
        effect = math.log(value) - self.history.centre
        return -effect if self.reading.better is Better.HIGHER else effect

    def suspects(self, shift: float) -> bool:
        return abs(shift) > self.theta and self.noise.p_value(abs(shift), 1) < SCREEN_ERROR

    def pass_or_noisy(self, shift: float) -> Verdict:
        if self.smallest <= self.reading.promise:
            return self.verdict(Word.PASS, "", shift)
        reason = (
            f"NOISY: could have seen a change of {format_percent(self.smallest)} at the smallest, "
            f"{format_percent(self.reading.promise)} is promised ({_change(shift)} in this session)"
        )
        return self.verdict(Word.UNRESOLVED, reason, shift)

    def confirm(self, screened: float, fresh: Sequence[float]) -> Verdict:
        """The effect comes from the fresh sessions alone: the screen's value is inflated by selection."""
        slowdowns = [self.slowdown(value) for value in fresh]
        mean, count = fmean(slowdowns), len(fresh)
        sign = 1.0 if screened > 0 else -1.0
        error = self.noise.standard_error(count)
        margin = self.noise.quantile(MISS_ERROR / 2) * error
        interval = f"95 % interval {_change(mean - margin)} to {_change(mean + margin)}"
        confirmed = (
            min(sign * slowdown for slowdown in slowdowns) > self.theta / 2
            and sign * mean > self.theta
            and self.noise.p_value(sign * mean, count) < holm_threshold(self.family.size)
        )
        if confirmed:
            word = Word.SLOWER if sign > 0 else Word.FASTER
            return self.verdict(word, f"{_change(mean)} in {count} fresh processes ({interval})", mean, fresh)
        each = ", ".join(_change(slowdown) for slowdown in slowdowns)
        seen = f"{_change(screened)} in one session, {each} in fresh processes"
        if mean + self.noise.quantile(MISS_ERROR) * error < self.reading.promise:
            return self.verdict(Word.PASS, f"not confirmed: {seen}", mean, fresh)
        reason = f"CONFLICT: {seen}: neither confirmed nor excluded ({interval})"
        return self.verdict(Word.UNRESOLVED, reason, mean, fresh)

    def verdict(self, word: Word, reason: str, slowdown: float, fresh: Sequence[float] = ()) -> Verdict:
        """A judgement, with the smallest change it could have seen."""
        after = math.exp(fmean(math.log(value) for value in fresh)) if fresh else self.reading.value
        shown = self.shown(word, reason, slowdown)
        return msgspec.structs.replace(shown, after=after, smallest=self.smallest)

    def shown(self, word: Word, reason: str, slowdown: float) -> Verdict:
        """What was seen, without a judgement."""
        return Verdict(
            word=word,
            metric=self.reading.metric,
            reason=reason,
            before=math.exp(self.history.centre),
            after=self.reading.value,
            unit=self.reading.unit,
            ratio=math.exp(slowdown),
        )


def _change(slowdown: float) -> str:
    return format_change(math.exp(slowdown))
