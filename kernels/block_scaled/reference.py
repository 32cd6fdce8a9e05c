"""The eager truth of products with block scales: quantise, and multiply in float32 what the codes stand for.

    forward   out[g]    = q(a[g], K)          @ q(w[g], K)^T
    dgrad     grad_a[g] = q(grad[g], N)       @ q(w[g], N)
    wgrad     grad_w[g] = q(grad[g], rows)^T  @ q(a[g], rows)

q(x, d) has a scale for each block of neighbours along d: 128 of a row, or of a column of one group, and squares of 128
of a weight ("1x128", DeepSeek-V3, arXiv 2412.19437, 3.3.2); or 32 along d of all three, with e8m0 scales ("mx").
Blocks of rows begin with their group. Codes along rows therefore lie padded: each group from a multiple of 128 on.

Shape suffixes: M rows, K inner width, N outer width, E groups, P padded rows, B blocks along a contraction.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import require_valid_offs
from kernels.fp8 import reference
from kernels.grouped import reference as grouped
from kernels.hardware import E4M3FN, default_fp8_dtype

SQUARE = 128  # rows and columns of a weight that share a scale, and the rows that groups are padded to
MX_BLOCK = 32

Coded = tuple[Tensor, Tensor]  # codes fp8, and scales: value = code * scale


def codes_dtype(device: torch.device, mx: bool) -> torch.dtype:
    """OCP's MX has OCP's formats alone, whatever a chip's matrix units multiply."""
    return E4M3FN if mx else default_fp8_dtype(device)


def padded_blocks(rows: int, groups: int) -> int:
    """Blocks of 128 rows that groups of `rows` rows in all take at most: known without the host reading offs."""
    return max(1, (rows + (SQUARE - 1) * groups) // SQUARE)


def padded_ends(offs: Tensor, rows: int) -> Tensor:
    """Where groups of `rows` rows in all end once each is padded to whole blocks: int32."""
    require_valid_offs(offs.tolist(), rows)
    return ((torch.diff(offs, prepend=offs.new_zeros(1)) + SQUARE - 1) // SQUARE * SQUARE).cumsum(0, dtype=torch.int32)


def quantize_along(x: Tensor, mx: bool, power_of_two: bool, weight: bool = False) -> Coded:
    """x (..., R, C) -> codes of its shape, scales (..., R, B), each of neighbours in a row; or, of a weight that is not
    to be "mx", scales of squares (..., R / 128, B)."""
    dtype = codes_dtype(x.device, mx)
    if mx:
        return reference.quantize_mx(x.float(), dtype=dtype, round_up=True)
    quantize = reference.quantize_128x128 if weight else reference.quantize_1x128
    return quantize(x.float(), dtype=dtype, power_of_two=power_of_two)


def quantize_columns(x_MK: Tensor, offs: Tensor, mx: bool, power_of_two: bool) -> Coded:
    """x (M, K) -> codes (K, P), scales (K, B) of blocks of rows; the gaps of padded groups hold 0."""
    rows, width = x_MK.shape
    padded_PK = x_MK.new_zeros(padded_blocks(rows, offs.numel()) * SQUARE, width)
    places = [0, *padded_ends(offs, rows).tolist()]
    for place, (start, end) in zip(places, pairwise([0, *offs.tolist()]), strict=False):
        padded_PK[place : place + end - start] = x_MK[start:end]
    return quantize_along(padded_PK.mT, mx, power_of_two)


def values(coded: Coded, dtype: torch.dtype) -> Tensor:
    """What codes (..., R, C) and scales (..., R / rows, C / columns) stand for; blocks at the ends may be short."""
    codes, scales = coded
    height, width = codes.shape[-2:]
    mx = scales.dtype == torch.float8_e8m0fnu
    rows = 1 if mx or scales.shape[-2] == height else SQUARE
    spread = scales.to(dtype).repeat_interleave(rows, -2).repeat_interleave(MX_BLOCK if mx else SQUARE, -1)
    return codes.to(dtype) * spread[..., :height, :width]


def multiply_rows(a: Coded, w: Coded, offs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """a (M, K), w (E, N, K) -> (M, N): rows of group g times w[g] transposed, zero past the last group."""
    return grouped.grouped_mm(values(a, dtype), values(w, dtype).mT, offs)


def multiply_groups(grad: Coded, a: Coded, offs: Tensor, rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """grad (N, P), a (K, P) of `rows` rows -> (E, N, K): the contraction of each group, zero for one of no row."""
    return grouped.grouped_mm(values(grad, dtype), values(a, dtype).t(), padded_ends(offs, rows))


def grouped_mm(a: Tensor, b_t: Tensor, offs: Tensor, *, scaling: str = "1x128", power_of_two: bool = False) -> Tensor:
    """a (M, K), b_t (E, K, N), offs (E,) int32 -> (M, N) bf16, differentiable once: both operands rounded to fp8 and
    back, forward and in each gradient. float64 operands, which an oracle has, give float64."""
    return _GroupedMm.apply(a, b_t, offs, scaling == "mx", power_of_two)  # type: ignore[no-any-return]


class _GroupedMm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b_t: Tensor, offs: Tensor, *how: bool) -> Tensor:
        ctx.save_for_backward(a, b_t, offs)
        ctx.how = how
        wide = torch.float64 if a.dtype == torch.float64 else torch.float32
        out = multiply_rows(quantize_along(a, *how), quantize_along(b_t.mT, *how, weight=True), offs, wide)
        return out if a.dtype == torch.float64 else out.to(torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b_t, offs = ctx.saved_tensors
        wide = torch.float64 if a.dtype == torch.float64 else torch.float32
        grad_a = multiply_rows(quantize_along(grad, *ctx.how), quantize_along(b_t, *ctx.how, weight=True), offs, wide)
        columns = (quantize_columns(each, offs, *ctx.how) for each in (grad, a))
        grad_w = multiply_groups(*columns, offs, len(a), wide)  # type: ignore[misc]
        return grad_a.to(a.dtype), grad_w.to(b_t.dtype).mT, None, None, None
