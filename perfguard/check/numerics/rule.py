"""The rule for a candidate's tensor: errors of candidate and eager, both relative to the oracle.

With e_c = candidate - oracle and e_e = eager - oracle, in float64:

    RMSE(e_c)   <= k·RMSE(e_e) + phi·u·RMS(oracle)                                          whole tensor
    RMSE_g(e_c) <= k·(1 + sqrt(2 ln G / n_g))·max(RMSE_g(e_e), rho·RMS_g(oracle), hard_g) + phi·u·RMS_g(oracle)

for each of G groups of n_g elements; rho is the median over groups of RMSE_g(e_e)/RMS_g(oracle). The root is
the allowance for the worst of G groups, and rho protects groups in which eager is exact by luck. Eager's error is also
small by luck in a few numbers (`Allowance.least`, `Allowance.of_few`). The elements of a group may share one error, as
in the gradient of a weight that few tokens reached. In 16 bits, hard_g is therefore eager's error in its hardest groups
(HARD, HARD_SUMS). In float32 and wider, n_g then counts as 1, and eager's error as that of all groups of about the same
size. In an argument's gradient, eager's error counts as at least `Allowance.residue` with n_g = 1, and in a gradient
that vanishes as at least `Allowance.vanishing` of the largest gradient.
Integers and bools must be equal, unless the reference's depend on which of equal elements it chooses. 8-bit floats
are compared as codes, in `perfguard.check.numerics.fp8_codes`. See docs/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch

from perfguard.check.numerics.hints import constant_factor, factor_text
from perfguard.check.numerics.sums import (
    ROUNDING,
    Groups,
    Sums,
    decibels,
    dtype_name,
    effective_number,
    first_true,
    kinds,
    real_numbers,
    rmse,
    sum_groups,
)
from perfguard.model.call import Tolerance
from perfguard.model.records import Accuracy
from perfguard.tensors.snapshot import bits

Source = Literal["argument", "parameter"]  # of a gradient

PHI = 0.25
GRADIENT_MULTIPLE = 3.0  # The least k of gradients.
FEW = 16


@dataclass(frozen=True)
class Allowance:
    """The constants of the rule for one dtype; all but `multiple` count roundings u of the dtype.

    Attributes:
        multiple: k.
        least: eager's least error where it is small by luck or cannot be seen. In float32 and wider, where a result may
            be one number or have one error, it is that of a long sum and always counts. In 16 bits it is a share of the
            result (55.6 dB), and counts if the oracle is no finer than the output.
        of_few: the same in 16 bits, whose results are rounded one by one, if fewer than FEW elements of one size weigh
            as much as all. Times k it is the relative error that torch.testing allows by default.
        residue: eager's least error in an argument's gradient, in roundings of the whole tensor. What is left where
            terms cancel, as in the row of attention that sees one key, has the roundings of terms as large as the
            largest row, which is about 3.5 times the tensor's RMS: k times this is 3.5 times `least` in 16 bits.
        vanishing: eager's least error in a gradient that vanishes as a whole, in roundings of the call's largest
            gradient: where attention sees one key, that of the queries. The terms that cancel may be a product of
            several factors, and larger than any gradient.
    """

    multiple: float
    least: float
    of_few: float
    residue: float
    vanishing: float


ALLOWANCES: dict[torch.dtype, Allowance] = {
    torch.bfloat16: Allowance(2.0, 0.42, of_few=2.0, residue=0.5, vanishing=8.0),
    torch.float16: Allowance(2.0, 0.42, of_few=1.0, residue=0.5, vanishing=8.0),
    torch.float32: Allowance(4.0, 16.0, of_few=0.0, residue=2.0, vanishing=64.0),
    torch.float64: Allowance(4.0, 16.0, of_few=0.0, residue=2.0, vanishing=64.0),
}
#: The share of groups that are hard: eager's error in every group counts as at least that of its least hard one.
HARD = 0.2
#: The same in a parameter's gradient. Its rows have the error of few tokens, or of few kinds of tokens, so that one row
#: in thousands has three to five times the usual error. In an equally good candidate it is another row.
HARD_SUMS = 0.01
FEWEST_HARD = 10  # The least number of hard groups in a parameter's gradient, unless their share exceeds HARD.
#: Groups whose RMS differs by at most this factor are of about the same size.
LIKE_SIZE = 16
_MOST_K = 1e6  # Above this k, eager's error is too small for a multiple of it to be meaningful.
_SCALED = "looks scaled by"
#: The text before the tolerance that would admit a result. An error with a pattern gets none.
LOOSER = "; if it is to be as loose: "


def compare(
    candidate: torch.Tensor,
    eager: torch.Tensor,
    oracle: torch.Tensor,
    *,
    name: str,
    tolerance: Tolerance | None = None,
    gradient_of: Source | None = None,
    least: float = 0.0,
    close: Sequence[torch.Tensor] = (),
) -> Accuracy:
    """Judge one tensor by the rule.

    Args:
        candidate, eager, oracle: same shape, any strides, one device; candidate and eager share a dtype, the
            oracle's is wider if it is floating. 8-bit floats belong to `fp8_codes.compare_codes`.
        name: the tensor's name, e.g. "output 0", with which a problem begins.
        tolerance: overrides k, phi, the grouping and the least SQNR.
        gradient_of: the kind of input that the tensor is a gradient of, if it is one; k is then at least 3. An
            argument's gradient may hold the residue of terms of the whole tensor's size that cancel. The rows of a
            parameter's gradient may have few errors.
        least: the least RMSE of eager.
        close: the oracle on inputs that are slightly off. If it jumps, as the gradient of a ReLU does, the candidate
            may be on the other side.
    """
    problem = unlike_metadata(candidate, eager, name)
    if problem or candidate.numel() == 0:
        return Accuracy(output=name, dtype=dtype_name(candidate), problem=problem)
    candidate, eager, oracle = map(real_numbers, (candidate, eager, oracle))
    if candidate.dtype not in ALLOWANCES:
        return compare_exactly(candidate, eager, name=name)
    return compare_by_rule(candidate, eager, oracle, name, tolerance, gradient_of, least, close)


def unlike_metadata(candidate: torch.Tensor, eager: torch.Tensor, name: str) -> str:
    """A problem that names both values if shape, dtype or device differ, else ''."""
    if candidate.shape != eager.shape:
        return f"{name}: shape is {list(candidate.shape)}, the reference's is {list(eager.shape)}"
    if candidate.dtype != eager.dtype:
        return f"{name}: dtype is {dtype_name(candidate)}, the reference's is {dtype_name(eager)}"
    if candidate.device != eager.device:
        return f"{name}: is on {candidate.device}, the reference's on {eager.device}"
    return ""


def compare_exactly(candidate: torch.Tensor, eager: torch.Tensor, *, name: str) -> Accuracy:
    """Judge integers, bools and dtypes without arithmetic: every element must have the same bits."""
    unequal = bits(candidate) != bits(eager)
    wrong = int(unequal.sum())
    if not wrong:
        return Accuracy(output=name, dtype=dtype_name(candidate))
    index = first_true(unequal)
    among = ""
    if unequal.ndim > 1:
        rows = unequal.flatten(0, -2).any(-1)
        among = f", in {int(rows.sum())} of {len(rows)} rows ({100 * float(rows.float().mean()):.2g} %)"
    got, want = (str(t[tuple(index)].item()) for t in (candidate, eager))
    return Accuracy(
        output=name,
        dtype=dtype_name(candidate),
        worst_index=index,
        got=got,
        want=want,
        problem=f"{name}: {wrong} of {candidate.numel()} elements differ from the reference's{among}, "
        f"the first at {index}: got {got}, want {want}",
    )


def compare_by_rule(
    candidate: torch.Tensor,
    eager: torch.Tensor,
    oracle: torch.Tensor,
    name: str,
    tolerance: Tolerance | None,
    gradient_of: Source | None,
    least: float,
    close: Sequence[torch.Tensor],
) -> Accuracy:
    """Judge by the rule's two lines, with a text on a failure."""
    groups = Groups(candidate.shape, tolerance.group_dim if tolerance else None)
    allowance = ALLOWANCES[candidate.dtype]
    k = max(allowance.multiple, GRADIENT_MULTIPLE if gradient_of else 0.0)
    k = tolerance.k if tolerance and tolerance.k is not None else k
    u = ROUNDING[candidate.dtype]
    slack = u * (tolerance.phi if tolerance and tolerance.phi is not None else PHI)
    total = sum_groups(candidate, eager, oracle, groups)

    rms, rmse, eager_rmse = total.roots()
    eager_rmse = eager_rmse.clamp(min=least)
    wide = u <= ROUNDING[torch.float32]
    if wide or torch.finfo(oracle.dtype).eps >= torch.finfo(candidate.dtype).eps:
        # Every fault in float64 is larger than roundings of the whole tensor.
        rounded = rms.square().mean().sqrt() if candidate.dtype == torch.float64 else rms
        eager_rmse = eager_rmse.maximum(allowance.least * u * rounded)
    least_of_few = allowance.of_few * u
    few = effective_number(total.oracle, total.fourth) < FEW
    by_luck = few * least_of_few * rms
    hard = hard_share(len(rms)) if gradient_of == "parameter" else HARD
    factor = _factor(eager_rmse, by_luck, rms, total.count, None if wide else hard)
    if gradient_of == "argument":
        largest = 1 + math.sqrt(2 * math.log(len(rms)))  # The residue of a row is one error.
        factor = factor.maximum(largest * allowance.residue * u * rms.square().mean().sqrt())
    draws = (sum_groups(real_numbers(other), eager, oracle, groups).candidate.nan_to_num(0.0) for other in close)
    moved = torch.stack([torch.zeros_like(total.candidate), *draws])  # squares by draw and group
    limits = k * factor + slack * rms + (moved.amax(0) / total.count).sqrt()
    excess = torch.where(rmse > 0, rmse / limits, 0.0)  # with a limit of 0, any error is infinitely large
    worst = int(excess.argmax())

    elements = candidate.numel()
    all_rms, all_rmse, all_eager = (
        math.sqrt(float(squares.sum()) / elements)
        for squares in (total.oracle, total.candidate, eager_rmse.square() * total.count)
    )
    if float(effective_number(total.oracle.sum(), total.fourth.sum())) < FEW:
        all_eager = max(all_eager, least_of_few * all_rms)
    limit = k * all_eager + slack * all_rms + math.sqrt(float(moved.sum(1).max()) / elements)
    sqnr = decibels(all_rms, all_rmse)

    unlike = int(total.unlike.sum())
    failed = ""
    if unlike:
        worst = int((total.unlike > 0).int().argmax())
        failed = f"{unlike} of {elements} elements are NaN or Inf unlike the oracle's"
    elif all_rmse > limit:
        failed = f"RMSE {all_rmse:.3g} (eager's {all_eager:.3g}), limit {limit:.3g}, worst in {groups.label(worst)}"
    elif bool(excess[worst] > 1):
        failed = (
            f"RMSE {float(rmse[worst]):.3g} (eager's {float(eager_rmse[worst]):.3g}) in {groups.label(worst)}, "
            f"limit {float(limits[worst]):.3g} (the whole tensor passes)"
        )
    accuracy = Accuracy(
        output=name,
        dtype=dtype_name(candidate),
        sqnr_db=sqnr,
        error_ratio=all_rmse / all_eager if all_eager > 0 else None,
        rmse=all_rmse,
        limit=limit,
        worst_group=groups.label(worst),
    )
    if not failed:
        return accuracy
    explained = _explain(accuracy, failed, groups, worst, (candidate, eager, oracle), total)
    right = math.sqrt(u)  # half of the digits
    far = unlike or all_rmse > right * all_rms or float(rmse[worst]) > right * float(rms[worst])
    if far or _SCALED in explained.problem:
        return explained
    whole = tuple(torch.tensor([value]) for value in (all_rmse, all_eager, all_rms))
    parts = [(rmse, factor, rms), whole]
    admits = _admitting(parts, k, slack, u)
    return msgspec.structs.replace(explained, problem=explained.problem + admits)


def hard_share(groups: int) -> float:
    """The share of a parameter's gradient's groups that counts as hard, by their number."""
    return min(HARD, max(HARD_SUMS, FEWEST_HARD / groups))


def _factor(
    eager_rmse: torch.Tensor, least: torch.Tensor, rms: torch.Tensor, count: torch.Tensor, hard: float | None
) -> torch.Tensor:
    """The factor of k in the limit of each group.

    Args:
        least: the least error of eager in each group.
        hard: the share of groups that counts as hard. None: the elements of each group count as one error.
    """
    likely = eager_rmse.maximum(least)
    nonzero = rms > 0
    if bool(nonzero.any()):
        likely = likely.maximum((eager_rmse[nonzero] / rms[nonzero]).median() * rms)
        if hard is not None:
            likely = likely.maximum(of_hard_groups(eager_rmse, rms, hard))
    most = 2 * math.log(len(rms))
    factor = (1 + (most / count).sqrt()) * likely
    return factor.maximum((1 + math.sqrt(most)) * _of_like_size(likely, rms, count)) if hard is None else factor


def of_hard_groups(error: torch.Tensor, rms: torch.Tensor, hard: float = HARD) -> torch.Tensor:
    """The error that the share `hard` of all groups exceeds, in absolute terms or relative to the group's own RMS,
    whichever is less: groups that are hard because they are small do not widen the limits of others. Groups of RMS 0
    do not count."""
    nonzero = rms > 0
    if not bool(nonzero.any()):
        return torch.zeros_like(rms)
    share = error[nonzero] / rms[nonzero]
    return _quantile(error[nonzero], 1 - hard).minimum(_quantile(share, 1 - hard) * rms)


def _quantile(values: torch.Tensor, share: float) -> torch.Tensor:
    """A quantile of any number of values; `torch.quantile` refuses more than 2^24."""
    return values.kthvalue(max(1, math.ceil(share * len(values)))).values


def _of_like_size(rmse: torch.Tensor, rms: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """The RMSE over all groups of about the same size, for each group."""
    order = rms.argsort()
    sizes = rms[order].contiguous()
    first, end = torch.searchsorted(sizes, rms / LIKE_SIZE), torch.searchsorted(sizes, rms * LIKE_SIZE, right=True)

    def summed(values: torch.Tensor) -> torch.Tensor:
        sums = torch.cat([values.new_zeros(1), values[order].cumsum(0)])
        return sums[end] - sums[first]

    return (summed(rmse.square() * count).clamp_min(0) / summed(count)).sqrt()


def _explain(
    accuracy: Accuracy,
    failed: str,
    groups: Groups,
    group: int,
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    total: Sums,
) -> Accuracy:
    """Add the worst element of the group, the SQNR, and a constant factor if there is one."""
    candidate, eager, oracle = (groups.select(t, group) for t in tensors)
    error = (candidate.double() - oracle.double()).abs()
    unlike = kinds(candidate.double()) != kinds(oracle.to(candidate.dtype).double())
    element = int(torch.where(unlike, torch.inf, error.nan_to_num(0.0, 0.0)).argmax())
    index = groups.index(group, element)
    got, want, by_eager = (f"{float(t[element]):.6g}" for t in (candidate, oracle, eager))
    words = [f"{accuracy.output}: {failed}", f"worst at {index}: got {got}, want {want} (eager {by_eager})"]
    if accuracy.sqnr_db is not None:
        words.append(f"SQNR {accuracy.sqnr_db:.1f} dB")
    if factor := constant_factor(total):
        words.append(f"{_SCALED} {factor_text(factor)} (its cosine of 1.00 hides that)")
    elif factor := constant_factor(total, group):
        words.append(f"{groups.label(group)} {_SCALED} {factor_text(factor)}")
    return msgspec.structs.replace(accuracy, worst_index=index, got=got, want=want, problem="; ".join(words))


def _admitting(parts: Sequence[tuple[torch.Tensor, ...]], k: float, slack: float, u: float) -> str:
    """The tolerance that would admit a result that breaks the rule but is right in half of its digits, as text.

    Args:
        parts: for the groups, and for the whole tensor: RMSE of the candidate, the factor of k, RMS of the oracle. All
            have to satisfy RMSE <= k·factor + phi·u·RMS.
        k, slack: the k and the phi·u of the failed comparison.
        u: the relative error of one rounding to the output's dtype.
    """

    def most(values: torch.Tensor) -> float:
        return float(values.nan_to_num(0.0, math.inf, 0.0).max())  # 0 / 0, from a part without error, counts as 0

    name, value = "k", max(most((rmse - slack * rms) / factor) for rmse, factor, rms in parts)
    if value >= _MOST_K:
        name, value = "phi", max(most((rmse - k * factor) / (u * rms)) for rmse, factor, rms in parts)
    if not 0 < value < math.inf:
        return ""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    least = f"{(math.floor(value / step) + 1) * step:.2g}"  # rounded up
    return f"{LOOSER}Tolerance({name}={least}, reason='…')"


def judge_missing(name: str, wanted: torch.Tensor | None, candidate: torch.Tensor | None) -> Accuracy:
    """Judge a gradient that at most one side has, which is right if it is zero."""
    there = wanted if candidate is None else candidate
    rms, problem = 0.0 if there is None else rmse(there), ""
    if rms and candidate is None:
        problem = f"{name}: no gradient for {name.removeprefix('gradient of ')}; the reference's RMS is {rms:.3g}"
    elif rms:
        problem = f"{name}: RMS {rms:.3g}, but the reference has no gradient there"
    return Accuracy(output=name, dtype="none" if there is None else dtype_name(there), problem=problem)
