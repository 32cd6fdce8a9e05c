"""The tolerance that would admit a result which breaks the rule but is right in half of its digits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch

from perfguard.model.records import Accuracy

_MOST_K = 1e6  # beyond, eager's error is too small for a multiple of it to be meaningful

Part = tuple[torch.Tensor, ...]  # RMSE of the candidate, the factor of k, RMS of the oracle: of groups or the whole


def admitted(accuracy: Accuracy, parts: Sequence[Part], k: float, slack: float, u: float) -> Accuracy:
    """`accuracy`, its problem extended by the tolerance that all `parts` pass: RMSE <= k * floor + phi * u * RMS.

    Args:
        k, slack: of the failed comparison; the slack is phi * u.
        u: relative error of one rounding to the output's dtype.
    """
    needed_k = max(_most((rmse - slack * rms) / floor) for rmse, floor, rms in parts)
    needed_phi = max(_most((rmse - k * floor) / (u * rms)) for rmse, floor, rms in parts)
    name, value = ("k", needed_k) if needed_k < _MOST_K else ("phi", needed_phi)
    if not 0 < value < math.inf:
        return accuracy
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    least = f"{(math.floor(value / step) + 1) * step:.2g}"  # rounded up
    problem = f"{accuracy.problem}; if it is to be as loose: Tolerance({name}={least}, reason='…')"
    return msgspec.structs.replace(accuracy, problem=problem)


def _most(values: torch.Tensor) -> float:
    """The largest value; 0 / 0, from a part without error, counts as 0."""
    return float(values.nan_to_num(0.0, math.inf, 0.0).max())
