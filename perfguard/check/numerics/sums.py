"""Groups of a tensor's elements, and the sums of errors over them that the rules are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

#: u, the largest relative error of one rounding
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
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
#: Shorter rows are joined: over a few elements the two errors differ by chance.
SHORTEST_GROUP = 32
CHUNK = 1 << 23  # elements converted to float64 at a time
CPU_CHUNK = 1 << 17  # The same on a CPU, so that a chunk fits into its cache.
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
        chosen = self._chosen
        if chosen is None:
            return unravel(group * self._length + element, self.shape)
        index = unravel(element, self.shape[:chosen] + self.shape[chosen + 1 :])
        return [*index[:chosen], group, *index[chosen:]]

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
    fourth: torch.Tensor  # oracle to the fourth
    cross: torch.Tensor  # e_c times oracle
    unlike: torch.Tensor  # number of elements that are NaN or Inf unlike the oracle cast to the output's dtype

    def roots(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Per group: RMS of the oracle, RMSE of the candidate, RMSE of eager."""
        rms, rmse, eager = ((each / self.count).sqrt() for each in (self.oracle, self.candidate, self.eager))
        return rms, rmse, eager


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
    sums = _products(c - o, e - o, o)
    fits = o.abs().amax() <= torch.finfo(candidate.dtype).max
    if not bool(fits & torch.stack(sums).isfinite().all()):
        # Some elements are not finite, so the same sums are computed without them. Eager alone may overflow.
        unlike += (kinds(c) != kinds(oracle.to(candidate.dtype).double())).sum(1)
        usable = c.isfinite() & o.isfinite()
        o = torch.where(usable, o, 0.0)
        sums = _products(torch.where(usable, c - o, 0.0), torch.where(usable & e.isfinite(), e - o, 0.0), o)
    return [count, *sums, unlike]


def _products(e_c: torch.Tensor, e_e: torch.Tensor, o: torch.Tensor) -> list[torch.Tensor]:
    square = o * o
    return [(e_c * e_c).sum(1), (e_e * e_e).sum(1), square.sum(1), (square * square).sum(1), (e_c * o).sum(1)]


def rmse(a: torch.Tensor, b: torch.Tensor | None = None) -> float:
    """RMS of a - b, or of a, over the finite elements."""
    if a.numel() == 0:
        return 0.0
    a, b = real_numbers(a), None if b is None else real_numbers(b)
    other = torch.zeros((), dtype=torch.float32, device=a.device).expand(a.shape) if b is None else b
    values = a if a.is_floating_point() and a.element_size() > 1 else a.double()
    return math.sqrt(float(sum_groups(values, other, other, Groups(a.shape)).candidate.sum()) / a.numel())


def effective_number(squares: torch.Tensor, fourth: torch.Tensor) -> torch.Tensor:
    """The number of equal elements that would have these sums of squares and fourth powers; a third of the elements of
    normal data."""
    return squares.square() / fourth


def decibels(rms: float, error: float) -> float | None:
    """The signal-to-quantisation-noise ratio; None if either is 0."""
    return 20 * math.log10(rms / error) if rms > 0 and error > 0 else None


def kinds(values: torch.Tensor) -> torch.Tensor:
    """0 where finite, 1 and -1 where infinite, 2 where NaN; int8."""
    infinite = torch.isposinf(values).to(torch.int8) - torch.isneginf(values).to(torch.int8)
    return torch.where(values.isnan(), torch.tensor(NAN, dtype=torch.int8, device=values.device), infinite)


def real_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with complex numbers as pairs of real ones."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


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
