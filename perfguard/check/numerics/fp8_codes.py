"""Outputs of quantisers: 8-bit floats compared as codes, and the float32 scales that belong to them.

A code may differ from the reference's by one step only if the value before rounding lies within a few float32
roundings of the boundary between the two codes. There a correct kernel may round to either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from perfguard.check.numerics.hints import constant_factor, factor_text
from perfguard.check.numerics.rule import PHI, unlike_metadata
from perfguard.check.numerics.sums import (
    CHUNK,
    ROUNDING,
    Groups,
    decibels,
    dtype_name,
    first_true,
    kinds,
    sum_groups,
    unravel,
)
from perfguard.model.call import Tolerance
from perfguard.model.records import Accuracy
from perfguard.tensors.snapshot import bits

FP8_MULTIPLE = 3.0  # k
TIE_ULPS = 4.0  # a scale may be 2 float32 ulps off, and the product adds another rounding
SCALE_ULPS = 2
EPSILON = 2.0**-23
MANTISSA = (1 << 23) - 1


def compare_codes(
    candidate: torch.Tensor,
    eager: torch.Tensor,
    unrounded: torch.Tensor | None,
    *,
    name: str,
    tolerance: Tolerance | None = None,
    exact_scales: bool = False,
) -> Accuracy:
    """Judge an 8-bit float output (e4m3fn, e4m3fnuz, e5m2, e5m2fnuz); same shapes, any strides.

    Args:
        candidate, eager: codes. NaN must be in the same places; -0 equals +0.
        unrounded: the reference's values before its cast, float32, as the oracle; None if they are unavailable.
            Then no difference is a tie, and there is no SQNR unless the codes differ.
        name: of the tensor; a problem begins with it.
        tolerance: `fp8_step_fraction` allows that share of the codes to be one step off without a tie near. The
            rule's whole-tensor line still bounds the values.
        exact_scales: the scales are equal powers of two. Then all kernels have the same values before rounding, and
            the middle between two codes is rounded to the even one.
    """
    problem = unlike_metadata(candidate, eager, name)
    if problem or candidate.numel() == 0:
        return Accuracy(output=name, dtype=dtype_name(candidate), problem=problem)
    found = _differences(candidate, eager, unrounded, exact_scales)
    oracle = eager if unrounded is None else unrounded
    total = sum_groups(candidate.float(), eager.float(), oracle.float(), Groups(eager.shape))
    size = candidate.numel()
    rms, rmse, eager_rmse = (
        math.sqrt(float(squares.sum()) / size) for squares in (total.oracle, total.candidate, total.eager)
    )
    k = tolerance.k if tolerance and tolerance.k is not None else FP8_MULTIPLE
    phi = tolerance.phi if tolerance and tolerance.phi is not None else PHI
    limit = None if unrounded is None else k * eager_rmse + phi * ROUNDING[candidate.dtype] * rms
    sqnr = decibels(rms, rmse)

    words = []
    if found.far or found.steps > (tolerance.fp8_step_fraction if tolerance else 0.0) * size:
        words.append(
            f"{found.far + found.steps} of {size} codes differ from the reference's with no rounding tie "
            f"near, {found.far} of them by more than one step"
        )
        if found.exact:
            words.append(found.at_middles())
        strange = int((kinds(candidate.float()) != kinds(eager.float())).sum())
        if strange:
            words.append(f"{strange} are NaN or Inf unlike the reference's")
    elif limit is not None and rmse > limit:
        words.append(f"RMSE {rmse:.3g}, limit {limit:.3g}")
    index, got, want = [], "", ""
    if words:
        if found.worst is not None:
            index = unravel(found.worst, eager.shape)
            got, want = _code(candidate, index), _code(eager, index)
            before = "" if unrounded is None else f" ({float(unrounded[tuple(index)]):.9g} before rounding)"
            words.append(f"worst at {index}: got {got}, want {want}{before}")
        if sqnr is not None:
            words.append(f"SQNR {sqnr:.1f} dB")
        if factor := constant_factor(total):
            words.append(f"looks scaled by {factor_text(factor)} (its cosine of 1.00 hides that)")
    return Accuracy(
        output=name,
        dtype=dtype_name(candidate),
        sqnr_db=sqnr,
        error_ratio=rmse / eager_rmse if eager_rmse > 0 else None,
        rmse=rmse,
        limit=limit,
        worst_index=index,
        got=got,
        want=want,
        ties=found.ties,
        problem=f"{name}: {'; '.join(words)}" if words else "",
    )


def compare_scales(candidate: torch.Tensor, eager: torch.Tensor, *, name: str) -> Accuracy:
    """Judge float32 scales of a quantiser: bitwise if all are powers of two, else within 2 ulps."""
    problem = unlike_metadata(candidate, eager, name)
    if problem or candidate.numel() == 0:
        return Accuracy(output=name, dtype=dtype_name(candidate), problem=problem)
    same = (bits(candidate) == bits(eager)) | (candidate.isnan() & eager.isnan())
    exact = powers_of_two(eager)
    if not exact:
        ulps = (_ordered(candidate) - _ordered(eager)).abs()
        same |= (kinds(candidate) == 0) & (kinds(eager) == 0) & (ulps <= SCALE_ULPS)
    number = int((~same).sum())
    if not number:
        return Accuracy(output=name, dtype=dtype_name(candidate))
    index = first_true(~same)
    got, want = float(candidate[tuple(index)]), float(eager[tuple(index)])
    rule = "powers of two must be equal" if exact else f"at most {SCALE_ULPS} float32 ulps are allowed"
    factor = f", {got / want:.4g} times that" if want and math.isfinite(got / want) else ""
    strange = int((kinds(candidate) != kinds(eager)).sum())
    factor += f"; {strange} are NaN or Inf unlike the reference's" if strange else ""
    return Accuracy(
        output=name,
        dtype=dtype_name(candidate),
        worst_index=index,
        got=f"{got:.9g}",
        want=f"{want:.9g}",
        problem=f"{name}: {number} of {candidate.numel()} scales differ from the reference's ({rule}); the "
        f"first at {index}: got {got:.9g}, want {want:.9g}{factor}",
    )


def powers_of_two(scales: torch.Tensor) -> bool:
    """Whether all finite float32 scales are powers of two, and at least one is finite."""
    powers = ((bits(scales) & MANTISSA) == 0) & scales.isfinite() & (scales != 0)
    return bool((powers | ~scales.isfinite()).all()) and bool(powers.any())


@dataclass
class _Differences:
    """Counts of differing codes, and the row-major position of the worst."""

    far: int = 0  # more than one step, or finite in only one of the two
    steps: int = 0  # one step, no tie near
    ties: int = 0
    exact: int = 0  # one step, at the exact middle between two codes, where only the rounding rule decides
    away: int = 0  # of these, the ones of too large a magnitude
    worst: int | None = None  # the first of `far`, else the first of `steps`

    def at_middles(self) -> str:
        """Text on the codes that differ at the exact middle."""
        way = "away from zero" if self.away == self.exact else "towards zero" if not self.away else "the other way"
        number = f"{self.exact} of them at the very middle between two codes"
        return f"{number}, where it rounds {way} and not to the even code"


def _differences(
    candidate: torch.Tensor, eager: torch.Tensor, unrounded: torch.Tensor | None, exact_scales: bool
) -> _Differences:
    found = _Differences()
    codes = [t.reshape(-1) for t in (candidate, eager)]
    values = None if unrounded is None else unrounded.reshape(-1)
    first_step: int | None = None
    for start in range(0, eager.numel(), CHUNK):
        c, e = (t[start : start + CHUNK] for t in codes)
        if torch.equal(bits(c), bits(e)):
            continue
        value_c, value_e = c.float(), e.float()
        kind_c, kind_e = kinds(value_c), kinds(value_e)
        steps = torch.where((kind_c == 0) & (kind_e == 0), (_ranks(c) - _ranks(e)).abs(), 0)
        far = (kind_c != kind_e) | (steps > 1)
        one = steps == 1
        if values is not None:
            boundary = (value_c + value_e) / 2
            distance = (values[start : start + CHUNK] - boundary).abs()
            tie = one & (distance <= TIE_ULPS * EPSILON * boundary.abs())
            if exact_scales:
                middle = one & (distance == 0)
                found.exact += int(middle.sum())
                found.away += int((middle & (value_c.abs() > value_e.abs())).sum())
                tie = tie & ~middle
            found.ties += int(tie.sum())
            one = one & ~tie
        found.far += int(far.sum())
        found.steps += int(one.sum())
        if found.worst is None and bool(far.any()):
            found.worst = start + first_true(far)[0]
        if first_step is None and bool(one.any()):
            first_step = start + first_true(one)[0]
    if found.worst is None:
        found.worst = first_step
    return found


def _ranks(codes: torch.Tensor) -> torch.Tensor:
    """Finite codes -> rank by value; both zeros have rank 0."""
    pattern = codes.view(torch.uint8).to(torch.int16)
    magnitude = pattern & 0x7F
    return torch.where(pattern >= 0x80, -magnitude, magnitude)


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Float32 -> int64 such that neighbours differ by 1; both zeros are 0."""
    pattern = bits(values).to(torch.int64)
    magnitude = pattern & 0x7FFFFFFF
    return torch.where(pattern < 0, -magnitude, magnitude)


def _code(tensor: torch.Tensor, index: list[int]) -> str:
    element = tensor[tuple(index)]
    return f"0x{int(bits(element)):02X} ({float(element):g})"
