"""Quantise along an axis and keep the layout: `rowwise`, and `colwise_3d` on the (E, N, K) memory.

Formulas: `reference.py`. Shape suffixes: R rows of the tile, K columns of the tile (the reduced axis).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.fp8.configs import RowsConfig
from kernels.fp8.encode import Encoding, encode, magnitude_bits, scale_of, stored_scale
from kernels.jit import named


@triton.jit(do_not_specialize=["rows", "inner_rows"])
def quantize_rows(  # type: ignore[no-untyped-def]
    x_ptr, codes_ptr, scales_ptr, rows, inner_rows, width, stride_outer, stride_inner, stride_k,
    UNIT: tl.constexpr, encoding: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """`rows` of the configuration a program. Row r of x lies at r // inner_rows * stride_outer + r % inner_rows *
    stride_inner.

    codes (rows, width) contiguous uint8, scales (rows,) fp32. UNIT: stride_k is 1. Where block and tail cover the width
    a row stays in registers (two powers of two fit a width better than one); else it is read twice, a block at a time,
    the second time while it is still in cache.
    """
    ENCODING: tl.constexpr = named(Encoding, encoding)
    CONFIG: tl.constexpr = named(RowsConfig, config)
    ROWS: tl.constexpr = CONFIG.rows  # Triton 3.6 takes no field of a record inside a tuple
    row_R = tl.program_id(0).to(tl.int64) * CONFIG.rows + tl.arange(0, CONFIG.rows)
    x_ptr_R = x_ptr + row_R // inner_rows * stride_outer + row_R % inner_rows * stride_inner
    codes_ptr_R = codes_ptr + row_R * width
    in_rows_R = row_R < rows
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty

    amax_R = tl.zeros((ROWS,), tl.int32)
    if CONFIG.whole:
        head_RK = _load(x_ptr_R, in_rows_R, stride_k, 0, width, CONFIG.block, UNIT)
        amax_R = tl.max(magnitude_bits(head_RK).to(tl.int32), 1)
        if CONFIG.tail > 0:
            tail_RK = _load(x_ptr_R, in_rows_R, stride_k, CONFIG.block, width, CONFIG.tail, UNIT)
            amax_R = tl.maximum(amax_R, tl.max(magnitude_bits(tail_RK).to(tl.int32), 1))
    else:
        for first in range(0, width, CONFIG.block):
            x_RK = _load(x_ptr_R, in_rows_R, stride_k, first, width, CONFIG.block, UNIT)
            amax_R = tl.maximum(amax_R, tl.max(magnitude_bits(x_RK).to(tl.int32), 1))

    scale_R, not_finite_R = scale_of(amax_R, X_DTYPE, ENCODING)
    tl.store(scales_ptr + row_R, stored_scale(scale_R, ENCODING), mask=in_rows_R)

    if CONFIG.whole:
        codes_RK = encode(head_RK, scale_R[:, None], not_finite_R[:, None], ENCODING)
        _store(codes_ptr_R, codes_RK, in_rows_R, 0, width, CONFIG.block)
        if CONFIG.tail > 0:
            codes_RK = encode(tail_RK, scale_R[:, None], not_finite_R[:, None], ENCODING)
            _store(codes_ptr_R, codes_RK, in_rows_R, CONFIG.block, width, CONFIG.tail)
    else:
        for first in range(0, width, CONFIG.block):
            x_RK = _load(x_ptr_R, in_rows_R, stride_k, first, width, CONFIG.block, UNIT)
            codes_RK = encode(x_RK, scale_R[:, None], not_finite_R[:, None], ENCODING)
            _store(codes_ptr_R, codes_RK, in_rows_R, first, width, CONFIG.block)


@triton.jit
def _load(x_ptr_R, in_rows_R, stride_k, first, width, BLOCK: tl.constexpr, UNIT: tl.constexpr):  # type: ignore[no-untyped-def]
    k_K = first + tl.arange(0, BLOCK)
    at_K = k_K if UNIT else k_K.to(tl.int64) * stride_k
    return tl.load(x_ptr_R[:, None] + at_K[None, :], mask=in_rows_R[:, None] & (k_K < width)[None, :], other=0.0)


@triton.jit
def _store(codes_ptr_R, codes_RK, in_rows_R, first, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    k_K = first + tl.arange(0, BLOCK)
    tl.store(codes_ptr_R[:, None] + k_K[None, :], codes_RK, mask=in_rows_R[:, None] & (k_K < width)[None, :])
