"""Base and working tree measured by turns: what differences between pairs of processes say (docs/judging.md).

The unit is one process pair: new processes of the base, of a second checkout of the base and of the working tree, and
from them one number a case, the working tree beside both checkouts of the base: ln(W/B) − ½·ln(B'/B), which is
ln W − ½(ln B + ln B'). The base's own process is in both differences; taking half of the control out makes it and its
copy two estimates of one level, so that the variance is 1½ of a process's and not twice as much.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeVar

from perfguard.judge.statistics import (
    FAMILY_ERROR,
    MISS_ERROR,
    WILD_SIGMAS,
    History,
    Noise,
    Prior,
    fit_prior,
    moderate,
    spread_of,
)
from perfguard.records import PairReading, Word
from perfguard.units import format_change, format_percent

LEAST_PAIRS = 3  # before anything is SLOWER or FASTER
LEAST_PAIRS_ALIKE = 2  # before two trees are the same: one pair has no spread
MOST_PAIRS = 16
COARSE = 0.1  # least effect from which on a time is coarse: host times, of which processes differ by a third
MOST_PAIRS_COARSE = 6  # a coarse time must not make the others wait: what doubles is certain by then
_LAST_SHARE = 0.5  # of what a time may err, for its last look: what is large is certain long before
_WILD_PAIR = 0.03  # a pair beyond this and beyond WILD_SIGMAS robust deviations was no measurement of the case
_WILD_EVERY = 4  # of so many pairs one may be left out: three agree against it
_LARGEST = 700.0  # logarithm: a stranger's report may make it any, and its exponential must be a number

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class PairVerdict:
    """What is known of one time after `pairs` process pairs.

    Attributes:
        word: PASS (the same), SLOWER, FASTER, UNRESOLVED, or None: measure another pair.
        effect: the slowdown of the working tree, a natural logarithm.
        interval: its 95 % interval, natural logarithms. It does not correct for stopping early; the word does.
        smallest: a slowdown (relative) from which on this would not have been the word: what a PASS excludes, and what
            so many pairs find with 95 % probability where the word is another one. None: too few pairs to say.
        wild: how many of the pairs lie so far off the others that they are left out.
    """

    word: Word | None
    effect: float
    interval: tuple[float, float]
    pairs: int
    smallest: float | None
    wild: int = 0

    def __str__(self) -> str:
        low, high = self.interval
        pairs = f"{self.pairs} process pair{'s' * (self.pairs != 1)}{f', {self.wild} wild' * (self.wild > 0)}"
        return f"{_change(self.effect)} in {pairs} (95 % interval {_change(low)} to {_change(high)})"


def contrast(reading: PairReading) -> float:
    """The slowdown that one process pair shows, a natural logarithm: ln W − ½(ln B + ln B')."""
    return reading.change - reading.control / 2


def judge_pairs(
    slowdowns: Sequence[float], *, theta: float, family: int, prior: Prior, most_pairs: int = MOST_PAIRS
) -> PairVerdict:
    """Whether the working tree is slower, as far as the process pairs measured so far can tell; asked after each.

    A group-sequential test with an open alternative. Slower or faster: Student's t of the mean differs from 0 at an
    error of 1 % of the run, spent evenly over its `family` of times, and for each one half at the look after
    `most_pairs` and the other evenly over those before it, from three pairs on; and the mean is beyond θ. So the larger
    an effect, the fewer pairs, whatever the noise. The same: the mean lies within θ, and 2θ is excluded in both
    directions at 5 %, spent evenly over the looks.

    σ is moderated: the variance between the pairs is drawn towards `prior`, and is never below 0.15 %. Of every four
    pairs one may be wild: more than 3 % and ten robust deviations off the others, it is left out.

    Args:
        slowdowns: `contrast` of each process pair.
        theta: the smallest effect that may be SLOWER, as a logarithm (`least_effect`).
        family: times that can be accused in this run.
        prior: what the noise of the run's cases is like; UNLEARNT while nobody knows.
        most_pairs: after these it is UNRESOLVED.

    Raises:
        ValueError: no pairs.
    """
    if not slowdowns:
        raise ValueError("judge_pairs: no process pair; measure one")
    return _judge(_spread(slowdowns), len(slowdowns), theta, family, prior, most_pairs)


def _judge(history: History, pairs: int, theta: float, family: int, prior: Prior, most_pairs: int) -> PairVerdict:
    effect, wild = history.centre, pairs - history.sessions
    noise = moderate(history, prior)
    if wild:  # who picks what counts knows less of its spread
        noise = replace(noise, degrees=max(noise.degrees - wild, 1))
    test = _Test(noise, theta, family, pairs, most_pairs)
    margin = test.margin(MISS_ERROR / 2)
    word = None
    if test.accuses(effect):
        word = Word.SLOWER
    elif test.accuses(-effect):
        word = Word.FASTER
    elif test.acquits(effect):
        word = Word.PASS
    elif pairs >= most_pairs:
        word = Word.UNRESOLVED
    smallest = None
    if word is Word.PASS:
        smallest = abs(effect) + test.margin(test.miss_of_look)
    elif pairs >= LEAST_PAIRS:
        smallest = max(theta, test.margin(test.alpha_of_look)) + test.margin(MISS_ERROR)
    if smallest is not None:
        smallest = math.expm1(min(smallest, _LARGEST))
    return PairVerdict(word, effect, (effect - margin, effect + margin), pairs, smallest, wild)


def _spread(slowdowns: Sequence[float]) -> History:
    """Their mean and variance without wild ones; more wild ones than may be left out are how the case behaves."""
    if max(slowdowns) - min(slowdowns) <= _WILD_PAIR:
        return spread_of(slowdowns)
    kept = list(slowdowns)
    for _ in range(len(slowdowns) // _WILD_EVERY + 1):
        middle = median(kept)
        farthest = max(range(len(kept)), key=lambda index: abs(kept[index] - middle))
        rest = kept[:farthest] + kept[farthest + 1 :]
        if not _is_wild(kept[farthest], rest):
            return spread_of(kept)
        kept = rest
    return spread_of(slowdowns)


def _is_wild(slowdown: float, others: Sequence[float]) -> bool:
    if not others:
        return False
    centre = median(others)
    sigma = 1.4826 * median(abs(each - centre) for each in others)
    return abs(slowdown - centre) > max(_WILD_PAIR, WILD_SIGMAS * sigma)


@dataclass(frozen=True)
class Track:
    """One time that is in question: its `theta`, its timer class, and what the process pairs read, oldest first."""

    theta: float
    timer_class: str
    readings: Sequence[PairReading]


def judge_tracks(tracks: Mapping[Name, Track], family: int) -> dict[Name, PairVerdict]:
    """Every time by the process pairs that read it; those that no pair read are left out.

    The sequence of looks is gone through once more, each with the noise that was known of all times by then; what is
    decided is asked no more. So whoever judges again, with everything at hand, says what was said while it was
    measured.
    """
    verdicts: dict[Name, PairVerdict] = {}
    read: dict[int, list[tuple[Name, float]]] = defaultdict(list)
    for name, track in tracks.items():
        for reading in track.readings:
            read[reading.pair].append((name, contrast(reading)))
    slowdowns: dict[Name, list[float]] = defaultdict(list)
    classes: dict[str, dict[Name, History]] = defaultdict(dict)
    for look in sorted(read):
        open_now = [(name, each) for name, each in read[look] if name not in verdicts or verdicts[name].word is None]
        for name, slowdown in open_now:
            slowdowns[name].append(slowdown)
            classes[tracks[name].timer_class][name] = _spread(slowdowns[name])
        priors = {name: fit_prior(list(found.values())) for name, found in classes.items()}
        for name, _ in open_now:
            track, name_of_class = tracks[name], tracks[name].timer_class
            history, pairs = classes[name_of_class][name], len(slowdowns[name])
            most = MOST_PAIRS_COARSE if track.theta >= COARSE else MOST_PAIRS
            verdicts[name] = _judge(history, pairs, track.theta, family, priors[name_of_class], most)
    return verdicts


def in_cycles(readings: Sequence[PairReading], effect: float, theta: float) -> str:
    """`in cycles +0.1 %, clock 1755 -> 1690 MHz`, where raw time and time at one clock disagree in sign or by more than
    θ; empty where they agree or nobody told the clock. Raw time judges: it is what a user waits for."""
    clocks = [(each.base_mhz, each.work_mhz) for each in readings]
    known = [(base, work) for base, work in clocks if base and work]
    if not known:
        return ""
    cycles = effect + fmean(math.log(work / base) for base, work in known)
    apart = abs(cycles - effect)
    if apart <= theta and not (cycles * effect < 0 and apart > theta / 2):
        return ""
    before, after = (fmean(side) for side in zip(*known, strict=True))
    return f"in cycles {_change(cycles)}, clock {before:.0f} -> {after:.0f} MHz"


def noisy(verdict: PairVerdict) -> str:
    """The reason of UNRESOLVED after all process pairs."""
    seen = "" if verdict.smallest is None else f"would have seen {format_percent(verdict.smallest)}; "
    return f"NOISY: {seen}{verdict}"


@dataclass(frozen=True)
class _Test:
    noise: Noise
    theta: float
    family: int
    pairs: int
    most_pairs: int

    def margin(self, alpha: float) -> float:
        """What noise alone moves the mean by with probability `alpha`, in one direction."""
        return self.noise.quantile(alpha) * self.noise.of_mean

    @property
    def alpha_of_look(self) -> float:
        alpha, before = FAMILY_ERROR / max(self.family, 1), self.most_pairs - LEAST_PAIRS
        return _LAST_SHARE * alpha if self.pairs >= self.most_pairs else (1 - _LAST_SHARE) * alpha / before

    @property
    def miss_of_look(self) -> float:
        return MISS_ERROR / max(self.most_pairs - LEAST_PAIRS_ALIKE + 1, 1)

    def accuses(self, effect: float) -> bool:
        enough = self.noise.sessions >= LEAST_PAIRS and effect > self.theta
        return enough and effect > self.margin(self.alpha_of_look)

    def acquits(self, effect: float) -> bool:
        enough = self.noise.sessions >= LEAST_PAIRS_ALIKE and abs(effect) <= self.theta
        return enough and abs(effect) + self.margin(self.miss_of_look) < 2 * self.theta


def _change(logarithm: float) -> str:
    return format_change(math.exp(logarithm))
