"""Rates with exact intervals for clustered outcomes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable

from msgspec import Struct

ERROR = 0.05  # for 95 % intervals


class Rate(Struct, frozen=True):
    """`hits` of `trials` in `clusters` sessions (or suites), with the interval [low, high] of the true rate."""

    hits: int
    trials: int
    clusters: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share of hits; 0 without trials."""
        return self.hits / self.trials if self.trials else 0.0


def clustered_rate(outcomes: Iterable[tuple[Hashable, int, int]], most_trials: float = math.inf) -> Rate:
    """The rate over (cluster, hits, trials); the same cluster may come many times.

    The interval is Clopper and Pearson's on the effective number of trials n / deff, where deff is the variance of
    the rate between clusters over that of independent trials, at least 1 (Korn and Graubard, "Confidence intervals
    for proportions with small expected number of positive counts", Survey Methodology 24, 1998). If all trials hit or
    none does, deff is unknown, and each cluster counts as one trial.

    Args:
        most_trials: upper limit of the effective number of trials, for clusters that share data.
    """
    hits: dict[Hashable, int] = defaultdict(int)
    trials: dict[Hashable, int] = defaultdict(int)
    for cluster, hit, tried in outcomes:
        hits[cluster] += hit
        trials[cluster] += tried
    found, count, clusters = sum(hits.values()), sum(trials.values()), sum(1 for tried in trials.values() if tried)
    if count == 0:
        return Rate(0, 0, 0, 0.0, 1.0)
    rate = found / count
    effective = float(clusters)
    if 0 < found < count and clusters > 1:
        between = sum((hits[name] - rate * trials[name]) ** 2 for name in trials) / count**2
        deff = between * clusters / (clusters - 1) / (rate * (1 - rate) / count)
        effective = count / max(deff, 1.0)
    effective = min(effective, most_trials)
    low, high = exact_interval(rate * effective, effective)
    return Rate(found, count, clusters, low, high)


def exact_interval(hits: float, trials: float) -> tuple[float, float]:
    """Clopper and Pearson's interval, from quantiles of the beta distribution, so that counts can be fractions."""
    from scipy import stats

    low = 0.0 if hits <= 0 else float(stats.beta.ppf(ERROR / 2, hits, trials - hits + 1))
    high = 1.0 if hits >= trials else float(stats.beta.ppf(1 - ERROR / 2, hits + 1, trials - hits))
    return low, high
