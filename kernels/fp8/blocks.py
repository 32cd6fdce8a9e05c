"""Quantise in blocks: some neighbours of a row, or a square of rows and columns, share a scale.

Serves `1x128`, `128x128` and `mx`. Formulas: `reference.py`. Any strides of x: where its columns lie side by side in
memory, as those of a transposed view, a tile is as wide and turned in registers.

Shape suffixes: R rows and C columns of a tile, which is P by Q blocks of H rows and B columns.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.fp8.configs import BlocksConfig
from kernels.fp8.encode import Encoding, encode, magnitude_bits, scale_of, stored_scale
from kernels.jit import named


class Blocks(NamedTuple):
    """What shares a scale: `rows` by `columns`, powers of two. `mx`: scales are exponents of two, in e8m0."""

    rows: int
    columns: int
    mx: bool = False


@triton.jit
def _exponent_of(amax_bits, X_DTYPE: tl.constexpr, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
    """(multiplier fp32, is the block NaN, its e8m0 byte) from the int32 bits of its amax in the input dtype."""
    if X_DTYPE == tl.bfloat16:
        bits = amax_bits << 16
    elif X_DTYPE == tl.float16:
        bits = amax_bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)
    else:
        bits = amax_bits
    is_nan = bits > 0x7F800000
    if ENCODING.power_of_two:  # rounded up
        amax = tl.where(is_nan, 0, bits).to(tl.float32, bitcast=True)
        ratio = tl.div_rn(amax, tl.full(amax.shape, ENCODING.max, tl.float32)).to(tl.int32, bitcast=True)
        exponent = tl.where(ratio <= 0x400000, 0, tl.minimum((ratio + 0x7FFFFF) >> 23, 254))
        multiplier = tl.where(exponent == 254, 0x400000, (254 - exponent) << 23)
        multiplier = tl.where(exponent == 0, 0x3F800000, multiplier)
    else:
        exponent = tl.maximum((bits >> 23) - ENCODING.max_exponent, 0)
        multiplier = (254 - tl.maximum(exponent, 1)) << 23
    return multiplier.to(tl.float32, bitcast=True), is_nan, tl.where(is_nan, 255, exponent).to(tl.uint8)


@triton.jit
def block_scale(amax_bits, X_DTYPE: tl.constexpr, MX: tl.constexpr, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
    """(multiplier fp32, is the block spoilt, its scale as it is stored) from the int32 bits of its amax."""
    if MX:
        return _exponent_of(amax_bits, X_DTYPE, ENCODING)
    else:
        scale, spoilt = scale_of(amax_bits, X_DTYPE, ENCODING)
        return scale, spoilt, stored_scale(scale, ENCODING)


@triton.jit(do_not_specialize=["rows", "scale_e", "scale_r", "scale_k"])
def quantize_blocks(  # type: ignore[no-untyped-def]
    x_ptr, codes_ptr, scales_ptr, rows, width, stride_e, stride_r, stride_k, scale_e, scale_r, scale_k,
    ROWS_ALIGNED: tl.constexpr, blocks: tl.constexpr, encoding: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """A tile a program of x (experts, rows, width). Codes uint8, contiguous; scales (experts, rows / H, width / B).

    ROWS_ALIGNED: rows, which lie side by side in memory, are a multiple of 16.
    """
    ENCODING: tl.constexpr = named(Encoding, encoding)
    CONFIG: tl.constexpr = named(BlocksConfig, config)
    BLOCKS: tl.constexpr = named(Blocks, blocks)
    R: tl.constexpr = CONFIG.rows
    C: tl.constexpr = CONFIG.columns
    H: tl.constexpr = BLOCKS.rows
    B: tl.constexpr = BLOCKS.columns
    X_DTYPE: tl.constexpr = x_ptr.dtype.element_ty

    if ROWS_ALIGNED:
        rows = rows // 16 * 16  # tells the compiler that it is a multiple
    across = tl.cdiv(width, C)
    down = tl.cdiv(rows, R)
    tile_row = tl.program_id(0) // across
    expert = (tile_row // down).to(tl.int64)
    tile_row = (tile_row % down).to(tl.int64)
    tile_column = (tl.program_id(0) % across).to(tl.int64)
    row_R = tile_row * R + tl.arange(0, R)
    column_C = tile_column * C + tl.arange(0, C)
    inside_RC = (row_R < rows)[:, None] & (column_C < width)[None, :]
    x_at_RC = x_ptr + expert * stride_e + row_R[:, None] * stride_r + column_C[None, :] * stride_k
    x_PHQB = tl.reshape(tl.load(x_at_RC, mask=inside_RC, other=0.0), (R // H, H, C // B, B))

    amax_PQ = tl.max(tl.max(magnitude_bits(x_PHQB).to(tl.int32), 3), 1)
    scale_PQ, spoilt_PQ, stored_PQ = block_scale(amax_PQ, X_DTYPE, BLOCKS.mx, ENCODING)
    code_PHQB = encode(x_PHQB, scale_PQ[:, None, :, None], spoilt_PQ[:, None, :, None], ENCODING)
    codes_at_RC = codes_ptr + (expert * rows + row_R)[:, None] * width + column_C[None, :]
    tl.store(codes_at_RC, tl.reshape(code_PHQB, (R, C)), mask=inside_RC)

    block_P = tile_row * (R // H) + tl.arange(0, R // H)
    block_Q = tile_column * (C // B) + tl.arange(0, C // B)
    there_PQ = (block_P < tl.cdiv(rows, H))[:, None] & (block_Q < tl.cdiv(width, B))[None, :]
    scales_at_PQ = scales_ptr + expert * scale_e + block_P[:, None] * scale_r + block_Q[None, :] * scale_k
    tl.store(scales_at_PQ, stored_PQ, mask=there_PQ)
