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
from kernels.grouped.tiles import multiply, place, write
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
def _add(  # type: ignore[no-untyped-def]
    x_HD, y_WD, acc_HW, x_scales_ptr, y_scales_ptr, row_H, end, rows, column_W, columns, k, blocks,
    MX: tl.constexpr, TAKES_SCALES: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """acc + x @ y^T of one step from k on, where `blocks` along each row of both share scales. TAKES_SCALES: the
    compiler has a product of codes with scales for the chip."""
    if MX:
        block_Q = k // 32 + tl.arange(0, x_HD.shape[1] // 32)
        there_Q = (block_Q < blocks)[None, :]
        x_at_HQ = scales_at(x_scales_ptr, row_H[:, None], block_Q[None, :], rows, blocks, MX)
        y_at_WQ = scales_at(y_scales_ptr, column_W[:, None], block_Q[None, :], columns, blocks, MX)
        x_HQ = tl.load(x_at_HQ, mask=(row_H < end)[:, None] & there_Q, other=0)
        y_WQ = tl.load(y_at_WQ, mask=(column_W < columns)[:, None] & there_Q, other=0)
        if TAKES_SCALES:
            return tl.dot_scaled(x_HD, x_HQ, "e4m3", tl.trans(y_WD), y_WQ, "e4m3", acc_HW)
        else:
            DTYPE: tl.constexpr = tl.float32 if EMULATE else tl.bfloat16
            return multiply(_decoded(x_HD, x_HQ, DTYPE), tl.trans(_decoded(y_WD, y_WQ, DTYPE)), acc_HW, EMULATE)
    else:
        x_H = tl.load(scales_at(x_scales_ptr, row_H, k // 128, rows, blocks, MX), mask=row_H < end, other=0.0)
        y_at_W = scales_at(y_scales_ptr, column_W, k // 128, columns, blocks, MX)
        y_W = tl.load(y_at_W, mask=column_W < columns, other=0.0)
        product_HW = multiply(x_HD, tl.trans(y_WD), tl.zeros(acc_HW.shape, tl.float32), EMULATE)
        return acc_HW + product_HW * (x_H[:, None] * y_W[None, :])


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
                scaled = row_H, end, rows, column_W, outer, k, blocks
                acc_HW = _add(x_HD, y_WD, acc_HW, a_scales_ptr, b_ptr, *scaled, MX, TAKES_SCALES, CONFIG.emulate)
            else:  # a tile is no wider than a square of the weight
                b = tl.load(b_ptr + (first_column // 128 * blocks + k // 128))
                a_at_H = scales_at(a_scales_ptr, row_H, k // 128, rows, blocks, MX)
                a_H = tl.load(a_at_H, mask=row_H < end, other=0.0)
                product_HW = multiply(x_HD, tl.trans(y_WD), tl.zeros((H, W), tl.float32), CONFIG.emulate)
                acc_HW += product_HW * (a_H * b)[:, None]
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
            scaled = row_H, height, height, column_W, width, p, blocks * 4 if MX else blocks
            acc_HW = _add(x_HD, y_WD, acc_HW, a_scales_ptr, b_scales_ptr, *scaled, MX, TAKES_SCALES, CONFIG.emulate)
        matrix_ptr = out_ptr + group.to(tl.int64) * height * width
        write(matrix_ptr, acc_HW, row_H, column_W, height, width, CONFIG.emulate)
