"""The numbers behind a timed verdict (docs/judging.md).

Times are natural logarithms of µs, so every effect is a difference of logarithms (0.02 is about +2 %). The
session is the unit of inference: one value per fresh process, never the samples inside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median

MIN_SESSIONS = 5  # K below which a time is shown, not judged
SCREEN_ERROR = 0.01  # one-sided p of a suspect: it only buys re-measuring
FAMILY_ERROR = 0.01  # alpha_F: false accusations per lane, over all its timed readings
MISS_ERROR = 0.05  # one minus the power at the minimum detectable effect
LEAST_EFFECT = 0.01  # smallest relative change that may fail
LEAST_SIGMA = 0.0015  # no case is believed quieter than this
MEDIAN_PENALTY = 1.57  # pi/2: the centre is a median, whose variance is that of a mean times this
PRIOR_DEGREES = (2.0, 8.0)  # d0 is clipped to this range
PRIOR_CASES = 5  # fewer cases of a class teach nothing about the others
ROUNDING_SIGMA = 1e-3 / math.sqrt(12)  # what storing four significant digits can hide
WILD_SHIFT, WILD_SIGMAS = 0.2, 10.0  # a stored session beyond both was no measurement of the case


@dataclass(frozen=True)
class History:
    """What the stored sessions of one case say, in logarithms of µs.

    `centre` is their median, `variance` their variance between sessions, `sessions` how many of them count:
    one wild session (more than 20 % and ten robust standard deviations off the others) is left out.
    """

    centre: float
    variance: float
    sessions: int

    @property
    def degrees(self) -> int:
        """Degrees of freedom of `variance`."""
        return self.sessions - 1


@dataclass(frozen=True)
class Prior:
    """What the cases of one timer class say about the noise of any one of them (d0 and s0 of docs/judging.md)."""

    degrees: float
    sigma: float
    learnt: bool = True


#: Used until PRIOR_CASES cases are known. 0.5 % is the most that the timers may vary between processes
#: (their target); unlike a learnt prior it never lowers a case's own estimate.
UNLEARNT = Prior(degrees=PRIOR_DEGREES[0], sigma=0.005, learnt=False)


@dataclass(frozen=True)
class Noise:
    """The moderated noise of one case: sigma between sessions, its degrees of freedom, and K.

    `apart` is what the new sessions share and the stored ones know nothing of, as a standard deviation: another board,
    or another day, does to each case what it does to no other. More processes there do not make it less.
    """

    sigma: float
    degrees: float
    sessions: int
    apart: float = 0.0

    def standard_error(self, processes: int) -> float:
        """Of the mean of `processes` new sessions against the median of the stored ones."""
        return math.hypot(self.sigma * math.sqrt(1 / processes + MEDIAN_PENALTY / self.sessions), self.apart)

    def beside(self, error: float) -> Noise:
        """The noise of sessions out of which a common shift with standard error `error` was taken.

        m̂ is itself a median of new sessions against stored centres, so its error falls with R and K like that
        of a case, and adds to sigma once 1 + π/2K is divided out.
        """
        own = error / math.sqrt(1 + MEDIAN_PENALTY / self.sessions)
        return replace(self, sigma=math.hypot(self.sigma, own))

    def joined(self, residuals: Sequence[float]) -> Noise:
        """The noise after new sessions have shown their own scatter round their mean."""
        more = len(residuals) - 1
        mean = fmean(residuals)
        squares = math.fsum((y - mean) ** 2 for y in residuals)
        variance = (self.degrees * self.sigma**2 + squares) / (self.degrees + more)
        return replace(self, sigma=max(math.sqrt(variance), LEAST_SIGMA), degrees=self.degrees + more)

    def p_value(self, effect: float, processes: int) -> float:
        """One-sided p of a mean effect (positive: the suspected direction) over `processes` new sessions."""
        from scipy import special

        return float(special.stdtr(self.degrees, -effect / self.standard_error(processes)))

    def quantile(self, alpha: float) -> float:
        """The t value that noise alone exceeds with probability `alpha`."""
        return _upper_quantile(alpha, self.degrees)


@lru_cache(maxsize=1024)
def _upper_quantile(alpha: float, degrees: float) -> float:
    from scipy import special

    return -float(special.stdtrit(degrees, alpha))


def remember(sessions: Sequence[float], shifts: Sequence[float] = ()) -> History:
    """Centre and variance of stored session values (µs, at least one).

    Args:
        shifts: a logarithm for each session that is removed first, e.g. the common shifts; none by default.
    """
    logs = [math.log(value) for value in sessions]
    if shifts:
        logs = [y - shift for y, shift in zip(logs, shifts, strict=True)]
    logs = _without_wild(logs)
    mean = fmean(logs)
    degrees = len(logs) - 1
    variance = math.fsum((y - mean) ** 2 for y in logs) / degrees if degrees else 0.0
    return History(median(logs), variance, len(logs))


def _without_wild(logs: list[float]) -> list[float]:
    if len(logs) < MIN_SESSIONS:
        return logs
    middle = median(logs)
    farthest = max(range(len(logs)), key=lambda index: abs(logs[index] - middle))
    rest = logs[:farthest] + logs[farthest + 1 :]
    centre = median(rest)
    sigma = 1.4826 * median(abs(y - centre) for y in rest)
    wild = abs(logs[farthest] - centre) > max(WILD_SHIFT, WILD_SIGMAS * sigma)
    return rest if wild else logs


def fit_prior(histories: Sequence[History]) -> Prior:
    """d0 and s0 of one class from the variances of its cases: Smyth's moment estimates.

    Smyth, "Linear models and empirical Bayes methods", Stat. Appl. Genet. Mol. Biol. 3 (2004), section 6.2.
    With e = ln s² − ψ(d/2) + ln(d/2) over the cases: ψ'(d0/2) = Var(e) − mean ψ'(d/2), and
    ln s0² = mean(e) + ψ(d0/2) − ln(d0/2). Cases alike beyond chance have d0 = ∞. d0 is clipped afterwards;
    only below its range is s0 taken from the clipped d0, which makes it larger.
    """
    known = [history for history in histories if history.sessions >= 3]
    if len(known) < PRIOR_CASES:
        return UNLEARNT
    from scipy import special

    halves = [history.degrees / 2 for history in known]
    logs = [math.log(max(history.variance, ROUNDING_SIGMA**2)) for history in known]
    centred = [z - float(special.digamma(h)) + math.log(h) for z, h in zip(logs, halves, strict=True)]
    mean = fmean(centred)
    excess = math.fsum((e - mean) ** 2 for e in centred) / (len(known) - 1)
    excess -= fmean(float(special.polygamma(1, h)) for h in halves)
    least, most = PRIOR_DEGREES
    if excess <= 0:
        return Prior(most, math.exp(mean / 2))
    half = max(_inverse_trigamma(excess), least / 2)
    variance = math.exp(mean + float(special.digamma(half)) - math.log(half))
    return Prior(min(2 * half, most), math.sqrt(variance))


def _inverse_trigamma(y: float) -> float:
    """x > 0 with ψ'(x) = y; Newton's method on 1/ψ', convex and nearly linear (Smyth 2004, appendix)."""
    from scipy import special

    if y > 1e7:
        return 1 / math.sqrt(y)
    if y < 1e-6:
        return 1 / y
    x = 0.5 + 1 / y
    for _ in range(50):
        trigamma = float(special.polygamma(1, x))
        step = trigamma * (1 - trigamma / y) / float(special.polygamma(2, x))
        x += step
        if -step / x < 1e-10:
            break
    return x


def moderate(history: History, prior: Prior) -> Noise:
    """The case's variance, drawn towards its class: σ̃² = (d0·s0² + (K−1)·s²)/(d0 + K − 1), σ̃ ≥ 0.15 %."""
    degrees = prior.degrees + history.degrees
    expected = prior.sigma**2 if prior.learnt else max(prior.sigma**2, history.variance)
    variance = (prior.degrees * expected + history.degrees * history.variance) / degrees
    return Noise(max(math.sqrt(variance), LEAST_SIGMA), degrees, history.sessions)


def least_effect(promise: float, floor: float, centre_us: float) -> float:
    """θ, the smallest effect that may fail: max(1 %, promise/3, floor/t); `floor` and the centre in µs."""
    return max(LEAST_EFFECT, promise / 3, floor / centre_us)


def holm_threshold(family: int, rejected: int = 0, alpha: float = FAMILY_ERROR) -> float:
    """Largest p that Holm's step-down rejects when `rejected` of `family` readings had smaller ones."""
    return alpha / max(family - rejected, 1)


def minimum_detectable(noise: Noise, theta: float, family: int, confirmations: int) -> float:
    """The smallest effect that screen and confirmation together find with 95 % probability."""
    confirming = replace(noise, degrees=noise.degrees + confirmations - 1)
    stages = ((noise, 1, SCREEN_ERROR), (confirming, confirmations, holm_threshold(family)))
    return max(
        max(theta, stage.quantile(alpha) * error) + stage.quantile(MISS_ERROR) * error
        for stage, alpha, error in (
            (stage, alpha, stage.standard_error(processes)) for stage, processes, alpha in stages
        )
    )
