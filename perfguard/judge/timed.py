"""Timed metrics: slower or faster, the same, or cannot tell (docs/judging.md).

One session screens; fresh processes accuse. What cannot be told is UNRESOLVED with the reason and a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import msgspec

from perfguard.judge.common import Common
from perfguard.judge.place import Place, place_of
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

MOST_REJECTED = 3  # rejected blocks from which a session says nothing about its case
SHOWN_SHIFT = 0.0005  # smaller common shifts would be shown as 0.0 %


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
    elsewhere: bool = False,
    common: Common | None = None,
    fresh_common: Sequence[Common | None] = (),
) -> Verdict:
    """A timed reading against the stored sessions of its case.

    Args:
        fresh: values of the same reading in fresh processes, µs. None of them, without a problem: a
            suspicious reading is SUSPECT. Fewer than `family.confirmations`: it is UNRESOLVED.
        drift: the versions that differ from the baseline's, as text; empty under the same toolchain.
        fresh_problem: why fresh processes could not be run.
        elsewhere: whether another board than this one is known to have recorded the sessions.
        common: what the reading's session did to other cases of its class; None where nobody knows.
        fresh_common: the same of each fresh session. Their shifts are removed only if all of them are known.
    """
    value = reading.value
    if isinstance(value, str | list | dict) or not 0 < value < math.inf:
        reason = f"NOISY: read {value}, which is no time"
        return Verdict(Word.UNRESOLVED, reading.metric, reason, unit=reading.unit)
    place = place_of([each for each in (common, *fresh_common) if each is not None], elsewhere)
    judgement = _judgement(reading, entry, family, (common,), place)
    shift = judgement.slowdown(value, judgement.offsets[0])
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
    if reading.rejected_blocks >= MOST_REJECTED:
        reason = (
            f"ENV: {reading.rejected_blocks} blocks rejected, the device did not run as it should "
            f"({_change(shift)} in the others); look at clocks, throttling and other processes, then run again"
        )
        return judgement.verdict(Word.UNRESOLVED, reason, shift)
    if common is not None and common.alarm:
        # Such a session accuses nobody, and acquits only who is no suspect with and without the common shift.
        offsets = (0.0, common.shift)
        if any(judgement.suspects(judgement.slowdown(value, offset), offset) for offset in offsets):
            return judgement.verdict(Word.UNRESOLVED, f"{common} ({_change(shift)} in this session)", shift)
        return judgement.pass_or_noisy(shift)
    if not judgement.suspects(shift, judgement.offsets[0]):
        return judgement.pass_or_noisy(shift)
    if len(fresh) >= family.confirmations:
        return _judgement(reading, entry, family, fresh_common or [None] * len(fresh), place).confirm(shift, fresh)
    if not fresh and not fresh_problem:
        return judgement.verdict(Word.SUSPECT, f"{_change(shift)} in one session", shift)
    problem = fresh_problem or f"{len(fresh)} of {family.confirmations} fresh processes read it"
    reason = f"UNCONFIRMED: {_change(shift)} in one session; {problem}"
    return judgement.verdict(Word.UNRESOLVED, reason, shift)


def _judgement(
    reading: Reading, entry: TimedEntry, family: Family, commons: Sequence[Common | None], place: Place
) -> TimeJudgement:
    """How sessions are judged of which `commons` are known: with the common shift out of all of them, or of none."""
    known = [common for common in commons if common is not None]
    alarms = [common for common in known if common.alarm]
    if len(known) < len(commons) or not all(common.recording.removed for common in known):
        history, offsets = remember(entry.sessions), [0.0] * len(commons)
        noise = moderate(history, family.prior)
    else:
        history, offsets = known[0].recording.history(entry.sessions), [common.offset for common in known]
        noise = moderate(history, known[0].recording.prior).beside(fmean(common.error**2 for common in known) ** 0.5)
    noise = replace(noise, apart=place.apart, degrees=min(noise.degrees, place.degrees))
    return TimeJudgement(reading, history, family, noise, offsets, alarms, f"\n{place.note}" if place.note else "")


@dataclass(frozen=True)
class TimeJudgement:
    """One reading beside its history. Effects are slowdowns: differences of logarithms, positive is worse.

    `offsets`: the common shift to be removed from each session; `alarms`: of the sessions that are off as a whole.
    """

    reading: Reading
    history: History
    family: Family
    noise: Noise
    offsets: Sequence[float]
    alarms: Sequence[Common]
    place: str = ""  # a further line of the reason why something cannot be told

    @property
    def theta(self) -> float:
        """The smallest effect that may fail."""
        return least_effect(self.reading.promise, self.reading.floor, math.exp(self.history.centre))

    @property
    def smallest(self) -> float:
        """The minimum detectable effect."""
        return minimum_detectable(self.noise, self.theta, self.family.size, self.family.confirmations)

    def slowdown(self, value: float, offset: float) -> float:
        effect = math.log(value) - offset - self.history.centre
        return -effect if self.reading.better is Better.HIGHER else effect

    def suspects(self, shift: float, offset: float) -> bool:
        """Large, unlikely, and not the work of one odd block: the block nearest to the baseline moved as well."""
        if abs(shift) <= self.theta or self.noise.p_value(abs(shift), 1) >= SCREEN_ERROR:
            return False
        sign = math.copysign(1.0, shift)
        blocks = [self.slowdown(block, offset) for block in self.reading.blocks if block > 0]
        return all(sign * block >= self.theta / 2 for block in blocks)

    def pass_or_noisy(self, shift: float) -> Verdict:
        if self.smallest <= self.reading.promise:
            return self.verdict(Word.PASS, "", shift)
        reason = (
            f"NOISY: could have seen a change of {format_percent(self.smallest)} at the smallest, "
            f"{format_percent(self.reading.promise)} is promised ({_change(shift)} in this session){self.place}"
        )
        return self.verdict(Word.UNRESOLVED, reason, shift)

    def confirm(self, screened: float, fresh: Sequence[float]) -> Verdict:
        """The effect comes from the fresh sessions alone: the screen's value is inflated by selection."""
        slowdowns = [self.slowdown(value, offset) for value, offset in zip(fresh, self.offsets, strict=True)]
        mean, count = fmean(slowdowns), len(fresh)
        sign = 1.0 if screened > 0 else -1.0
        noise = self.noise.joined(slowdowns)
        error = noise.standard_error(count)
        margin = noise.quantile(MISS_ERROR / 2) * error
        interval = f"95 % interval {_change(mean - margin)} to {_change(mean + margin)}"
        each = ", ".join(_change(slowdown) for slowdown in slowdowns)
        seen = f"{_change(screened)} in one session, {each} in fresh processes"
        if self.alarms:
            return self.verdict(Word.UNRESOLVED, f"{self.alarms[0]} ({seen})", mean, fresh)
        confirmed = (
            min(sign * slowdown for slowdown in slowdowns) > self.theta / 2
            and sign * mean > self.theta
            and noise.p_value(sign * mean, count) < holm_threshold(self.family.size)
        )
        if confirmed:
            word = Word.SLOWER if sign > 0 else Word.FASTER
            reason = f"{_change(mean)} in {count} fresh processes ({interval}{self.without_machine()})"
            found = self.verdict(word, reason, mean, fresh)
            return msgspec.structs.replace(found, interval=(math.exp(mean - margin), math.exp(mean + margin)))
        if mean + noise.quantile(MISS_ERROR) * error < self.reading.promise:
            return self.verdict(Word.PASS, f"not confirmed: {seen}", mean, fresh)
        reason = f"CONFLICT: {seen}: neither confirmed nor excluded ({interval}){self.place}"
        return self.verdict(Word.UNRESOLVED, reason, mean, fresh)

    def without_machine(self) -> str:
        """What is no longer in the effect, so that it can be reconciled with the times shown beside it."""
        removed = fmean(self.offsets)
        return f", without the {_change(removed)} of the other cases" if abs(removed) >= SHOWN_SHIFT else ""

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
            limit=math.expm1(self.theta),
        )


def _change(slowdown: float) -> str:
    return format_change(math.exp(slowdown))
