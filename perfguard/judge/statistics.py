"""The numbers behind a timed verdict (docs/judging.md).

Times are natural logarithms of µs, so every effect is a difference of logarithms (0.02 is about +2 %). A process is the
unit of inference: it contributes one value, never its samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median
from typing import Any

FAMILY_ERROR = 0.01  # alpha_F: the probability of a false alarm in a run, over all its times in question.
MISS_ERROR = 0.05  # One minus the power at the smallest promised effect.
LEAST_EFFECT = 0.01  # The smallest relative change that may fail.
# From this θ on a time is coarse: a host time, which differs by a third between processes, or a time of microseconds.
# Board and day move times by less, and do not matter to either.
COARSE = 0.1
# The lower limit of every case's sigma. The median over 563 times of H200s, each over the processes of one recording
# (tests/judge/data/h200-sessions.json), is 0.13 %.
LEAST_SIGMA = 0.0015
MEDIAN_PENALTY = 1.57  # pi/2: the variance of a median, the centre of a record, over that of a mean.
PRIOR_DEGREES = (1.0, 8.0)  # The range to which d0 is clipped.
PRIOR_CASES = 15  # Fewer cases of a class are not enough for a prior.
CONTROL_SHARE = 0.75  # The variance of ln W - (ln B + ln B')/2 (3/2 of a process's) over that of ln B' - ln B (twice).
TRIM = 0.2  # At either end: Wilcox, Introduction to Robust Estimation and Hypothesis Testing, section 3.3.
# The least number of pairs to trim. A trimmed mean requires fewer pairs to agree: with two states, seven of eight agree
# by chance as rarely as six of six (`luck` in pair_test.py). With fewer pairs, trimming would delay large effects.
TRIM_FROM = 8
ROUNDING_SIGMA = 1e-3 / math.sqrt(12)  # The rounding error of four significant digits.
WILD_SHIFT, WILD_SIGMAS = 0.2, 10.0  # A stored session beyond both is wild.
WILD_AMONG = 5  # Among fewer sessions, two that are alike by chance would make a third one wild.


@dataclass(frozen=True)
class History:
    """The values of one case in several processes, in logarithms.

    `centre` is the median, `variance` the variance between processes, `sessions` the number of values that count. One
    wild session (more than 20 % and ten robust standard deviations off the others) is left out of a record. For process
    pairs see `spread_of`. `controls` is the number of degrees of freedom that the controls add to `variance`.
    """

    centre: float
    variance: float
    sessions: int
    controls: int = 0

    @property
    def degrees(self) -> int:
        """Degrees of freedom of `variance`."""
        return self.sessions - 1 + self.controls


@dataclass(frozen=True)
class Prior:
    """The noise of one case, estimated from all cases of its timer class (d0 and s0 of docs/judging.md)."""

    degrees: float
    sigma: float
    learnt: bool = True


#: The prior until PRIOR_CASES cases are known. 0.5 % is the timers' target for the variation between processes. Unlike
#: a learnt prior, it never lowers a case's own estimate.
UNLEARNT = Prior(degrees=PRIOR_DEGREES[0], sigma=0.005, learnt=False)


@dataclass(frozen=True)
class Noise:
    """The moderated noise of one case: sigma between processes, its degrees of freedom, and the K of the sessions."""

    sigma: float
    degrees: float
    sessions: int

    @property
    def against_record(self) -> float:
        """The standard error of one new session against the median of the stored ones."""
        return self.sigma * math.sqrt(1 + MEDIAN_PENALTY / self.sessions)

    @property
    def of_mean(self) -> float:
        """The standard error of the mean of the K values."""
        return self.sigma / math.sqrt(self.sessions)

    def quantile(self, alpha: float) -> float:
        """The t value that noise alone exceeds with probability `alpha`."""
        return _upper_quantile(alpha, self.degrees)


@lru_cache(maxsize=4096)
def _upper_quantile(alpha: float, degrees: float) -> float:
    return -float(_special().stdtrit(degrees, alpha))


def _special() -> Any:
    """SciPy's functions, loaded when a time is judged."""
    from scipy import special

    return special


def history_of(sessions: Sequence[float]) -> History:
    """The centre and variance of stored session values (µs, at least one)."""
    logs = [math.log(value) for value in without_wild(sessions)]
    return History(median(logs), _variance(logs), len(logs))


def spread_of(slowdowns: Sequence[float], controls: Sequence[float] = ()) -> History:
    """The trimmed mean of process pairs (logarithms, at least one), and the variance from which its error follows.

    The variance is that of winsorized values (Tukey and McLaughlin, Sankhya A 25, 1963), which needs no rule for wild
    pairs. It is never below that of the `controls`, ln(B'/B) of each pair, which show the scatter of one tree's
    processes even if slowdowns agree by chance. Their degrees of freedom count if the slowdowns scatter no more.
    """
    cut, ordered = trimmed(len(slowdowns)), sorted(slowdowns)
    kept = len(ordered) - 2 * cut
    winsorized = [min(max(each, ordered[cut]), ordered[-1 - cut]) for each in ordered]
    own = _variance(winsorized) * (len(ordered) - 1) / max(kept - 1, 1)
    sizes = sorted(abs(each) for each in controls)
    shown = CONTROL_SHARE * math.fsum(min(each, sizes[kept - 1]) ** 2 for each in sizes) / kept
    alike = controls and (kept == 1 or own <= _f_limit(kept - 1, kept) * shown)
    return History(fmean(ordered[cut : cut + kept]), max(own, shown), kept, kept if alike else 0)


def trimmed(pairs: int) -> int:
    """The number of process pairs that the mean leaves out at either end."""
    return int(pairs * TRIM) if pairs >= TRIM_FROM else 0


def _variance(logs: Sequence[float]) -> float:
    mean, degrees = fmean(logs), len(logs) - 1
    return math.fsum((y - mean) ** 2 for y in logs) / degrees if degrees else 0.0


def without_wild(sessions: Sequence[float]) -> list[float]:
    """The stored session values (µs) without a wild one."""
    enough = len(sessions) >= WILD_AMONG
    wild = wild_one([math.log(value) for value in sessions], WILD_SHIFT) if enough else None
    return [value for index, value in enumerate(sessions) if index != wild]


def wild_one(logs: Sequence[float], shift: float) -> int | None:
    """The index of the farthest value, if it is off the others by more than `shift` and by ten robust deviations."""
    middle = median(logs)
    farthest = max(range(len(logs)), key=lambda index: abs(logs[index] - middle))
    others = [*logs[:farthest], *logs[farthest + 1 :]]
    if not others:
        return None
    centre = median(others)
    sigma = 1.4826 * median(abs(y - centre) for y in others)
    return farthest if abs(logs[farthest] - centre) > max(shift, WILD_SIGMAS * sigma) else None


def fit_prior(histories: Sequence[History]) -> Prior:
    """d0 and s0 of one class from the variances of its cases: Smyth's moment estimates.

    Smyth, "Linear models and empirical Bayes methods", Stat. Appl. Genet. Mol. Biol. 3 (2004), section 6.2.
    With e = ln s² − ψ(d/2) + ln(d/2) over the cases: ψ'(d0/2) = Var(e) − mean ψ'(d/2), and
    ln s0² = mean(e) + ψ(d0/2) − ln(d0/2). If the cases are more alike than by chance, d0 = ∞. d0 is then clipped.
    If it was below the range, s0 follows from the clipped d0, which makes s0 larger.
    """
    known = [history for history in histories if history.degrees >= 1]
    if len(known) < PRIOR_CASES:
        return UNLEARNT
    terms = [_terms(history.degrees) for history in known]
    logs = [math.log(max(history.variance, ROUNDING_SIGMA**2)) for history in known]
    centred = [z - digamma + math.log(h) for z, (h, digamma, _) in zip(logs, terms, strict=True)]
    mean = fmean(centred)
    excess = math.fsum((e - mean) ** 2 for e in centred) / _low_chi_square(len(known) - 1)
    excess -= fmean(trigamma for _, _, trigamma in terms)
    least, most = PRIOR_DEGREES
    if excess <= 0:
        return Prior(most, math.exp(mean / 2))
    half = max(_inverse_trigamma(excess), least / 2)
    variance = math.exp(mean + float(_special().digamma(half)) - math.log(half))
    return Prior(min(2 * half, most), math.sqrt(variance))


@lru_cache(maxsize=1024)
def _low_chi_square(degrees: int) -> float:
    """The value that a sum of squares with these degrees of freedom exceeds with 95 % probability, in units of σ²."""
    return float(_special().chdtri(degrees, 0.95))


@lru_cache(maxsize=128)
def _terms(degrees: int) -> tuple[float, float, float]:
    """d/2, ψ(d/2) and ψ'(d/2)."""
    half = degrees / 2
    return half, float(_special().digamma(half)), float(_special().polygamma(1, half))


def _inverse_trigamma(y: float) -> float:
    """The x > 0 with ψ'(x) = y, by Newton's method on 1/ψ', convex and nearly linear (Smyth 2004, appendix)."""
    if y > 1e7:
        return 1 / math.sqrt(y)
    if y < 1e-6:
        return 1 / y
    x = 0.5 + 1 / y
    for _ in range(50):
        trigamma = float(_special().polygamma(1, x))
        step = trigamma * (1 - trigamma / y) / float(_special().polygamma(2, x))
        x += step
        if -step / x < 1e-10:
            break
    return x


def moderate(history: History, prior: Prior) -> Noise:
    """The case's variance, shrunk towards its class: σ̃² = (d0·s0² + d·s²)/(d0 + d), σ̃ ≥ 0.15 %.

    A case that scatters more than a learnt prior explains, beyond the 95 % point of F, is not shrunk (the idea of
    Phipson, Lee, Majewski, Alexander and Smyth, Ann. Appl. Stat. 10, 2016, with a limit instead of their weight).
    """
    limit = _f_limit(history.degrees, prior.degrees) if prior.learnt and history.degrees else 1.0
    shrunk = prior.degrees if history.variance <= limit * prior.sigma**2 else 0.0
    degrees = shrunk + history.degrees
    variance = (shrunk * prior.sigma**2 + history.degrees * history.variance) / degrees
    return Noise(max(math.sqrt(variance), LEAST_SIGMA), degrees, history.sessions)


@lru_cache(maxsize=4096)
def _f_limit(degrees: float, others: float) -> float:
    """The ratio of two variances that chance exceeds in 5 % of cases."""
    return float(_special().fdtri(degrees, others, 1 - MISS_ERROR))


def least_effect(promise: float, floor: float, centre_us: float) -> float:
    """θ, the smallest effect that may fail: max(1 %, promise/3, floor/t); `floor` and the centre in µs."""
    return max(LEAST_EFFECT, promise / 3, floor / centre_us)
