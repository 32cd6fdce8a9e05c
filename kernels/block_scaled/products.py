"""Grouped products of codes with block scales: forward and dgrad over jagged rows, wgrad over padded groups.

Formulas: `reference.py`. With scales in float32 the matrix unit's sum of a block leaves it before the next one: it is
scaled and added up in float32, which also bounds what Hopper's narrower accumulators lose (DeepSeek-V3's promotion
each 128). MX scales go into the matrix unit where it takes them (sm_100, gfx950); elsewhere operands are multiplied by
them in bf16. Both kernels are persistent, and the grid asks nothing of `offs`.

Shape suffixes: H rows and W columns of the output's tile, D depth of the contraction taken at a time, Q blocks of it,
G groups and one for the rest.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.block_scaled.quantize import block_ends, scales_at, span
from kernels.grouped.configs import Config
from kernels.grouped.tiles import place, write
from kernels.jit import named


@triton.jit
def _decoded(x_HD, exponent_HQ, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Codes times powers of two, which bf16 holds exactly but for the least; 0 is 2^-127 and 255 NaN."""
    bits_HQ = tl.maximum(exponent_HQ.to(tl.int32) << 23, 0x400000)
    factor_HQ = tl.where(exponent_HQ == 255, 0x7FC00000, bits_HQ).to(tl.float32, bitcast=True).to(DTYPE)
    Q: tl.constexpr = exponent_HQ.shape[1]
    x_HQB = tl.reshape(x_HD.to(DTYPE), (x_HD.shape[0], Q, x_HD.shape[1] // Q))
    return tl.reshape(x_HQB * factor_HQ[:, :, None], x_HD.shape)


@triton.jit
def _multiply_mx(  # type: ignore[no-untyped-def]
    x_HD, x_HQ, y_WD, y_WQ, acc_HW, TAKES_SCALES: tl.constexpr, EMULATE: tl.constexpr
):
    """TAKES_SCALES: the compiler has a product of codes with scales for the chip."""
    if TAKES_SCALES:
        return tl.dot_scaled(x_HD, x_HQ, "e4m3", tl.trans(y_WD), y_WQ, "e4m3", acc_HW)
    else:
        DTYPE: tl.constexpr = tl.float32 if EMULATE else tl.bfloat16
        y_DW = tl.trans(_decoded(y_WD, y_WQ, DTYPE))
        return tl.dot(_decoded(x_HD, x_HQ, DTYPE), y_DW, acc_HW, input_precision="ieee")


@triton.jit
def _multiply(x_HD, y_WD, EMULATE: tl.constexpr):  # type: ignore[no-untyped-def]
    """One step alone. EMULATE multiplies in float32: the products are the same, exactly."""
    if EMULATE:
        return tl.dot(x_HD.to(tl.float32), tl.trans(y_WD.to(tl.float32)), input_precision="ieee")
    else:
        return tl.dot(x_HD, tl.trans(y_WD))


@triton.jit(do_not_specialize=["groups", "rows"])
def multiply_rows(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, a_scales_ptr, b_scales_ptr, offs_ptr, out_ptr, groups, rows, inner, outer,
    GROUPS: tl.constexpr, MX: tl.constexpr, TAKES_SCALES: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """a (rows, inner), b (groups, outer, inner) codes; scales of a (rows, inner / 128) and b (groups, outer / 128,
    inner / 128), or with MX (rows, inner / 32) and (groups, outer, inner / 32); out (rows, outer).

    GROUPS: a power of two above `groups`. Group `groups` is the rest of the rows: its contraction has no length. A
    tile reads rows of the next group where its own ends, and does not write them.
    """
    CONFIG: tl.constexpr = named(Config, config)
    H: tl.constexpr = CONFIG.height
    W: tl.constexpr = CONFIG.width
    D: tl.constexpr = CONFIG.depth
    wide = tl.cdiv(outer, W)
    last_G = block_ends(offs_ptr, groups, rows, H, GROUPS) * wide
    blocks = tl.cdiv(inner, 32 if MX else 128)
    matrix_blocks = (outer if MX else tl.cdiv(outer, 128)).to(tl.int64) * blocks

    for tile in tl.range(tl.program_id(0), tl.max(last_G, 0), tl.num_programs(0)):
        group = tl.sum((last_G <= tile).to(tl.int32), 0)
        start, end = span(offs_ptr, group, groups, rows)
        first = tl.max(tl.where(last_G <= tile, last_G, 0), 0)
        down, across = place(tile - first, tl.maximum(tl.cdiv(end - start, H), 1), wide, CONFIG.band)

        first_row = start + down * H
        first_column = across * W
        row_H = first_row + tl.arange(0, H)
        column_W = first_column + tl.arange(0, W)
        b_ptr = b_scales_ptr + group * matrix_blocks
        acc_HW = tl.zeros((H, W), tl.float32)
        for k in range(0, tl.where(group < groups, inner, 0), D):
            x_HD = a_descriptor.load([first_row, k])
            y_WD = tl.reshape(b_descriptor.load([group, first_column, k]), (W, D))
            if MX:
                block_Q = k // 32 + tl.arange(0, D // 32)
                there_Q = (block_Q < blocks)[None, :]
                a_at_HQ = scales_at(a_scales_ptr, row_H[:, None], block_Q[None, :], rows, blocks, MX)
                b_at_WQ = scales_at(b_ptr, column_W[:, None], block_Q[None, :], outer, blocks, MX)
                a_HQ = tl.load(a_at_HQ, mask=(row_H < end)[:, None] & there_Q, other=0)
                b_WQ = tl.load(b_at_WQ, mask=(column_W < outer)[:, None] & there_Q, other=0)
                acc_HW = _multiply_mx(x_HD, a_HQ, y_WD, b_WQ, acc_HW, TAKES_SCALES, CONFIG.emulate)
            else:  # a tile is no wider than a square of the weight
                b = tl.load(b_ptr + (first_column // 128 * blocks + k // 128))
                a_at_H = scales_at(a_scales_ptr, row_H, k // 128, rows, blocks, MX)
                a_H = tl.load(a_at_H, mask=row_H < end, other=0.0)
                acc_HW += _multiply(x_HD, y_WD, CONFIG.emulate) * (a_H * b)[:, None]
        write(out_ptr, acc_HW, row_H, column_W, end, outer, CONFIG.emulate)


@triton.jit(do_not_specialize=["groups", "rows", "blocks"])
def multiply_groups(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, a_scales_ptr, b_scales_ptr, offs_ptr, out_ptr, groups, rows, blocks, height, width,
    GROUPS: tl.constexpr, MX: tl.constexpr, TAKES_SCALES: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """a (height, P), b (width, P) codes of padded groups, P = 128 * blocks; scales (height, P / 128) and (width,
    P / 128), or with MX (..., P / 32); out (groups, height, width). Every step is within one group."""
    CONFIG: tl.constexpr = named(Config, config)
    H: tl.constexpr = CONFIG.height
    W: tl.constexpr = CONFIG.width
    D: tl.constexpr = CONFIG.depth
    high = tl.cdiv(height, H)
    wide = tl.cdiv(width, W)
    group_G = tl.arange(0, GROUPS)
    last_G = tl.minimum(block_ends(offs_ptr, groups, rows, 128, GROUPS), blocks)

    for tile in tl.range(tl.program_id(0), groups * high * wide, tl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, CONFIG.band)
        start = tl.max(tl.where(group_G < group, last_G, 0), 0) * 128
        end = tl.max(tl.where(group_G <= group, last_G, 0), 0) * 128
        row_H = down * H + tl.arange(0, H)
        column_W = across * W + tl.arange(0, W)
        acc_HW = tl.zeros((H, W), tl.float32)
        for p in range(start, end, D):
            x_HD = a_descriptor.load([down * H, p])
            y_WD = b_descriptor.load([across * W, p])
            if MX:
                block_Q = (p // 32 + tl.arange(0, D // 32))[None, :]
                a_at_HQ = scales_at(a_scales_ptr, row_H[:, None], block_Q, height, blocks * 4, MX)
                b_at_WQ = scales_at(b_scales_ptr, column_W[:, None], block_Q, width, blocks * 4, MX)
                a_HQ = tl.load(a_at_HQ, mask=(row_H < height)[:, None], other=0)
                b_WQ = tl.load(b_at_WQ, mask=(column_W < width)[:, None], other=0)
                acc_HW = _multiply_mx(x_HD, a_HQ, y_WD, b_WQ, acc_HW, TAKES_SCALES, CONFIG.emulate)
            else:
                a_at_H = scales_at(a_scales_ptr, row_H, p // 128, height, blocks, MX)
                b_at_W = scales_at(b_scales_ptr, column_W, p // 128, width, blocks, MX)
                a_H = tl.load(a_at_H, mask=row_H < height, other=0.0)
                b_W = tl.load(b_at_W, mask=column_W < width, other=0.0)
                acc_HW += _multiply(x_HD, y_WD, CONFIG.emulate) * (a_H[:, None] * b_W[None, :])
        matrix_ptr = out_ptr + group.to(tl.int64) * height * width
        write(matrix_ptr, acc_HW, row_H, column_W, height, width, CONFIG.emulate)
