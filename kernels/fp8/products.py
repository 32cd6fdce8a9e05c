"""Grouped matmuls of scaled fp8 codes: forward and dgrad over jagged rows, wgrad over a jagged contraction.

    rows    out[r] = (a[r] @ b[g]) * a_inverse[r] * b_inverse[g],  g the group of row r
    groups  out[g] = (a[:, s:e] @ b[:, s:e]^T) * a_inverse[g] * b_inverse[g],  s to e the columns of group g

Formulas: `scaled.py`, whose emulation is the eager truth. The matrix units of Hopper take 8-bit operands with the
contraction contiguous only, and the quantisers write all of them so: whole tiles come by the bulk copy engine. Both
kernels are persistent: a fixed number of programs walks the tiles of all groups, so the grid asks nothing of `offs`;
rows of no group and groups of no row are written as zeros by the same launch.

Shape suffixes: H rows and W columns of the output's tile, D depth of the contraction taken at a time, G groups and one
for the rest.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.grouped.configs import Config
from kernels.grouped.tiles import bounds, place, write
from kernels.jit import named


@triton.jit
def _multiply(x_HD, y_DW, acc_HW, ACCURATE: tl.constexpr, EMULATE: tl.constexpr):  # type: ignore[no-untyped-def]
    """acc + x @ y. ACCURATE: sums leave the matrix unit's narrower accumulator after each step (Hopper; others have
    none). EMULATE multiplies in fp32: the products are the same, exactly."""
    if EMULATE:
        return tl.dot(x_HD.to(tl.float32), y_DW.to(tl.float32), acc_HW, input_precision="ieee")
    elif ACCURATE:
        return tl.dot(x_HD, y_DW, acc_HW, max_num_imprecise_acc=x_HD.shape[1])
    else:
        return tl.dot(x_HD, y_DW, acc_HW)


@triton.jit(do_not_specialize=["groups", "rows"])
def multiply_rows(  # type: ignore[no-untyped-def]
    a_descriptor, b_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, groups, rows, inner, outer,
    GROUPS: tl.constexpr, ACCURATE: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """a (rows, inner), b (groups, outer, inner) codes; a_inverse (rows,), b_inverse (groups, outer) fp32.

    GROUPS: a power of two above `groups`. Group `groups` is the rest of the buffer: its contraction has no length.
    A tile reads rows of the next group where its own ends, and does not write them.
    """
    CONFIG: tl.constexpr = named(Config, config)
    H: tl.constexpr = CONFIG.height
    W: tl.constexpr = CONFIG.width
    D: tl.constexpr = CONFIG.depth
    group_G = tl.arange(0, GROUPS)
    starts_G, ends_G = bounds(offs_ptr, groups, rows, GROUPS)
    wide = tl.cdiv(outer, W)
    last_G = tl.cumsum(tl.cdiv(tl.maximum(ends_G - starts_G, 0), H) * wide, 0)
    tiles = tl.max(last_G, 0)
    # What a tile asks for is the last group before it and how many tiles lie before that: one maximum tells both.
    passed_G = (last_G.to(tl.int64) << 32) | (group_G + 1)

    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        passed = tl.max(tl.where(last_G <= tile, passed_G, 0), 0)
        group = passed.to(tl.int32)
        start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
        end = tl.load(offs_ptr + group, mask=group < groups, other=rows)
        start = tl.minimum(tl.maximum(start, 0), rows)
        end = tl.minimum(tl.maximum(end, 0), rows)
        down, across = place(
            tile - (passed >> 32).to(tl.int32), tl.maximum(tl.cdiv(end - start, H), 1), wide, CONFIG.band
        )

        first_row = start + down * H
        first_column = across * W
        row_H = first_row + tl.arange(0, H)
        column_W = first_column + tl.arange(0, W)
        is_group = group < groups  # of the rest no scale is read, and the product is zero
        a_inverse_H = tl.load(a_inverse_ptr + row_H, mask=row_H < tl.where(is_group, end, 0), other=0.0)
        b_row_ptr = b_inverse_ptr + group.to(tl.int64) * outer
        b_inverse_W = tl.load(b_row_ptr + column_W, mask=column_W < tl.where(is_group, outer, 0), other=0.0)
        acc_HW = tl.zeros((H, W), tl.float32)
        for k in range(0, tl.where(is_group, inner, 0), D):
            x_HD = a_descriptor.load([first_row, k])
            y_WD = tl.reshape(b_descriptor.load([group, first_column, k]), (W, D))
            acc_HW = _multiply(x_HD, tl.trans(y_WD), acc_HW, ACCURATE, CONFIG.emulate)
        acc_HW = acc_HW * a_inverse_H[:, None] * b_inverse_W[None, :]
        write(out_ptr, acc_HW, row_H, column_W, end, outer, CONFIG.emulate)


@triton.jit
def within(start, end, codes):  # type: ignore[no-untyped-def]
    """A group's columns as both kernels of form "groups" take them: none or some of the buffer, from a multiple of 16.

    Ends that decrease, pass the buffer or are no multiples of 16 are the caller's error, and still touch no foreign
    memory: what comes of them is what right ends may be.
    """
    start = min(max(start, 0), codes) // 16 * 16
    return start, min(max(end, start), codes) // 16 * 16


@triton.jit(do_not_specialize=["groups"])
def multiply_groups(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, a_descriptor, b_descriptor, a_inverse_ptr, b_inverse_ptr, offs_ptr, out_ptr, groups, codes, height,
    width, ACCURATE: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """a (height, codes), b (width, codes); a_inverse (groups, height), b_inverse (groups, width) fp32; out (groups,
    height, width). `codes` and all ends are multiples of 16.

    Whole steps of D come by the bulk copy engine. It knows nothing of groups, and codes of the next one may be NaN:
    what is left of a group comes by masked loads.
    """
    CONFIG: tl.constexpr = named(Config, config)
    H: tl.constexpr = CONFIG.height
    W: tl.constexpr = CONFIG.width
    D: tl.constexpr = CONFIG.depth
    high = tl.cdiv(height, H)
    wide = tl.cdiv(width, W)
    depth_D = tl.arange(0, D)
    units = codes.to(tl.int64) // 16 * 16  # tells the compiler that it is a multiple
    for tile in tl.range(tl.program_id(0), groups * high * wide, tl.num_programs(0)):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, CONFIG.band)
        start = tl.load(offs_ptr + group - 1, mask=group > 0, other=0)
        start, end = within(start, tl.load(offs_ptr + group), codes)
        whole = start + (end - start) // D * D

        row_H = down * H + tl.arange(0, H)
        column_W = across * W + tl.arange(0, W)
        a_row_ptr = a_inverse_ptr + group.to(tl.int64) * height
        b_row_ptr = b_inverse_ptr + group.to(tl.int64) * width
        # A group of no row has whatever scale its quantiser wrote, and a product of zero.
        a_inverse_H = tl.load(a_row_ptr + row_H, mask=row_H < tl.where(start < end, height, 0), other=0.0)
        b_inverse_W = tl.load(b_row_ptr + column_W, mask=column_W < tl.where(start < end, width, 0), other=0.0)
        acc_HW = tl.zeros((H, W), tl.float32)
        for p in range(start, whole, D):
            x_HD = a_descriptor.load([down * H, p])
            y_WD = b_descriptor.load([across * W, p])
            acc_HW = _multiply(x_HD, tl.trans(y_WD), acc_HW, ACCURATE, CONFIG.emulate)
        if whole < end:
            left_D = depth_D < end - whole
            a_at_HD = a_ptr + row_H[:, None] * units + (whole + depth_D)[None, :]
            b_at_WD = b_ptr + column_W[:, None] * units + (whole + depth_D)[None, :]
            x_left_HD = tl.load(a_at_HD, mask=(row_H < height)[:, None] & left_D[None, :], other=0.0)
            y_left_WD = tl.load(b_at_WD, mask=(column_W < width)[:, None] & left_D[None, :], other=0.0)
            acc_HW = _multiply(x_left_HD, tl.trans(y_left_WD), acc_HW, ACCURATE, CONFIG.emulate)
        acc_HW = acc_HW * a_inverse_H[:, None] * b_inverse_W[None, :]
        matrix_ptr = out_ptr + group.to(tl.int64) * height * width
        write(matrix_ptr, acc_HW, row_H, column_W, height, width, CONFIG.emulate)
