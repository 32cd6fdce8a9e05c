"""The test of process pairs: base and working tree, measured in alternation (docs/judging.md).

The unit is one process pair: new processes of the base, of a second checkout of the base, and of the working tree. It
gives one number per case, the working tree against both checkouts of the base: ln(W/B) − ½·ln(B'/B), which equals
ln W − ½(ln B + ln B'). The base and its copy are two estimates of one level, so that the variance is 1½ times that of a
process instead of twice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from perfguard.judge.screen import MOST_REJECTED
from perfguard.judge.statistics import (
    COARSE,
    FAMILY_ERROR,
    MISS_ERROR,
    UNLEARNT,
    History,
    Prior,
    fit_prior,
    least_effect,
    moderate,
    spread_of,
    trimmed,
)
from perfguard.model.records import TOO_NOISY, CaseResult, PairReading, Reading, Verdict, Word
from perfguard.model.units import counted, format_change

LEAST_PAIRS = 3  # Fewer pairs decide no SLOWER or FASTER; `luck` requires more if more times are undecided.
LEAST_PAIRS_ALIKE = 2  # Fewer pairs decide no PASS: one pair has no spread.
MOST_PAIRS = 16
MOST_PAIRS_COARSE = 6  # Coarse times must not delay the others, and a doubled time is certain by then.
# The share of a time's error that is left for its last look (Haybittle 1971, Peto et al. 1976). With one half, neither
# the last look nor the earlier ones lose more than half of their error, which moves a limit by z = 0.2.
_LAST_SHARE = 0.5
# The probability that among the three processes of a pair only the working tree's is in the slower of two states,
# p(1 − p)², is largest at p = 1/3. Neither control nor scatter reveals this.
_ALONE = 4 / 27
_DUDA_HART = 2.326  # This many standard deviations leave 1 % at one end.
_LEAST_LEVELS = 12  # Four process pairs have this many levels.
_LARGEST = 700.0  # Untrusted reports can hold any logarithm, and its exponential must be finite.

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class PairVerdict:
    """The verdict on one time after `pairs` process pairs.

    Attributes:
        word: PASS (the same), SLOWER, FASTER, UNRESOLVED, or None: measure another pair.
        effect: the slowdown of the working tree, a natural logarithm.
        interval: the 95 % interval of `effect`. Unlike the verdict, it does not correct for stopping early.
        smallest: for a PASS, the smallest slowdown (relative) that is excluded; otherwise the smallest that this many
            pairs find with 95 % probability. None: too few pairs.
        settling: for UNRESOLVED, the approximate number of process pairs that would have decided.
    """

    word: Word | None
    effect: float
    interval: tuple[float, float]
    pairs: int
    smallest: float | None
    settling: int | None = None

    def __str__(self) -> str:
        text = f"in {counted(self.pairs, 'process pair')}"
        return text if self.settling is None else f"{text}, about {self.settling} would settle it"


def luck(pairs: int) -> float:
    """An upper bound of the probability that an unchanged time looks slower in all process pairs that count, because
    only the working tree's process was in the slower of two states each time."""
    cut = trimmed(pairs)
    return math.comb(pairs, cut) * _ALONE ** (pairs - cut)


def contrast(reading: PairReading) -> float:
    """The slowdown in one process pair, a natural logarithm: ln W − ½(ln B + ln B')."""
    return reading.change - reading.control / 2


def judge_pairs(
    history: History,
    pairs: int,
    *,
    theta: float,
    family: int,
    prior: Prior = UNLEARNT,
    most_pairs: int = MOST_PAIRS,
    undecided: int = 1,
) -> PairVerdict:
    """Test whether the working tree is slower, with the process pairs measured so far; called after each pair.

    This is a group-sequential test. SLOWER or FASTER: the mean is beyond θ, and Student's t rejects a mean of 0. The
    run's error of 1 % is spent evenly over its `family` of times. Each time spends half of its share at the look after
    `most_pairs`, and the other half evenly over the earlier looks, from three pairs on. So larger effects need fewer
    pairs at any noise. No time is SLOWER until `luck` over all undecided times is below half of that 1 %.
    PASS: the mean is within θ, and 2θ is excluded in both directions at 5 %, spent evenly over the looks.

    Args:
        history: the pairs' slowdowns and controls (`spread_of`).
        pairs: the number of pairs.
        theta: the smallest effect that may be SLOWER, as a logarithm (`least_effect`).
        family: the number of times in question in this run.
        prior: the noise of the run's cases; UNLEARNT while unknown.
        most_pairs: the number of pairs after which the time is UNRESOLVED.
        undecided: the number of undecided times with readings, this one included.
    """
    effect, noise = history.centre, moderate(history, prior)

    def margin(alpha: float) -> float:
        """The shift of the mean that noise alone exceeds with probability `alpha`, in one direction."""
        return noise.quantile(alpha) * noise.of_mean

    last = pairs >= most_pairs
    alpha = FAMILY_ERROR / max(family, 1)
    before = max(most_pairs - LEAST_PAIRS, 1)
    change_margin = margin(_LAST_SHARE * alpha if last else (1 - _LAST_SHARE) * alpha / before)
    equal_margin = margin(MISS_ERROR / max(most_pairs - LEAST_PAIRS_ALIKE + 1, 1))
    word, settling = Word.UNRESOLVED if last else None, None
    lucky = pairs < LEAST_PAIRS or undecided * luck(pairs) > FAMILY_ERROR / 2
    if abs(effect) > max(theta, change_margin) and not lucky:
        word = Word.SLOWER if effect > 0 else Word.FASTER
    elif pairs >= LEAST_PAIRS_ALIKE and abs(effect) <= theta and abs(effect) + equal_margin < 2 * theta:
        word = Word.PASS
    elif last:  # A margin is inversely proportional to the square root of the pairs.
        short = change_margin / abs(effect) if abs(effect) > theta else equal_margin / (2 * theta - abs(effect))
        settling = max(math.ceil(pairs * min(short, _LARGEST) ** 2), pairs + 1)
    smallest = None
    if word is Word.PASS:
        smallest = abs(effect) + equal_margin
    elif pairs >= LEAST_PAIRS:
        smallest = max(theta, change_margin) + margin(MISS_ERROR)
    if smallest is not None:
        smallest = math.expm1(min(smallest, _LARGEST))
    half = margin(MISS_ERROR / 2)
    return PairVerdict(word, effect, (effect - half, effect + half), pairs, smallest, settling)


@dataclass(frozen=True)
class PairedReadings:
    """One time in question: its `theta`, its timer class, and the readings of its process pairs, oldest first."""

    theta: float
    timer_class: str
    readings: Sequence[PairReading]


def judge_paired(tracks: Mapping[Name, PairedReadings], family: int) -> dict[Name, PairVerdict]:
    """Judge every time by its process pairs; times without pairs are left out.

    The looks are replayed in order, each with the noise that was known by then, and decided times are not tested again.
    So judging all data again gives the same verdicts as during the measurement.
    """
    verdicts: dict[Name, PairVerdict] = {}
    read: dict[int, list[tuple[Name, PairReading]]] = defaultdict(list)
    for name, track in tracks.items():
        for reading in track.readings:
            read[reading.pair].append((name, reading))
    seen: dict[Name, list[PairReading]] = defaultdict(list)
    classes: dict[str, dict[Name, History]] = defaultdict(dict)
    for look in sorted(read):
        open_now = [(name, each) for name, each in read[look] if name not in verdicts or verdicts[name].word is None]
        for name, reading in open_now:
            seen[name].append(reading)
            history = spread_of([contrast(each) for each in seen[name]], [each.control for each in seen[name]])
            classes[tracks[name].timer_class][name] = history
        priors = {name: fit_prior(list(histories.values())) for name, histories in classes.items()}
        undecided = sum(name not in verdicts or verdicts[name].word is None for name in seen)
        for name, _ in open_now:
            track, name_of_class = tracks[name], tracks[name].timer_class
            history, pairs = classes[name_of_class][name], len(seen[name])
            most = MOST_PAIRS_COARSE if track.theta >= COARSE else MOST_PAIRS
            verdicts[name] = judge_pairs(
                history, pairs, theta=track.theta, family=family, prior=priors[name_of_class], most_pairs=most,
                undecided=undecided,
            )  # fmt: skip
    return verdicts


def in_cycles(readings: Sequence[PairReading], effect: float, theta: float) -> str:
    """`in cycles +0.1 %, clock 1755 -> 1690 MHz`, if raw time and time at a constant clock differ by more than θ (θ/2
    with opposite signs); empty if they agree or the clock is unknown. The verdict depends on raw time alone."""
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


def _change(logarithm: float) -> str:
    return format_change(math.exp(logarithm))


def in_states(readings: Sequence[PairReading], effect: float, theta: float) -> str:
    """`two states 5 % apart, in both trees`, if the processes of a time fall into two groups; empty if they do not.

    The groups are those of least squares, each of at least two processes. There are two if their residual squares are
    below the 1 % point for one normal group (Duda and Hart, Pattern Classification and Scene Analysis, 1973, section
    6.12). Levels count from the lowest process of each pair, which removes what the processes of a pair share.
    """
    levels: list[tuple[float, str]] = []
    for reading in readings:
        three = (0.0, "base"), (reading.control, "base"), (reading.change - effect, "work")
        lowest = min(level for level, _ in three)
        levels += [(level - lowest, tree) for level, tree in three]
    levels.sort()
    values, count = [level for level, _ in levels], len(levels)
    if count < _LEAST_LEVELS or not (whole := _squares(values)):
        return ""
    left, at = min((_squares(values[:at]) + _squares(values[at:]), at) for at in range(2, count - 1))
    limit = 1 - 2 / math.pi - _DUDA_HART * math.sqrt(2 * (1 - 8 / math.pi**2) / count)
    apart = fmean(values[at:]) - fmean(values[:at])
    if left >= limit * whole or apart < theta:
        return ""
    trees = {tree for _, tree in levels[at:]}
    in_trees = "in both trees" if len(trees) > 1 else "at the base" if "base" in trees else "in the working tree"
    return f"two states {100 * math.expm1(apart):.2g} % apart, {in_trees}"


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.fsum((each - mean) ** 2 for each in values)


# -- a time beside a rival's, without a baseline -----------------------------------------------------------------------

RIVAL_PROCESSES = 3  # Fresh processes that measure a slower time again; as many more if it stays undecided.


def judge_rival(reading: Reading, fresh: Sequence[Reading] = ()) -> Verdict:
    """Judge whether the candidate is slower than its rival.

    Both were timed in alternation in one process, so that each process counts as a process pair of the same test. A
    slower time in one session is SUSPECT. Fresh processes then decide without the reading of that session.

    Args:
        reading: the time of the candidate, with that of its rival.
        fresh: the same reading in fresh processes.
    """
    theta = least_effect(reading.promise, reading.floor, reading.rival)
    slowdown = _slowdown(reading)
    if slowdown <= theta and not fresh:
        return _verdict(reading, Word.PASS, "", slowdown)
    read = [_slowdown(each) for each in fresh if each.rival and each.rejected_blocks < MOST_REJECTED]
    if len(read) < RIVAL_PROCESSES:
        seen = f"; {len(read)} of {RIVAL_PROCESSES} fresh processes read it" if fresh else ""
        return _verdict(reading, Word.SUSPECT, f"slower than its rival in one session{seen}", slowdown)
    outcome = judge_pairs(spread_of(read), len(read), theta=theta, family=1, most_pairs=2 * RIVAL_PROCESSES)
    if outcome.word is Word.SLOWER:
        note = f"; {reading.note}" if reading.note else ""
        return _verdict(reading, Word.SLOWER, f"than its rival: {outcome}{note}", outcome.effect, outcome)
    if outcome.word in (Word.PASS, Word.FASTER) or outcome.effect <= theta:
        return _verdict(reading, Word.PASS, "", outcome.effect)
    if outcome.word is None:
        return _verdict(reading, Word.SUSPECT, f"than its rival: so far {outcome}", outcome.effect, outcome)
    return _verdict(reading, Word.UNRESOLVED, f"than its rival: {TOO_NOISY}; {outcome}", outcome.effect, outcome)


def read_again(result: CaseResult, reading: Reading, fresh: Sequence[CaseResult]) -> list[Reading]:
    """The readings of the same metric by the same timer on the same inputs, in fresh processes."""
    others = [other.reading(reading.metric) for other in fresh if other.inputs == result.inputs]
    return [other for other in others if other is not None and other.timer == reading.timer]


def is_slower_than_rival(result: CaseResult, fresh: Sequence[CaseResult]) -> bool:
    """Whether fresh processes have to measure the case, because a time is slower than its rival or still undecided."""
    beside = [reading for reading in result.readings if reading.rival]
    return any(judge_rival(each, read_again(result, each, fresh)).word is Word.SUSPECT for each in beside)


def _verdict(reading: Reading, word: Word, reason: str, slowdown: float, outcome: PairVerdict | None = None) -> Verdict:
    return Verdict(
        word, reading.metric, reason, before=reading.rival, after=reading.value, unit=reading.unit,
        ratio=math.exp(slowdown), storable=False,
        interval=None if outcome is None else (math.exp(outcome.interval[0]), math.exp(outcome.interval[1])),
        smallest=None if outcome is None else outcome.smallest,
    )  # fmt: skip


def _slowdown(reading: Reading) -> float:
    assert isinstance(reading.value, int | float)
    return math.log(reading.value / reading.rival)
