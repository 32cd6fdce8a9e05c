"""Two trees beside each other: what differences between pairs of processes say (docs/judging.md, A/B).

The unit is one process pair: a new process of each tree, and one number for each case, the mean over its blocks of
ln(B/A). A second checkout of A, the control A', is measured alike: ln(A'/A) holds whatever path and slot do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from perfguard.judge.statistics import (
    FAMILY_ERROR,
    MISS_ERROR,
    History,
    Noise,
    Prior,
    fit_prior,
    holm_threshold,
    moderate,
)
from perfguard.records import Word
from perfguard.units import format_change, format_percent

LEAST_PAIRS = 3  # before anything is SLOWER or FASTER
LEAST_PAIRS_ALIKE = 2  # before two trees are the same: one pair has no spread


@dataclass(frozen=True)
class PairVerdict:
    """What is known of one case after `pairs` process pairs.

    Attributes:
        word: PASS (the same), SLOWER, FASTER, UNRESOLVED, or None: measure another pair.
        effect: the slowdown of B against A without the bias of the control, a natural logarithm.
        interval: its 95 % interval, natural logarithms. It does not correct for stopping early.
        reason: why, for people.
        smallest: the smallest change (relative) that this many pairs find with 95 % probability.
    """

    word: Word | None
    effect: float
    interval: tuple[float, float]
    pairs: int
    reason: str
    smallest: float


def judge_pairs(
    differences: Sequence[float],
    controls: Sequence[float],
    *,
    theta: float,
    family: int,
    prior: Prior,
    most_pairs: int = 12,
) -> PairVerdict:
    """Whether B is slower than A, as far as the process pairs measured so far can tell; meant to be asked after each.

    Wald's sequential test of "no effect" against "an effect of θ": Λ = n·(θ/2σ²)·(x̄ − θ/2) with
    x̄ = mean(differences) − mean(controls), whose variance is 2σ²/n. "The same" at Λ <= ln(β/(1−α)) in both
    directions; slower at Λ >= ln((1−β)/α). As σ is estimated from few pairs, Λ alone accuses too easily: Student's t
    of x̄ must also be significant at α shared between all looks. α = 1 % / `family`, β = 5 %. A small but certain
    effect, between θ/2 and θ, leaves Λ undecided for ever: t then says "the same" once θ is excluded at β, shared
    between the looks.

    σ is moderated as between sessions: the residual squares of differences and controls, 2(n−1) degrees of freedom,
    are drawn towards `prior` (`learn_pairs` over the suite's cases), and never below 0.15 %.

    Args:
        differences: ln(B/A) of each process pair.
        controls: ln(A'/A) of the same process pairs.
        theta: the smallest effect that may be SLOWER, as a logarithm (`least_effect`).
        family: timed readings compared in this run.
        prior: what the noise of the run's cases is like; UNLEARNT while nobody knows.
        most_pairs: after these it is UNRESOLVED.

    Raises:
        ValueError: no pairs, or not one control for each difference.
    """
    if not differences or len(differences) != len(controls):
        raise ValueError(
            f"judge_pairs: {len(differences)} differences, {len(controls)} controls; pass one of each a pair"
        )
    test = _Test(len(differences), moderate(_history(differences, controls), prior), theta, family, most_pairs)
    bias = fmean(controls)
    effect = fmean(differences) - bias
    margin = test.noise.quantile(MISS_ERROR / 2) * test.error
    interval = (effect - margin, effect + margin)
    seen = (
        f"{_change(effect)} in {test.pairs} process pairs (95 % interval {_change(interval[0])} to "
        f"{_change(interval[1])}; the base against itself {_change(bias)})"
    )
    word, reason = None, seen
    if test.accuses(effect) and fmean(differences) - abs(bias) > theta:
        word = Word.SLOWER
    elif test.accuses(-effect) and -fmean(differences) - abs(bias) > theta:
        word = Word.FASTER
    elif test.acquits(effect):
        word = Word.PASS
    elif test.pairs >= most_pairs:
        word = Word.UNRESOLVED
        reason = f"NOISY: could have seen a change of {format_percent(test.smallest)} at the smallest; {seen}"
    return PairVerdict(word, effect, interval, test.pairs, reason, test.smallest)


def learn_pairs(cases: Iterable[tuple[Sequence[float], Sequence[float]]]) -> Prior:
    """What the noise of a run's cases is like, from the (differences, controls) of all of them, decided ones too."""
    return fit_prior([_history(differences, controls) for differences, controls in cases if differences])


def _history(differences: Sequence[float], controls: Sequence[float]) -> History:
    """The variance of one side, pooled over both: each has its own mean, so 2(n−1) degrees of freedom."""
    degrees = 2 * (len(differences) - 1)
    squares = math.fsum((y - fmean(side)) ** 2 for side in (differences, controls) for y in side)
    return History(0.0, squares / degrees if degrees else 0.0, degrees + 1)


@dataclass(frozen=True)
class _Test:
    pairs: int
    noise: Noise
    theta: float
    family: int
    most_pairs: int

    @property
    def error(self) -> float:
        """Standard error of mean(differences) − mean(controls)."""
        return self.noise.sigma * math.sqrt(2 / self.pairs)

    @property
    def alpha(self) -> float:
        return holm_threshold(self.family, alpha=FAMILY_ERROR)

    @property
    def looks(self) -> int:
        return max(self.most_pairs - LEAST_PAIRS + 1, 1)

    @property
    def alpha_of_look(self) -> float:
        return self.alpha / self.looks

    def ratio(self, effect: float) -> float:
        """Λ, the logarithm of the likelihood of an effect of θ over that of none."""
        return self.theta / self.error**2 * (effect - self.theta / 2)

    def accuses(self, effect: float) -> bool:
        sure = effect > self.noise.quantile(self.alpha_of_look) * self.error
        enough = self.pairs >= LEAST_PAIRS and effect > self.theta
        return enough and sure and self.ratio(effect) >= math.log((1 - MISS_ERROR) / self.alpha)

    def acquits(self, effect: float) -> bool:
        """Whether an effect of θ is excluded in both directions: by Λ, or, for small but certain effects, by t."""
        if self.pairs < LEAST_PAIRS_ALIKE:
            return False
        excluded = abs(effect) + self.noise.quantile(MISS_ERROR / self.looks) * self.error < self.theta
        return excluded or self.ratio(abs(effect)) <= math.log(MISS_ERROR / (1 - self.alpha))

    @property
    def smallest(self) -> float:
        by_ratio = self.theta / 2 + self.error**2 / self.theta * math.log((1 - MISS_ERROR) / self.alpha)
        by_student = self.noise.quantile(self.alpha_of_look) * self.error
        return max(self.theta, by_ratio, by_student) + self.noise.quantile(MISS_ERROR) * self.error


def _change(logarithm: float) -> str:
    return format_change(math.exp(logarithm))
