"""Codes and scales that are right although they differ from the reference's, which rounds before its cast.

A fused kernel that keeps float32 up to its cast is closer to the truth than a reference that rounds to bfloat16 on the
way, and has other codes and scales. So if the reference's codes differ from the oracle's, the codes of each scale may
be the reference's or the oracle's, divided by the candidate's own scale. Otherwise the dequantised values decide.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from perfguard.check.numerics.fp8_codes import EPSILON, SCALE_ULPS, TIE_ULPS
from perfguard.check.numerics.sums import FP8_DTYPES, ROUNDING, kinds

#: Times eager's RMSE, and relative error of scales. Rounding towards zero has twice the error of rounding to nearest.
MULTIPLE = 1.5
#: … in the values of one scale, which are few.
OF_ONE_SCALE = 3.0
#: The relative error of a value that a sum in float32 went into: 32 roundings.
_SUMMED = 2.0**-19


@dataclass(frozen=True)
class Quantised:
    """Values before they are rounded to codes, and the scales that they were divided by, if these are known."""

    values: torch.Tensor
    scales: torch.Tensor | None

    def spread(self) -> torch.Tensor | None:
        """A scale for each value; None if their shapes do not belong together."""
        if self.scales is None:
            return torch.ones_like(self.values, dtype=torch.float64)
        return spread(self.scales, self.values.shape)


def spread(scales: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """A scale for each element: one for all, or for each row, with or without a dimension of 1, or for each block."""
    forms = [scales, scales.unsqueeze(-1)] if scales.ndim + 1 == len(shape) else [scales]
    if scales.numel() == 1:
        forms = [scales.reshape((1,) * len(shape))]
    for form in forms:
        pairs = [*zip(form.shape, shape, strict=False)]
        if form.ndim == len(shape) and all(few and many % few == 0 for few, many in pairs):
            made = form.double()
            for dim, (few, many) in enumerate(pairs):
                made = made.repeat_interleave(many // few, dim)
            return made
    return None


@dataclass(frozen=True)
class Sides:
    """A call's outputs, as one list of tensors each.

    Attributes:
        candidate, eager: codes and scales.
        unrounded: eager's values before its cast, in the place of its codes.
        oracle: values and scales, in float32 throughout.
        scales: places of scales.
    """

    candidate: Sequence[torch.Tensor | None]
    eager: Sequence[torch.Tensor | None]
    unrounded: Sequence[torch.Tensor | None]
    oracle: Sequence[torch.Tensor | None]
    scales: Collection[int]

    def are_right(self, position: int, limit: float) -> bool:
        """Whether the codes in this place, or all that the scales there belong to, are right by `is_right`."""
        codes = [at for at, each in enumerate(self.eager) if each is not None and each.dtype in FP8_DTYPES]
        asked = [(at, self._scale_of(at)) for at in codes]
        asked = [(at, scale) for at, scale in asked if position in (at, scale)]
        return bool(asked) and all(self._are_right(at, scale, limit) for at, scale in asked)

    def _are_right(self, at: int, scale: int | None, limit: float) -> bool:
        candidate = self._quantised(self.candidate, self.candidate, at, scale)
        eager = self._quantised(self.unrounded, self.eager, at, scale)
        oracle = self._quantised(self.oracle, self.oracle, at, scale)
        codes = self.eager[at]
        if candidate is None or eager is None or oracle is None or codes is None:
            return False
        return candidate.values.dtype is codes.dtype and is_right(candidate, eager, oracle, codes, limit)

    def _quantised(
        self, values: Sequence[torch.Tensor | None], scales: Sequence[torch.Tensor | None], at: int, scale: int | None
    ) -> Quantised | None:
        """The values and scales at these positions; None if one is missing, or has another shape than eager's."""
        wanted = [(values[at], self.eager[at]), *([] if scale is None else [(scales[scale], self.eager[scale])])]
        found = [each for each, eager in wanted if each is not None and eager is not None and each.shape == eager.shape]
        return Quantised(found[0], found[1] if scale is not None else None) if len(found) == len(wanted) else None

    def _scale_of(self, at: int) -> int | None:
        """The scales that codes belong to, by their shapes: the closest ones behind them, else before them."""
        codes = self.eager[at]
        fitting = [
            place
            for place in self.scales
            if codes is not None and (each := self.eager[place]) is not None and spread(each, codes.shape) is not None
        ]
        return min(fitting, key=lambda place: (place < at, abs(place - at)), default=None)


def is_right(candidate: Quantised, eager: Quantised, oracle: Quantised, codes: torch.Tensor, limit: float) -> bool:
    """Whether the candidate's codes and scales are right although they are not the reference's.

    Args:
        candidate: its codes as values.
        eager: the reference's values before its cast.
        oracle: those of the reference in float32 throughout.
        codes: the reference's.
        limit: by how much the candidate's dequantised RMSE may exceed eager's.
    """
    spreads = candidate.spread(), eager.spread(), oracle.spread()
    if any(each is None for each in spreads):
        return False
    s_c, s_e, s_o = (each for each in spreads if each is not None)
    c, u_e, u_o = (each.values.double() for each in (candidate, eager, oracle))
    rounded_e = codes.double()
    alike = kinds(c) == kinds(rounded_e)
    if not bool(alike.all()) or not all(bool(each.isfinite().all()) for each in (c, u_e, u_o, s_c, s_e, s_o)):
        return False
    if _are_codes_of(rounded_e, u_o, codes.dtype, TIE_ULPS * EPSILON).all() and _near(s_e, s_o, SCALE_ULPS).all():
        return False  # the reference is the oracle: it decides
    by_product = _apart(u_e * s_e, u_o * s_o) <= _apart(u_e * s_o, u_o * s_e)
    if not by_product:  # the outputs' scales are those that values were multiplied by
        s_c, s_e, s_o = (1 / each for each in (s_c, s_e, s_o))
    truth = u_o * s_o
    as_oracle = _are_codes_of(c, truth / s_c, codes.dtype, _SUMMED) & _near(s_c, s_o, _SUMMED / EPSILON)
    as_eager = _are_codes_of(c, u_e, codes.dtype, TIE_ULPS * EPSILON) & _near(s_c, s_e, SCALE_ULPS)
    shape = (1,) * c.ndim if candidate.scales is None else _shape_of(candidate.scales, c.shape)
    if bool((_of_each(as_oracle, shape).all(-1) | _of_each(as_eager, shape).all(-1)).all()):
        return True
    largest = 2 * ROUNDING[codes.dtype] * truth.abs() + torch.finfo(codes.dtype).smallest_normal * s_o
    if bool(((c * s_c - truth).abs() > largest + (rounded_e * s_e - truth).abs()).any()):
        return False  # further off than a step, and eager's own error
    return _is_as_near((c * s_c, s_c), (rounded_e * s_e, s_e), (truth, s_o), shape, limit)


def _is_as_near(
    candidate: tuple[torch.Tensor, torch.Tensor],
    eager: tuple[torch.Tensor, torch.Tensor],
    oracle: tuple[torch.Tensor, torch.Tensor],
    shape: Sequence[int],
    limit: float,
) -> bool:
    """Whether dequantised values and scales are about as near to the oracle's as eager's are."""
    (c, s_c), (e, s_e), (o, s_o) = candidate, eager, oracle
    squares = [_of_each((each - o).square(), shape).mean(-1) for each in (c, e, o.new_zeros(()).expand_as(o))]
    by_candidate, by_eager, size = squares
    scales = [((each / s_o - 1).square().mean().sqrt()) for each in (s_c, s_e)]
    return bool(
        (by_candidate.mean().sqrt() <= limit * by_eager.mean().sqrt())
        & (by_candidate.sqrt() <= OF_ONE_SCALE * by_eager.sqrt() + _SUMMED * size.sqrt()).all()
        & (scales[0] <= limit * scales[1] + _SUMMED)
    )


def _are_codes_of(codes: torch.Tensor, values: torch.Tensor, dtype: torch.dtype, tie: float) -> torch.Tensor:
    """A mask of codes that the values are rounded to, or would be if they were off by `tie`, relative."""
    largest = torch.finfo(dtype).max
    low, high = (
        (values * (1 + by * values.sign())).clamp(-largest, largest).float().to(dtype).double() for by in (-tie, tie)
    )
    return (codes >= torch.minimum(low, high)) & (codes <= torch.maximum(low, high))


def _near(scales: torch.Tensor, wanted: torch.Tensor, ulps: float) -> torch.Tensor:
    return (scales - wanted).abs() <= ulps * EPSILON * wanted.abs()


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / (b.norm() + torch.finfo(torch.float64).tiny))


def _shape_of(scales: torch.Tensor, shape: Sequence[int]) -> Sequence[int]:
    if scales.numel() == 1:
        return (1,) * len(shape)
    return scales.shape if scales.ndim == len(shape) else (*scales.shape, 1)


def _of_each(values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Values [*shape, n], those of each scale in the last dimension."""
    sizes = [size for few, many in zip(shape, values.shape, strict=True) for size in (few, many // few)]
    split = values.reshape(sizes)
    order = [*range(0, 2 * len(shape), 2), *range(1, 2 * len(shape), 2)]
    return split.permute(order).reshape(*shape, -1)
