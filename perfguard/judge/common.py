"""What all cases of one timer class do together: the common shift m_s of a session s (docs/judging.md).

`y_cs = μ_c + β·m_s + noise`, in logarithms of µs. The shifts of the stored sessions are learnt from cases that were
recorded side by side; β is 1 only where removing them is shown to pay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfguard.judge.statistics import (
    MIN_SESSIONS,
    ROUNDING_SIGMA,
    UNLEARNT,
    History,
    Prior,
    fit_prior,
    remember,
)
from perfguard.units import format_change, format_percent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Logs = npt.NDArray[np.float64]

LEAST_CASES = 10  # recorded side by side; fewer say too little about the machine
LEAST_GAIN = 0.2  # of the variance between sessions, from which removing the common shift pays


@dataclass(frozen=True)
class Recording:
    """What cases of one timer class, recorded in the same processes, have in common.

    Attributes:
        shifts: m_s of the stored sessions, oldest first; empty where they cannot be told.
        gain: share of the variance that predicting a session by its other cases removes; negative: it adds.
        prior: noise of these cases once the shifts are removed.
    """

    shifts: tuple[float, ...] = ()
    gain: float = 0.0
    prior: Prior = UNLEARNT

    @property
    def removed(self) -> bool:
        """β: whether common shifts are removed before judging."""
        return self.gain >= LEAST_GAIN

    @property
    def deviation(self) -> float:
        """Standard deviation of the common shift between sessions, 0 where it is unknown; a wild session aside."""
        return math.sqrt(remember([math.exp(shift) for shift in self.shifts]).variance) if self.shifts else 0.0

    def history(self, sessions: Sequence[float]) -> History:
        """A case's memory of `sessions` (µs) as it is judged: without the common shifts where β is 1."""
        return remember(sessions, self.shifts if self.removed else ())


def learn_recording(cases: Sequence[Sequence[float]]) -> Recording:
    """The common shifts of cases recorded side by side, and whether removing them pays.

    Twice m_s = median_c(y_cs − μ_c), μ_c = median_s(y_cs − m_s). The gain is that of prediction: each session in
    turn is left out, μ and m are learnt from the others, and every case of the session left out is compared with
    its μ, with and without the median shift of the *other* cases removed, as a judged session would be. It is
    averaged over the cases as a mean logarithm of variance ratios, so that the loudest case does not decide.

    Args:
        cases: session values (µs) of each case; all of one length, sessions in the same order.
    """
    if len(cases) < LEAST_CASES or len(cases[0]) < MIN_SESSIONS:
        return Recording()
    import numpy as np

    logs = np.log(np.asarray(cases, dtype=np.float64))
    count = logs.shape[1]
    plain, removed = np.empty_like(logs), np.empty_like(logs)
    for left_out in range(count):
        rest = np.delete(logs, left_out, axis=1)
        plain[:, left_out] = logs[:, left_out] - np.median(rest, axis=1)
        _, centres = _common(rest)
        moved = logs[:, left_out] - centres
        removed[:, left_out] = moved - _medians_of_others(moved)
    least = ROUNDING_SIGMA**2
    before, after = (np.maximum((errors**2).mean(axis=1), least) for errors in (plain, removed))
    shifts = tuple(float(m) for m in _common(logs)[0])
    return Recording(
        shifts=shifts,
        gain=1 - math.exp(float(np.log(after / before).mean())),
        prior=fit_prior([remember(sessions, shifts) for sessions in cases]),
    )


def _common(logs: Logs) -> tuple[Logs, Logs]:
    """m_s and μ_c of cases x sessions."""
    import numpy as np

    shifts = np.zeros(logs.shape[1])
    for _ in range(2):
        centres = np.median(logs - shifts, axis=1)
        shifts = np.median(logs - centres[:, None], axis=0)
    return shifts, np.median(logs - shifts, axis=1)


def _medians_of_others(values: Logs) -> Logs:
    """For each of `values` the median of all others, from one sort."""
    import numpy as np

    order = np.sort(values)
    rank = np.searchsorted(order, values)  # of equal values any one may be left out
    others = values.size - 1
    low, high = (others - 1) // 2, others // 2
    medians: Logs = (order[low + (rank <= low)] + order[high + (rank <= high)]) / 2
    return medians


@dataclass(frozen=True)
class Common:
    """What one session did to the other cases of a reading's timer class, as this reading is judged with it.

    Attributes:
        shift: m̂, the median over `cases` of them of y − μ, as a logarithm; `error` its standard error.
        usual: the largest shift that is no alarm.
        recording: of the reading's stored sessions; says whether the shift is removed.
        seen: variance of the cases round the shift, by their median deviation.
        expected: the same as their noise alone makes it likely.
    """

    shift: float
    error: float
    usual: float
    cases: int
    recording: Recording = Recording()
    seen: float = 0.0
    expected: float = 0.0

    @property
    def alarm(self) -> bool:
        """Whether the machine, not the cases, is the likelier cause of what this session shows."""
        return abs(self.shift) > self.usual

    @property
    def offset(self) -> float:
        """β·m̂."""
        return self.shift if self.recording.removed else 0.0

    def __str__(self) -> str:
        return (
            f"ENV: {self.cases} cases of this timer moved together by {format_change(math.exp(self.shift))}, "
            f"more than the usual {format_percent(self.usual)}; look at clocks, throttling and other processes, then "
            "run again"
        )
