"""Verdicts of other gates on the same data, each comparing one session with another."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfguard.model.records import CaseResult, Reading
from perfguard.selfcheck.sample import primary

ERROR = 0.05
DO_BENCH = "do_bench_us"

Alarms = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pair:
    """One case in two sessions, with an injected `slowdown` (0.02: 2 %) of the later one."""

    before: CaseResult
    now: CaseResult
    slowdown: float


@dataclass(frozen=True)
class Rival:
    """A rule for one session against another. `decide` returns its alarm for each pair; None: readings are missing."""

    name: str
    decide: Callable[[Sequence[Pair]], Alarms | None]
    note: str = ""


def all_rivals() -> tuple[Rival, ...]:
    """Fixed gates, tests on the times of blocks, and gates on times of `do_bench`. All are one-sided, for slowdowns."""
    blocks = "of the times of blocks of one session against one, one-sided"
    return (
        Rival("fixed 5 % gate", lambda pairs: _gate(pairs, 0.05, "")),
        Rival("fixed 10 % gate", lambda pairs: _gate(pairs, 0.10, "")),
        Rival("Mann-Whitney p < 0.05", lambda pairs: _on_blocks(pairs, _mann_whitney), blocks),
        Rival("Welch t p < 0.05", lambda pairs: _on_blocks(pairs, _welch), blocks),
        Rival("do_bench, 5 % gate", lambda pairs: _gate(pairs, 0.05, DO_BENCH), "median of do_bench"),
        Rival("do_bench, 10 % gate", lambda pairs: _gate(pairs, 0.10, DO_BENCH), "median of do_bench"),
    )


def _gate(pairs: Sequence[Pair], threshold: float, metric: str) -> Alarms | None:
    ratios = []
    for pair in pairs:
        before, now = _reading(pair.before, metric), _reading(pair.now, metric)
        if before is None or now is None:
            return None
        ratios.append(_number(now) * (1 + pair.slowdown) / _number(before))
    return np.array(ratios) > 1 + threshold


def _reading(result: CaseResult, metric: str) -> Reading | None:
    return result.reading(metric) if metric else primary(result)


def _number(reading: Reading) -> float:
    assert isinstance(reading.value, int | float)
    return float(reading.value)


_Blocks = npt.NDArray[np.float64]  # pairs x blocks


def _on_blocks(pairs: Sequence[Pair], p_values: Callable[[_Blocks, _Blocks], npt.NDArray[np.float64]]) -> Alarms | None:
    """Test all pairs with equal numbers of blocks together: one at a time would take minutes."""
    alike: dict[tuple[int, int], list[tuple[int, list[float], list[float]]]] = defaultdict(list)
    for index, pair in enumerate(pairs):
        before, now = primary(pair.before), primary(pair.now)
        if before is None or now is None or min(len(before.blocks), len(now.blocks)) < 2:
            return None
        slowed = [block * (1 + pair.slowdown) for block in now.blocks]
        alike[len(before.blocks), len(slowed)].append((index, before.blocks, slowed))
    alarms = np.zeros(len(pairs), dtype=bool)
    for group in alike.values():
        indices = [index for index, _, _ in group]
        found = p_values(np.array([now for _, _, now in group]), np.array([before for _, before, _ in group]))
        alarms[indices] = found < ERROR
    return alarms


def _mann_whitney(now: _Blocks, before: _Blocks) -> npt.NDArray[np.float64]:
    from scipy import stats

    return np.asarray(stats.mannwhitneyu(now, before, alternative="greater", method="exact", axis=1).pvalue)


def _welch(now: _Blocks, before: _Blocks) -> npt.NDArray[np.float64]:
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # blocks without any spread: p is 0, or nan where alike
        return np.asarray(stats.ttest_ind(now, before, equal_var=False, alternative="greater", axis=1).pvalue)
