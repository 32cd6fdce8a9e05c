"""The rule for a candidate's tensor: errors of candidate and eager, both relative to the oracle.

With e_c = candidate - oracle and e_e = eager - oracle, in float64:

    RMSE(e_c)   <= k·RMSE(e_e) + phi·u·RMS(oracle)                                          whole tensor
    RMSE_g(e_c) <= k·(1 + sqrt(2 ln G / n_g))·max(RMSE_g(e_e), rho·RMS_g(oracle)) + phi·u·RMS_g(oracle)

for each of G groups of n_g elements; rho is the median over groups of RMSE_g(e_e)/RMS_g(oracle). The root is
the allowance for the worst of G groups, and rho protects groups where eager is exact by luck. Integers and
bools must be equal. 8-bit floats are compared as codes, in `perfguard.check.numerics.fp8_codes`. See docs/numerics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import torch

from perfguard.check.numerics.loose_rule import admitted
from perfguard.model.call import Tolerance
from perfguard.model.records import Accuracy
from perfguard.tensors.bits import bits

PHI = 0.25
#: u, the largest relative error of one rounding (the table of the rule)
ROUNDING: dict[torch.dtype, float] = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e4m3fnuz: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
    torch.float8_e5m2fnuz: 2.0**-3,
}
#: k; gradients have at least GRADIENT_MULTIPLE
MULTIPLE: dict[torch.dtype, float] = {
    torch.bfloat16: 2.0,
    torch.float16: 2.0,
    torch.float32: 4.0,
    torch.float64: 4.0,
}
GRADIENT_MULTIPLE = 3.0
#: If the oracle is no finer than the output, it cannot show eager's error, which then counts as at least this many
#: roundings: in 16 bits that of the result (0.42 u are bf16's 55.6 dB), otherwise those of a long sum.
LEAST_ROUNDINGS: dict[torch.dtype, float] = {
    torch.bfloat16: 0.42,
    torch.float16: 0.42,
    torch.float32: 16.0,
    torch.float64: 16.0,
}
#: Shorter rows are joined: over a few elements the two errors differ by chance.
SHORTEST_GROUP = 32
CHUNK = 1 << 23  # elements converted to float64 at a time
CPU_CHUNK = 1 << 17  # the same on a CPU, to stay in its cache
FINITE, NAN = 0, 2  # kinds of values; an infinity is its sign


@dataclass(frozen=True)
class Groups:
    """The division of a tensor's elements into groups.

    Each row (all dimensions but the last are rows) is a group. Rows under 32 elements, vectors and scalars are divided
    into runs of at least 32 neighbouring elements, in whole rows; the remainder joins the last run. With `dim`, each
    index along that dimension is a group instead, in tensors that have it and at least one other.
    """

    shape: torch.Size
    dim: int | None = None

    @property
    def _chosen(self) -> int | None:
        if self.dim is None or len(self.shape) < 2 or not -len(self.shape) <= self.dim < len(self.shape):
            return None
        return self.dim % len(self.shape)

    @property
    def _length(self) -> int:
        row = max(1, self.shape[-1]) if len(self.shape) > 1 else 1
        return row * math.ceil(SHORTEST_GROUP / row) if row < SHORTEST_GROUP else row

    @property
    def number(self) -> int:
        """Number of groups; at least one."""
        if self._chosen is not None:
            return self.shape[self._chosen]
        return max(1, self.shape.numel() // self._length)

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The groups as rows of one or two matrices, in order."""
        if self._chosen is not None:
            return [tensor.movedim(self._chosen, 0).reshape(self.number, -1)]
        if self.number * self._length == tensor.numel():
            return [tensor.reshape(self.number, self._length)]
        flat, head = tensor.reshape(-1), (self.number - 1) * self._length
        return [part for part in (flat[:head].view(-1, self._length), flat[head:].view(1, -1)) if len(part)]

    def select(self, tensor: torch.Tensor, group: int) -> torch.Tensor:
        """The elements of one group, (n_g,)."""
        first, *rest = self.split(tensor)
        return first[group] if group < len(first) else rest[0][group - len(first)]

    def index(self, group: int, element: int) -> list[int]:
        """Index in the tensor of element `element` of a group."""
        if self._chosen is None:
            return unravel(group * self._length + element, self.shape)
        others = [size for dim, size in enumerate(self.shape) if dim != self._chosen]
        index = unravel(element, torch.Size(others))
        return [*index[: self._chosen], group, *index[self._chosen :]]

    def label(self, group: int) -> str:
        """`row 3 of 64`, `elements 32 to 63`, `index 3 of 16 along dimension 0`."""
        if self._chosen is not None:
            return f"index {group} of {self.number} along dimension {self._chosen}"
        if len(self.shape) < 2 or self._length != self.shape[-1]:
            last = self.shape.numel() if group == self.number - 1 else (group + 1) * self._length
            return f"elements {group * self._length} to {last - 1}"
        row = unravel(group, self.shape[:-1])
        return f"row {group} of {self.number}" if len(row) == 1 else f"row {row}"


@dataclass(frozen=True)
class Sums:
    """Sums per group, float64, over the elements that are finite in candidate and oracle."""

    count: torch.Tensor  # all elements
    candidate: torch.Tensor  # e_c squared
    eager: torch.Tensor  # e_e squared
    oracle: torch.Tensor  # oracle squared
    cross: torch.Tensor  # e_c times oracle
    unlike: torch.Tensor  # number of elements that are NaN or Inf unlike the oracle cast to the output's dtype


def compare(
    candidate: torch.Tensor,
    eager: torch.Tensor,
    oracle: torch.Tensor,
    *,
    name: str,
    tolerance: Tolerance | None = None,
    gradient: bool = False,
) -> Accuracy:
    """Judge one tensor by the rule.

    Args:
        candidate, eager, oracle: same shape, any strides, one device; candidate and eager share a dtype, the
            oracle's is wider if it is floating. 8-bit floats belong to `fp8_codes.compare_codes`.
        name: of the tensor, e.g. "output 0"; a problem begins with it.
        tolerance: overrides k, phi, the grouping and the least SQNR.
        gradient: whether the tensor is a gradient, for which k is at least 3.
    """
    problem = unlike_metadata(candidate, eager, name)
    if problem or candidate.numel() == 0:
        return Accuracy(output=name, dtype=dtype_name(candidate), problem=problem)
    if candidate.is_complex():
        candidate, eager, oracle = (torch.view_as_real(t.resolve_conj()) for t in (candidate, eager, oracle))
    if candidate.dtype not in MULTIPLE:
        return compare_exactly(candidate, eager, name=name)
    least_k = GRADIENT_MULTIPLE if gradient else 0.0
    return compare_by_rule(candidate, eager, oracle, name, tolerance, max(MULTIPLE[candidate.dtype], least_k))


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
    k: float,
) -> Accuracy:
    """Judge by the rule's two lines and the least SQNR, with a text on a failure."""
    groups = Groups(candidate.shape, tolerance.group_dim if tolerance else None)
    k = tolerance.k if tolerance and tolerance.k is not None else k
    u = ROUNDING[candidate.dtype]
    slack = u * (tolerance.phi if tolerance and tolerance.phi is not None else PHI)
    total = sum_groups(candidate, eager, oracle, groups)

    rms = (total.oracle / total.count).sqrt()
    eager_rmse, rmse = (total.eager / total.count).sqrt(), (total.candidate / total.count).sqrt()
    if torch.finfo(oracle.dtype).eps >= torch.finfo(candidate.dtype).eps:
        eager_rmse = eager_rmse.maximum(LEAST_ROUNDINGS[candidate.dtype] * u * rms)
    nonzero = rms > 0
    rho = (eager_rmse[nonzero] / rms[nonzero]).median() if bool(nonzero.any()) else rms.new_zeros(())
    allowance = 1 + (2 * math.log(groups.number) / total.count).sqrt()
    limits = k * allowance * eager_rmse.maximum(rho * rms) + slack * rms
    excess = torch.where(rmse > 0, rmse / limits, 0.0)  # with a limit of 0, any error is infinitely large
    worst = int(excess.argmax())

    elements = candidate.numel()
    all_rms, all_rmse, all_eager = (
        math.sqrt(float(squares.sum()) / elements)
        for squares in (total.oracle, total.candidate, eager_rmse.square() * total.count)
    )
    limit = k * all_eager + slack * all_rms
    sqnr = 20 * math.log10(all_rms / all_rmse) if all_rms > 0 and all_rmse > 0 else None
    least_sqnr = tolerance.min_sqnr_db if tolerance else None

    unlike = int(total.unlike.sum())
    if unlike:
        worst = int((total.unlike > 0).int().argmax())
        failed = f"{unlike} of {elements} elements are NaN or Inf unlike the oracle's"
    elif all_rmse > limit:
        failed = f"RMSE {all_rmse:.3g} (eager's {all_eager:.3g}), limit {limit:.3g}, worst in {groups.label(worst)}"
    elif bool(excess[worst] > 1):
        failed = (
            f"RMSE {float(rmse[worst]):.3g} (eager's {float(eager_rmse[worst]):.3g}) in {groups.label(worst)}, "
            f"limit {float(limits[worst]):.3g} "
            f"(the whole tensor passes)"
        )
    elif least_sqnr is not None and sqnr is not None and sqnr < least_sqnr:
        failed = f"SQNR under the tolerance's {least_sqnr:g} dB, worst in {groups.label(worst)}"
    else:
        failed = ""
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
    told = _explain(accuracy, failed, groups, worst, (candidate, eager, oracle), total)
    right = math.sqrt(u)  # half of the digits
    if unlike or all_rmse > right * all_rms or float(rmse[worst]) > right * float(rms[worst]):
        return told
    floors = allowance * eager_rmse.maximum(rho * rms)
    whole = tuple(torch.tensor([value]) for value in (all_rmse, all_eager, all_rms))
    return admitted(told, [(rmse, floors, rms), whole], k, slack, u)


def sum_groups(candidate: torch.Tensor, eager: torch.Tensor, oracle: torch.Tensor, groups: Groups) -> Sums:
    """The sums of the rule, computed in pieces on the tensors' device."""
    parts: list[list[torch.Tensor]] = []
    for matrices in zip(*(groups.split(t) for t in (candidate, eager, oracle)), strict=True):
        number, length = matrices[0].shape
        chunk = CPU_CHUNK if matrices[0].is_cpu else CHUNK
        step = max(1, chunk // max(1, length))
        for top in range(0, number, step):
            pieces = [
                _sum_piece(*(matrix[top : top + step, left : left + chunk] for matrix in matrices))
                for left in range(0, length, chunk)
            ]
            parts.append([torch.stack(column).sum(0) for column in zip(*pieces, strict=True)])
    return Sums(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _sum_piece(candidate: torch.Tensor, eager: torch.Tensor, oracle: torch.Tensor) -> list[torch.Tensor]:
    c, e, o = candidate.double(), eager.double(), oracle.double()
    count = torch.full((c.shape[0],), float(c.shape[1]), dtype=torch.float64, device=c.device)
    unlike = torch.zeros_like(count)
    e_c, e_e = c - o, e - o
    squares = [(e_c * e_c).sum(1), (e_e * e_e).sum(1), (o * o).sum(1), (e_c * o).sum(1)]
    fits = o.abs().amax() <= torch.finfo(candidate.dtype).max
    if bool(fits & torch.stack(squares).isfinite().all()):
        return [count, *squares, unlike]
    # Some elements are not finite, so the same sums are computed without them.
    unlike += (kinds(c) != kinds(oracle.to(candidate.dtype).double())).sum(1)
    usable = c.isfinite() & o.isfinite()
    o = torch.where(usable, o, 0.0)
    e_c = torch.where(usable, c - o, 0.0)
    e_e = torch.where(usable & e.isfinite(), e - o, 0.0)  # eager alone may overflow
    return [count, (e_c * e_c).sum(1), (e_e * e_e).sum(1), (o * o).sum(1), (e_c * o).sum(1), unlike]


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
    factor = constant_factor(total)
    if factor:
        words.append(f"looks scaled by {factor_text(factor)} (its cosine of 1.00 hides that)")
    else:
        factor = constant_factor(total, group)
        if factor:
            words.append(f"{groups.label(group)} looks scaled by {factor_text(factor)}")
    return msgspec.structs.replace(accuracy, worst_index=index, got=got, want=want, problem="; ".join(words))


def constant_factor(total: Sums, group: int | None = None) -> float | None:
    """s such that candidate = s·oracle within 5 %, for one group or the whole; None if s is about 1.

    An s within 1 % of a power of two is rounded to it.
    """
    squares, cross, oracle = (
        float(column.sum() if group is None else column[group])
        for column in (total.candidate, total.cross, total.oracle)
    )
    if oracle <= 0:
        return None
    factor = 1 + cross / oracle
    residual = squares - cross * cross / oracle
    if abs(factor - 1) < 0.01 or factor == 0 or residual > (0.05 * factor) ** 2 * oracle:
        return None
    power = math.copysign(2.0 ** round(math.log2(abs(factor))), factor)
    return power if abs(factor / power - 1) < 0.01 else factor


def factor_text(factor: float) -> str:
    """`0.53`, `1/8192`."""
    inverse = round(1 / factor)
    return f"1/{inverse}" if inverse > 3 and abs(inverse * factor - 1) < 0.01 else f"{factor:.3g}"


def kinds(values: torch.Tensor) -> torch.Tensor:
    """0 where finite, 1 and -1 where infinite, 2 where NaN; int8."""
    infinite = torch.isposinf(values).to(torch.int8) - torch.isneginf(values).to(torch.int8)
    return torch.where(values.isnan(), torch.tensor(NAN, dtype=torch.int8, device=values.device), infinite)


def first_true(mask: torch.Tensor) -> list[int]:
    """The index of the first true element."""
    return unravel(int(mask.reshape(-1).to(torch.uint8).argmax()), mask.shape)


def unravel(flat: int, shape: torch.Size) -> list[int]:
    """Row-major position -> index."""
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return index[::-1]


def dtype_name(tensor: torch.Tensor) -> str:
    """`bfloat16`, `float8_e4m3fn` …"""
    return str(tensor.dtype).removeprefix("torch.")
