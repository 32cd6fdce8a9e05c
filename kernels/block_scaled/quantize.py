"""Codes of tokens along both axes in one pass: along rows as they lie, along columns group by group and transposed.

Formulas: `reference.py`. A program has 128 rows of one group, or fewer at its end, and 128 columns: every block of
either axis lies within one program, so an element of 16 bits moves 4 bytes instead of the 6 of two quantisers, and the
groups need no padded copy.

Shape suffixes: R rows and C columns of a tile, G groups and one for the rest, P by Q blocks of B.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.fp8.blocks import block_scale
from kernels.fp8.encode import Encoding, encode, magnitude_bits
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
def _quantize_rows(  # type: ignore[no-untyped-def]
    x_ptr, codes_ptr, scales_ptr, row_R, end, rows, first_column, width, stride_r, stride_k,
    C: tl.constexpr, B: tl.constexpr, MX: tl.constexpr, ENCODING: tl.constexpr,
):  # fmt: skip
    """Codes and scales of C columns of some rows, whose values it returns, zero past the ends."""
    R: tl.constexpr = row_R.shape[0]
    column_C = first_column + tl.arange(0, C)
    inside_RC = (row_R < end)[:, None] & (column_C < width)[None, :]
    x_at_RC = x_ptr + row_R.to(tl.int64)[:, None] * stride_r + column_C.to(tl.int64)[None, :] * stride_k
    x_RC = tl.load(x_at_RC, mask=inside_RC, other=0.0)
    x_RQB = tl.reshape(x_RC, (R, C // B, B))
    amax_RQ = tl.max(magnitude_bits(x_RQB).to(tl.int32), 2)
    scale_RQ, spoilt_RQ, stored_RQ = block_scale(amax_RQ, x_RC.dtype, MX, ENCODING)
    code_RQB = encode(x_RQB, scale_RQ[:, :, None], spoilt_RQ[:, :, None], ENCODING)
    codes_at_RC = codes_ptr + row_R.to(tl.int64)[:, None] * width + column_C[None, :]
    tl.store(codes_at_RC, tl.reshape(code_RQB, (R, C)), mask=inside_RC)
    block_Q = first_column // B + tl.arange(0, C // B)
    there_RQ = (row_R < end)[:, None] & (block_Q < tl.cdiv(width, B))[None, :]
    scales_at_RQ = scales_at(scales_ptr, row_R[:, None], block_Q[None, :], rows, tl.cdiv(width, B), MX)
    tl.store(scales_at_RQ, stored_RQ, mask=there_RQ)
    return x_RC


@triton.jit
def _column_codes(x_VC, scale_PC, spoilt_PC, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Codes of one row of each word, as 32 bits."""
    P: tl.constexpr = scale_PC.shape[0]
    x_PVC = tl.reshape(x_VC, (P, x_VC.shape[0] // P, x_VC.shape[1]))
    code_PVC = encode(x_PVC, scale_PC[:, None, :], spoilt_PC[:, None, :], ENCODING)
    return tl.reshape(code_PVC, x_VC.shape).to(tl.uint32)


@triton.jit(do_not_specialize=["groups", "rows", "blocks"])
def quantize_tokens(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, codes_ptr, scales_ptr, columns_ptr, column_scales_ptr, groups, rows, width, blocks,
    stride_r, stride_k,
    GROUPS: tl.constexpr, MX: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    encoding: tl.constexpr,
):  # fmt: skip
    """x (rows, width) -> codes of its shape, scales (rows, width / B); codes (width, blocks * R), scales (width, blocks
    * R / B). Codes uint8, contiguous, those of columns written in words of four. Rows of no group have codes along rows
    alone, and columns zeros behind the last group."""
    ENCODING: tl.constexpr = named(Encoding, encoding)
    B: tl.constexpr = 32 if MX else 128
    across = tl.cdiv(width, C)
    block = tl.program_id(0) // across
    last_G = block_ends(offs_ptr, groups, rows, R, GROUPS)
    group = tl.sum((last_G <= block).to(tl.int32), 0)
    start, end = span(offs_ptr, group, groups, rows)
    end = tl.where(group <= groups, end, 0)  # a program that no block is left for writes zeros behind the columns
    first = tl.max(tl.where(last_G <= block, last_G, 0), 0)

    # A thread has four neighbouring rows of its columns, one of each tile: it turns whole words, and not bytes.
    row_V = start + (block - first) * R + 4 * tl.arange(0, R // 4)
    first_column = (tl.program_id(0) % across) * C
    given = x_ptr, codes_ptr, scales_ptr
    where = end, rows, first_column, width, stride_r, stride_k
    x0_VC = _quantize_rows(*given, row_V, *where, C, B, MX, ENCODING)
    x1_VC = _quantize_rows(*given, row_V + 1, *where, C, B, MX, ENCODING)
    x2_VC = _quantize_rows(*given, row_V + 2, *where, C, B, MX, ENCODING)
    x3_VC = _quantize_rows(*given, row_V + 3, *where, C, B, MX, ENCODING)

    if block < blocks:  # wrong ends may ask for more than there are
        low_VC = tl.maximum(magnitude_bits(x0_VC), magnitude_bits(x1_VC))
        high_VC = tl.maximum(magnitude_bits(x2_VC), magnitude_bits(x3_VC))
        amax_VC = tl.where(group < groups, tl.maximum(low_VC, high_VC).to(tl.int32), 0)
        amax_PC = tl.max(tl.reshape(amax_VC, (R // B, B // 4, C)), 1)
        scale_PC, spoilt_PC, stored_PC = block_scale(amax_PC, x0_VC.dtype, MX, ENCODING)
        word_VC = _column_codes(x0_VC, scale_PC, spoilt_PC, ENCODING)
        word_VC |= _column_codes(x1_VC, scale_PC, spoilt_PC, ENCODING) << 8
        word_VC |= _column_codes(x2_VC, scale_PC, spoilt_PC, ENCODING) << 16
        word_VC |= _column_codes(x3_VC, scale_PC, spoilt_PC, ENCODING) << 24
        word_VC = tl.where(group < groups, word_VC, 0)
        column_C = first_column + tl.arange(0, C)
        place_V = block * (R // 4) + tl.arange(0, R // 4)
        words_ptr = columns_ptr.to(tl.pointer_type(tl.uint32))
        words_at_VC = words_ptr + column_C.to(tl.int64)[None, :] * (blocks * (R // 4)) + place_V[:, None]
        tl.store(words_at_VC, word_VC, mask=(column_C < width)[None, :])
        block_P = block * (R // B) + tl.arange(0, R // B)
        all_blocks = blocks * (R // B)
        scales_at_PC = scales_at(column_scales_ptr, column_C[None, :], block_P[:, None], width, all_blocks, MX)
        tl.store(scales_at_PC, stored_PC, mask=(column_C < width)[None, :])
