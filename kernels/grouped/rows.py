"""Jagged rows times one matrix a group: (R, K) x (E, K, N) -> (R, N). Forward, and dgrad with b transposed.

Formula: `reference.py`. Persistent: a fixed number of programs walks the tiles of all groups, so the grid asks
nothing of `offs` and a long group is spread over all programs.

Shape suffixes: G groups and one for the rest, H rows and W columns of the output's tile, D depth of the contraction
taken at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.grouped.configs import Config
from kernels.grouped.tiles import bounds, described, multiply, place, pointers, write
from kernels.jit import named


@triton.jit(do_not_specialize=["groups", "rows"])
def multiply_rows(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, a_descriptor, b_descriptor, offs_ptr, out_ptr, groups, rows, inner, outer,
    stride_ar, stride_ak, stride_be, stride_bk, stride_bn,
    GROUPS: tl.constexpr, EVEN: tl.constexpr, DESCRIBED: tl.constexpr, B_TRANSPOSED: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """Group `groups` is the rest of the buffer: its contraction has no length, so it is written as zeros.

    GROUPS: a power of two above `groups`. EVEN: the configuration's depth divides `inner`. DESCRIBED: operands are read
    through their descriptors, b as B_TRANSPOSED says; rows of the next group are read then and not written.
    """
    CONFIG: tl.constexpr = named(Config, config)
    H: tl.constexpr = CONFIG.height
    W: tl.constexpr = CONFIG.width
    D: tl.constexpr = CONFIG.depth
    starts_G, ends_G = bounds(offs_ptr, groups, rows, GROUPS)
    wide = tl.cdiv(outer, W)
    tiles_G = tl.cdiv(tl.maximum(ends_G - starts_G, 0), H) * wide
    last_G = tl.cumsum(tiles_G, 0)

    depth_D = tl.arange(0, D)
    a_step = tl.cast(stride_ak, tl.int64) * D
    b_step = tl.cast(stride_bk, tl.int64) * D
    for tile in tl.range(tl.program_id(0), tl.sum(tiles_G, 0), tl.num_programs(0), flatten=CONFIG.flatten):
        before_G = last_G <= tile
        group = tl.sum(before_G.to(tl.int32), 0)
        start = tl.max(tl.where(before_G, ends_G, 0), 0)
        end = tl.min(tl.where(before_G, rows, ends_G), 0)
        index = tile - tl.max(tl.where(before_G, last_G, 0), 0)
        down, across = place(index, tl.maximum(tl.cdiv(end - start, H), 1), wide, CONFIG.band)

        first_row = start + down * H
        first_column = across * W
        row_H = first_row + tl.arange(0, H)
        column_W = first_column + tl.arange(0, W)
        a_HD = pointers(a_ptr, row_H, depth_D, stride_ar, stride_ak)
        b_DW = pointers(b_ptr + tl.cast(group, tl.int64) * stride_be, depth_D, column_W, stride_bk, stride_bn)
        acc_HW = tl.zeros((H, W), tl.float32)
        for k in range(0, tl.where(group < groups, inner, 0), D):
            if DESCRIBED:
                x_HD = a_descriptor.load([first_row, k])
                y_DW = described(b_descriptor, group, k, first_column, D, W, B_TRANSPOSED)
            else:
                left_D = depth_D < inner - k
                row_mask = (row_H < end)[:, None]
                column_mask = (column_W < outer)[None, :]
                x_HD = tl.load(a_HD, mask=row_mask if EVEN else row_mask & left_D[None, :], other=0.0)
                y_DW = tl.load(b_DW, mask=column_mask if EVEN else column_mask & left_D[:, None], other=0.0)
                a_HD += a_step
                b_DW += b_step
            acc_HW = multiply(x_HD, y_DW, acc_HW, CONFIG.emulate)
        write(out_ptr, acc_HW, row_H, column_W, end, outer, CONFIG.emulate)
