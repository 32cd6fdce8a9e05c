"""The eager truth of the fp8 quantisers: plain torch, one obvious loop, any device.

Strides of results are those of the function of the same name in `ops.py`; codes are fp8, scales fp32.

Shape suffixes: M tokens, K inner width, P the other width of a transposed activation, G groups,
E experts, N outer width of a weight; `_MK` is a tensor of shape (M, K). `slices` and `scale` below are
fp32 and broadcastable to each other, with `dim` the reduced dimension.

One slice is what shares one scale: a row, a column of one group, a column of one expert.
scale = MAX / max(amax, 1e-12), taken in float64 and rounded once to fp32; code = round(x * scale) after
a clamp to +-MAX. The scale is the multiplier: value = code / scale.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import require_floats, require_offs, require_valid_offs
from kernels.fp8.arguments import (
    ALIGNMENT,
    padded_ends,
    padded_rows,
    require_alignment,
    require_blocks,
    require_matmul_operands,
    require_out_dtype,
    require_same_tokens,
)
from kernels.fp8.formats import Format, format_of
from kernels.hardware import default_fp8_dtype

Pair = tuple[Tensor, Tensor]

AMAX_FLOOR = 1e-12
SIGN_AND_EXPONENT = -(1 << 23)  # clears the 23 mantissa bits of an fp32 pattern
LAST_MANTISSA = (1 << 23) - 1  # added to a pattern it carries into the exponent unless the value is a power of two
HALF_NORMAL = 1 << 22  # the pattern of 2^-127, the least scale of e8m0


def quantize_rowwise(x: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False) -> Pair:
    """One scale a row: x (M, K) -> codes (M, K), scales (M, 1)."""
    require_floats(x, "x", ndim=2)
    format_ = _output_format(dtype, x.device)
    codes_MK, scales_M1 = _quantize(x, 1, format_, power_of_two)
    return codes_MK.view(format_.dtype), scales_M1


def quantize_rowwise_per_group(
    x: Tensor, offs: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False
) -> Pair:
    """One scale for each row and group of columns: x (P, M), offs (G,) -> codes (P, M), scales (G * P,)."""
    require_floats(x, "x", ndim=2)
    require_offs(offs, x, "x")
    format_ = _output_format(dtype, x.device)
    codes_PM = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    scales_GP = _quantize_groups(x, offs, 1, codes_PM, format_, power_of_two)
    return codes_PM.view(format_.dtype), scales_GP


def quantize_colwise_per_group(
    x: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
) -> tuple[Tensor, ...]:
    """One scale for each column and group of rows: x (M, K), offs (G,) -> codes (M, K), scales (G * K,).

    With `alignment` 16 each group begins and ends on a multiple of 16, codes are (P, K), 0x00 in the gaps, and the
    third result is padded_offs (G,) int32.
    """
    require_floats(x, "x", ndim=2)
    require_offs(offs, x, "x")
    require_alignment(alignment)
    format_, (tokens, width) = _output_format(dtype, x.device), x.shape
    codes_MK = torch.zeros((width, tokens), dtype=torch.uint8, device=x.device).t()
    scales_GK = _quantize_groups(x, offs, 0, codes_MK, format_, power_of_two)
    codes_MK = codes_MK.view(format_.dtype)
    if alignment is None:
        return codes_MK, scales_GK
    return _pad_groups(codes_MK, offs), scales_GK, padded_ends(offs)


def quantize_colwise_per_group_dual(
    x1: Tensor,
    x2: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
) -> tuple[Tensor, ...]:
    """`quantize_colwise_per_group` of x1 (M, K1) and x2 (M, K2), which share their groups."""
    require_floats(x1, "x1", ndim=2)
    require_floats(x2, "x2", ndim=2)
    require_same_tokens(x1, x2)
    require_offs(offs, x1, "x1")
    first = quantize_colwise_per_group(x1, offs, dtype=dtype, power_of_two=power_of_two, alignment=alignment)
    second = quantize_colwise_per_group(x2, offs, dtype=dtype, power_of_two=power_of_two, alignment=alignment)
    return *first[:2], *second


def quantize_transpose_3d_atomic(w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False) -> Pair:
    """One scale for each expert and inner index: w (E, K, N) -> codes (E, N, K), transposed; scales (E, K)."""
    require_floats(w, "w", ndim=3)
    format_ = _output_format(dtype, w.device)
    codes_EKN, scales_EK1 = _quantize(w, 2, format_, power_of_two)
    return codes_EKN.view(format_.dtype).transpose(1, 2), scales_EK1.squeeze(2)


def quantize_transpose_3d_reduction(w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False) -> Pair:
    """The same result as `quantize_transpose_3d_atomic`: the two differ in how the kernel reduces."""
    return quantize_transpose_3d_atomic(w, dtype=dtype, power_of_two=power_of_two)


def quantize_colwise_3d(w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False) -> Pair:
    """One scale for each expert and outer column: w (E, K, N) -> codes (E, K, N), scales (E, 1, N)."""
    require_floats(w, "w", ndim=3)
    format_ = _output_format(dtype, w.device)
    codes_EKN, scales_E1N = _quantize(w, 1, format_, power_of_two)
    codes_ENK = _contiguous(codes_EKN.transpose(1, 2))
    return codes_ENK.view(format_.dtype).transpose(1, 2), scales_E1N


def quantize_rowwise_colwise_per_group(
    x: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
) -> tuple[Tensor, ...]:
    """`quantize_rowwise` and `quantize_colwise_per_group` of one operand."""
    rows = quantize_rowwise(x, dtype=dtype, power_of_two=power_of_two)
    return *rows, *quantize_colwise_per_group(x, offs, dtype=dtype, power_of_two=power_of_two, alignment=alignment)


def quantize_colwise_transpose_3d(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`quantize_colwise_3d` and `quantize_transpose_3d_*` of one weight."""
    columns = quantize_colwise_3d(w, dtype=dtype, power_of_two=power_of_two)
    return *columns, *quantize_transpose_3d_atomic(w, dtype=dtype, power_of_two=power_of_two)


def quantize_1x128(x: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False) -> Pair:
    """One scale for 128 neighbours of a row: x (..., M, K) -> codes (..., M, K), scales (..., M, ceil(K / 128)).

    Scales are the reciprocals of the multipliers, value = code * scale, and rows lie side by side in their memory.
    """
    return _quantize_blocks(x, (1, 128), dtype, power_of_two)


def quantize_128x128(w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False) -> Pair:
    """One scale for 128 rows of 128 columns: w (..., N, K) -> codes (..., N, K), scales (..., ceil(N / 128),
    ceil(K / 128)), contiguous, the reciprocals of the multipliers: value = code * scale."""
    return _quantize_blocks(w, (128, 128), dtype, power_of_two)


def quantize_mx(x: Tensor, *, dtype: torch.dtype | None = None, round_up: bool = False) -> Pair:
    """One power of two for 32 neighbours of a row: x (..., M, K) -> codes (..., M, K), scales (..., M, ceil(K / 32)).

    scale = 2^(floor(log2(amax)) - floor(log2(MAX))), or with `round_up` the least power of two that is not below
    amax / MAX in fp32; value = code * scale. From 2^-127 to 2^127, in e8m0; 0xFF and NaN for a block that holds NaN. An
    infinity becomes MAX. Blocks whose scale would be 2^-127 or less are multiplied by 2^126, with `round_up` by 1.
    """
    require_blocks(x, "x")
    format_ = _output_format(dtype, x.device)
    blocks = _blocks_of(x.detach(), 1, 32)
    amax = blocks.abs().amax(-1, keepdim=True).float()
    is_nan = amax.isnan()
    if round_up:
        ratio = (amax.where(~is_nan, 0.0) / format_.max).view(torch.int32)
        exponent = ((ratio + LAST_MANTISSA) >> 23).clamp(max=254).where(ratio > HALF_NORMAL, 0)
        steps = (127 - exponent).where(exponent > 0, 0)
    else:
        exponent = ((amax.view(torch.int32) >> 23) - (int(format_.max).bit_length() - 1)).clamp(min=0)
        steps = 127 - exponent.clamp(min=1)
    multiplier = torch.where(steps > -127, (steps + 127) << 23, HALF_NORMAL).view(torch.float32)  # 2^steps
    codes = _encode(blocks, multiplier, ~is_nan, format_)
    scales = exponent.where(~is_nan, 255).to(torch.uint8).squeeze(-1)
    return _unblocked(codes, x.shape, 1, 32).view(format_.dtype), _contiguous(scales).view(torch.float8_e8m0fnu)


def grouped_mm(
    a: Tensor,
    b_t: Tensor,
    offs: Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    dtype: torch.dtype | None = None,
    fast_accum: bool = True,
    keep_fp8_weights: bool = False,
) -> Tensor:
    """a (R, K), b_t (E, K, N), offs (E,) int32 -> (R, N) bf16: by group, each operand rounded to fp8 and back.

    Forward, dgrad and wgrad are plain matmuls in fp32 of the rounded values, group by group. float64 operands,
    which an oracle has, give float64. `fast_accum` and `keep_fp8_weights` say how, and change nothing here.
    """
    if torch.float64 not in (a.dtype, b_t.dtype):
        require_matmul_operands(a, b_t, offs)
    require_out_dtype(out_dtype)
    require_valid_offs(offs.tolist(), a.shape[0])
    return _GroupedMm.apply(a, b_t, offs, _output_format(dtype, a.device))  # type: ignore[no-any-return]


class _GroupedMm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a_RK: Tensor, b_EKN: Tensor, offs: Tensor, format_: Format) -> Tensor:
        ctx.save_for_backward(a_RK, b_EKN, offs)
        ctx.format = format_
        a_rounded_RK, b_rounded_EKN = _rounded(a_RK, 1, format_), _rounded(b_EKN, 1, format_)
        out_RN = a_rounded_RK.new_zeros((a_RK.shape[0], b_EKN.shape[2]))
        for expert, (start, end) in enumerate(pairwise([0, *offs.tolist()])):
            out_RN[start:end] = a_rounded_RK[start:end] @ b_rounded_EKN[expert]
        return out_RN if a_RK.dtype == torch.float64 else out_RN.to(torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, grad_RN: Tensor) -> tuple[Tensor | None, ...]:
        a_RK, b_EKN, offs = ctx.saved_tensors
        grad_rounded_RN, b_rounded_EKN = _rounded(grad_RN, 1, ctx.format), _rounded(b_EKN, 2, ctx.format)
        grad_a_RK = grad_rounded_RN.new_zeros(a_RK.shape)
        grad_b_ENK = grad_rounded_RN.new_zeros(b_EKN.mT.shape)
        for expert, (start, end) in enumerate(pairwise([0, *offs.tolist()])):
            grad_a_RK[start:end] = grad_rounded_RN[start:end] @ b_rounded_EKN[expert].t()
            group_a, group_grad = (_rounded(x[start:end], 0, ctx.format) for x in (a_RK, grad_RN))
            grad_b_ENK[expert] = group_grad.t() @ group_a
        return grad_a_RK.to(a_RK.dtype), grad_b_ENK.to(b_EKN.dtype).mT, None, None


def _rounded(x: Tensor, dim: int, format_: Format) -> Tensor:
    """The values that the codes of x with power-of-two scales along `dim` stand for: fp32, or float64 as x is."""
    codes, scale = _quantize(x.float(), dim, format_, power_of_two=True)
    values = codes.view(format_.dtype).float() / scale
    return values.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def _output_format(dtype: torch.dtype | None, device: torch.device) -> Format:
    return format_of(default_fp8_dtype(device) if dtype is None else dtype)


def _pad_groups(codes_MK: Tensor, offs_G: Tensor) -> Tensor:
    """Codes (M, K) -> (P, K), strides (1, P): each group moved to its padded place, 0x00 elsewhere."""
    tokens, width = codes_MK.shape
    padded_KP = torch.zeros((width, padded_rows(tokens, offs_G.numel())), dtype=torch.uint8, device=codes_MK.device)
    bytes_KM = codes_MK.view(torch.uint8).t()
    for (start, end), padded_end in zip(pairwise([0, *offs_G.tolist()]), padded_ends(offs_G).tolist(), strict=True):
        place = padded_end - (end - start + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        padded_KP[:, place : place + end - start] = bytes_KM[:, start:end]
    return padded_KP.t().view(codes_MK.dtype)


def _quantize_groups(x: Tensor, offs: Tensor, dim: int, codes: Tensor, format_: Format, power_of_two: bool) -> Tensor:
    """Fill `codes` group by group along `dim`; rows past the last group keep their zeros.

    Returns the scales (G * width,) fp32; an empty group has the scale of an all-zero slice.
    """
    ends = offs.tolist()
    require_valid_offs(ends, x.shape[dim])
    width = x.shape[1 - dim]
    scales = torch.empty((len(ends), width), dtype=torch.float32, device=x.device)
    for group, (start, end) in enumerate(pairwise([0, *ends])):
        group_codes, group_scales = _quantize(x.narrow(dim, start, end - start), dim, format_, power_of_two)
        codes.narrow(dim, start, end - start).copy_(group_codes)
        scales[group] = group_scales.flatten()
    return scales.flatten()


def _quantize(x: Tensor, dim: int, format_: Format, power_of_two: bool) -> Pair:
    """One scale for each slice of `x` along `dim`.

    Returns codes, contiguous uint8 of the shape of `x`, and scales, contiguous fp32, size 1 in `dim`.
    """
    magnitude = x.detach().abs()
    if x.shape[dim] == 0:
        amax = magnitude.sum(dim, keepdim=True)  # amax refuses an empty slice; the sum of one is zero
    else:
        amax = magnitude.amax(dim, keepdim=True)  # exact in any dtype, and NaN wins
    finite = amax.isfinite()
    scale = (format_.max / amax.double().clamp(min=AMAX_FLOOR)).float()
    if power_of_two:
        # By bits: exp2(floor(log2(scale))) rounds up just below a power of two.
        scale = (scale.view(torch.int32) & SIGN_AND_EXPONENT).view(torch.float32)
    scale = torch.where(finite, scale, torch.nan)
    return _encode(x, scale, finite, format_), _contiguous(scale)


def _encode(x: Tensor, scale: Tensor, finite: Tensor, format_: Format) -> Tensor:
    """The codes of x under `scale`, contiguous uint8; NaN where not `finite`."""
    scaled = (x.detach().float() * scale).clamp(-format_.max, format_.max)
    codes = scaled.contiguous().to(format_.dtype).view(torch.uint8)
    if not format_.has_negative_zero:
        codes = torch.where(codes == 0x80, 0, codes)  # a negative underflow; there 0x80 is NaN
    return _contiguous(torch.where(finite, codes, format_.nan_code))


def _quantize_blocks(x: Tensor, block: tuple[int, int], dtype: torch.dtype | None, power_of_two: bool) -> Pair:
    """Blocks of so many rows and columns share a scale, of which the reciprocals are returned."""
    require_blocks(x, "x" if block[0] == 1 else "w")
    format_ = _output_format(dtype, x.device)
    codes, scales = _quantize(_blocks_of(x.detach(), *block), -1, format_, power_of_two)
    scales = scales.squeeze(-1).reciprocal()
    if block[0] == 1:
        scales = _contiguous(scales.mT).mT
    return _unblocked(codes, x.shape, *block).view(format_.dtype), scales


def _blocks_of(x: Tensor, rows: int, columns: int) -> Tensor:
    """x (..., M, K) -> (..., M / rows, K / columns, rows * columns); what blocks at the ends lack is 0."""
    height, width = x.shape[-2:]
    padded = torch.nn.functional.pad(x, (0, -width % columns, 0, -height % rows))
    split = padded.unflatten(-1, (-(-width // columns), columns)).unflatten(-3, (-(-height // rows), rows))
    return split.transpose(-3, -2).flatten(-2)


def _unblocked(blocks: Tensor, shape: torch.Size, rows: int, columns: int) -> Tensor:
    """What `_blocks_of` makes of a tensor of this shape, put back."""
    split = blocks.unflatten(-1, (rows, columns)).transpose(-3, -2)
    return _contiguous(split.flatten(-2).flatten(-3, -2)[..., : shape[-2], : shape[-1]])


def _contiguous(x: Tensor) -> Tensor:
    """Strides of a new tensor; `.contiguous()` keeps whatever stride a dimension of size 1 has."""
    return x.clone(memory_format=torch.contiguous_format)
