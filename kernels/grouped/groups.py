"""One product a group over its rows: (K, R) x (R, N) -> (E, K, N). The gradient of the weights.

Formula: `reference.py`. Persistent, and without atomics: a tile of the output is summed by one program, in the
order of the rows.

Shape suffixes: H rows and W columns of the output's tile, D rows of a group taken at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.grouped.configs import Config
from kernels.grouped.tiles import multiply, place, pointers, write
from kernels.jit import named


@triton.jit(do_not_specialize=["groups", "rows"])
def multiply_groups(  # type: ignore[no-untyped-def]
    a_ptr, b_ptr, a_descriptor, b_descriptor, offs_ptr, out_ptr, groups, rows, inner, outer,
    stride_ak, stride_ar, stride_br, stride_bn, DESCRIBED: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """An empty group is written as zeros. DESCRIBED: whole blocks of D rows are read through descriptors, of (R, K)
    and (R, N), which know nothing of groups; the rest of a group is read by masked loads, since the rows behind it may
    hold NaN.
    """
    CONFIG: tl.constexpr = named(Config, config)
    H: tl.constexpr = CONFIG.height
    W: tl.constexpr = CONFIG.width
    D: tl.constexpr = CONFIG.depth
    high = tl.cdiv(inner, H)
    wide = tl.cdiv(outer, W)
    depth_D = tl.arange(0, D)
    a_step = tl.cast(stride_ar, tl.int64) * D
    b_step = tl.cast(stride_br, tl.int64) * D
    for tile in tl.range(tl.program_id(0), groups * high * wide, tl.num_programs(0), flatten=CONFIG.flatten):
        group = tile // (high * wide)
        down, across = place(tile - group * (high * wide), high, wide, CONFIG.band)
        # Ends that decrease or pass the buffer are the caller's error, and still touch no foreign memory.
        start = tl.minimum(tl.maximum(tl.load(offs_ptr + group - 1, mask=group > 0, other=0), 0), rows)
        end = tl.minimum(tl.maximum(tl.load(offs_ptr + group), start), rows)

        row_H = down * H + tl.arange(0, H)
        column_W = across * W + tl.arange(0, W)
        row_mask = (row_H < inner)[:, None]
        column_mask = (column_W < outer)[None, :]
        acc_HW = tl.zeros((H, W), tl.float32)
        if DESCRIBED:
            whole = start + (end - start) // D * D
            for r in range(start, whole, D):
                x_HD = tl.trans(a_descriptor.load([r, down * H]))
                y_DW = b_descriptor.load([r, across * W])
                acc_HW = multiply(x_HD, y_DW, acc_HW, CONFIG.emulate)
            if whole < end:
                left_D = depth_D < end - whole
                a_HD = pointers(a_ptr, row_H, whole + depth_D, stride_ak, stride_ar)
                b_DW = pointers(b_ptr, whole + depth_D, column_W, stride_br, stride_bn)
                x_HD = tl.load(a_HD, mask=row_mask & left_D[None, :], other=0.0)
                y_DW = tl.load(b_DW, mask=column_mask & left_D[:, None], other=0.0)
                acc_HW = multiply(x_HD, y_DW, acc_HW, CONFIG.emulate)
        else:
            a_HD = pointers(a_ptr, row_H, start + depth_D, stride_ak, stride_ar)
            b_DW = pointers(b_ptr, start + depth_D, column_W, stride_br, stride_bn)
            for r in range(start, end, D):
                left_D = depth_D < end - r
                x_HD = tl.load(a_HD, mask=row_mask & left_D[None, :], other=0.0)
                y_DW = tl.load(b_DW, mask=column_mask & left_D[:, None], other=0.0)
                acc_HW = multiply(x_HD, y_DW, acc_HW, CONFIG.emulate)
                a_HD += a_step
                b_DW += b_step
        matrix_ptr = out_ptr + tl.cast(group, tl.int64) * inner * outer
        write(matrix_ptr, acc_HW, row_H, column_W, inner, outer, CONFIG.emulate)
