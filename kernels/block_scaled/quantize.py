"""Codes of tokens along both axes in one pass: along rows as they lie, along columns group by group and transposed.

Formulas: `reference.py`. A program has 128 rows of one group, or fewer at its end, and 128 columns: every block of
either axis lies within one program, so an element of 16 bits moves 4 bytes instead of the 6 of two quantisers, and the
groups need no padded copy.

Shape suffixes: R rows and C columns of a tile, G groups and one for the rest, P by Q blocks of B.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.fp8.blocks import exponent_of
from kernels.fp8.encode import Encoding, encode, magnitude_bits, scale_of, stored_scale
from kernels.grouped.tiles import bounds
from kernels.jit import named


@triton.jit
def block_ends(offs_ptr, groups, rows, SIZE: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many blocks of SIZE rows lie in each of GROUPS groups and those before it."""
    starts_G, ends_G = bounds(offs_ptr, groups, rows, GROUPS)
    return tl.cumsum(tl.cdiv(tl.maximum(ends_G - starts_G, 0), SIZE), 0)


@triton.jit
def span(offs_ptr, group, groups, rows):  # type: ignore[no-untyped-def]
    """(first row, end) of a group; that behind the last one has the rest of the rows."""
    start = tl.load(offs_ptr + group - 1, mask=(group > 0) & (group <= groups), other=0)
    end = tl.load(offs_ptr + group, mask=group < groups, other=rows)
    return tl.minimum(tl.maximum(start, 0), rows), tl.minimum(tl.maximum(end, 0), rows)


@triton.jit
def scales_at(ptr, row, block, rows, blocks, MX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where scales of `blocks` along each of `rows` lie: exponents by row, others side by side for the rows of a block.
    A count of tokens is no stride that a launch is specialised by."""
    row, block = row.to(tl.int64), tl.cast(block, tl.int64)
    if MX:
        return ptr + (row * blocks + block)
    else:
        return ptr + (block * rows + row)


@triton.jit
def _scaled(x, AXIS: tl.constexpr, MX: tl.constexpr, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Codes of x, whose blocks lie along AXIS, and their scales as they are stored."""
    amax = tl.max(magnitude_bits(x).to(tl.int32), AXIS)
    if MX:
        scale, spoilt, stored = exponent_of(amax, x.dtype, ENCODING)
    else:
        scale, spoilt = scale_of(amax, x.dtype, ENCODING)
        stored = stored_scale(scale, ENCODING)
    return encode(x, tl.expand_dims(scale, AXIS), tl.expand_dims(spoilt, AXIS), ENCODING), stored


@triton.jit(do_not_specialize=["groups", "rows", "blocks"])
def quantize_tokens(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, codes_ptr, scales_ptr, columns_ptr, column_scales_ptr, groups, rows, width, blocks,
    stride_r, stride_k,
    GROUPS: tl.constexpr, COLUMNS: tl.constexpr, MX: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    encoding: tl.constexpr,
):  # fmt: skip
    """x (rows, width) -> codes of its shape, scales (rows, width / B), and with COLUMNS codes (width, blocks * R) and
    scales (width, blocks * R / B). Codes uint8, contiguous. Rows of no group have codes along rows alone, and columns
    zeros behind the last group."""
    ENCODING: tl.constexpr = named(Encoding, encoding)
    B: tl.constexpr = 32 if MX else 128
    across = tl.cdiv(width, C)
    block = tl.program_id(0) // across
    last_G = block_ends(offs_ptr, groups, rows, R, GROUPS)
    group = tl.sum((last_G <= block).to(tl.int32), 0)
    start, end = span(offs_ptr, group, groups, rows)
    end = tl.where(group <= groups, end, 0)  # a program that no block is left for writes zeros behind the columns
    first = tl.max(tl.where(last_G <= block, last_G, 0), 0)

    row_R = start + (block - first) * R + tl.arange(0, R)
    column_C = (tl.program_id(0) % across) * C + tl.arange(0, C)
    inside_RC = (row_R < end)[:, None] & (column_C < width)[None, :]
    x_at_RC = x_ptr + row_R.to(tl.int64)[:, None] * stride_r + column_C.to(tl.int64)[None, :] * stride_k
    x_RC = tl.load(x_at_RC, mask=inside_RC, other=0.0)

    code_RQB, scale_RQ = _scaled(tl.reshape(x_RC, (R, C // B, B)), 2, MX, ENCODING)
    codes_at_RC = codes_ptr + row_R.to(tl.int64)[:, None] * width + column_C[None, :]
    tl.store(codes_at_RC, tl.reshape(code_RQB, (R, C)), mask=inside_RC)
    block_Q = (tl.program_id(0) % across) * (C // B) + tl.arange(0, C // B)
    there_RQ = (row_R < end)[:, None] & (block_Q < tl.cdiv(width, B))[None, :]
    scales_at_RQ = scales_at(scales_ptr, row_R[:, None], block_Q[None, :], rows, tl.cdiv(width, B), MX)
    tl.store(scales_at_RQ, scale_RQ, mask=there_RQ)

    if COLUMNS and block < blocks:  # wrong ends may ask for more than there are
        x_RC = tl.where(group < groups, x_RC, tl.zeros_like(x_RC))
        code_PBC, scale_PC = _scaled(tl.reshape(x_RC, (R // B, B, C)), 1, MX, ENCODING)
        place_R = block * R + tl.arange(0, R)
        columns_at_RC = columns_ptr + column_C.to(tl.int64)[None, :] * (blocks * R) + place_R[:, None]
        tl.store(columns_at_RC, tl.reshape(code_PBC, (R, C)), mask=(column_C < width)[None, :])
        block_P = block * (R // B) + tl.arange(0, R // B)
        all_blocks = blocks * (R // B)
        scales_at_PC = scales_at(column_scales_ptr, column_C[None, :], block_P[:, None], width, all_blocks, MX)
        tl.store(scales_at_PC, scale_PC, mask=(column_C < width)[None, :])
