"""What both products share on the device: which tile is next, how operands are read, how a tile is written.

Shape suffixes: H height and W width of the output's tile, D depth of the contraction taken at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.rounding import rounded


@triton.jit
def place(index, high, wide, BAND: tl.constexpr):  # type: ignore[no-untyped-def]
    """(row, column) of tile `index` of a matrix of high x wide tiles.

    Tiles come in bands of BAND rows, down a band's column before the next column. What runs at a time is then a
    compact piece of the matrix: each operand's panel is read from memory once and from the cache for the rest.
    """
    band = index // (BAND * wide)
    first = band * BAND
    rows = min(high - first, BAND)  # Gluon, which calls this too, has no tl.minimum
    within = index - band * (BAND * wide)
    return first + within % rows, within // rows


@triton.jit
def bounds(offs_ptr, groups, rows, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(first row, end) of each of GROUPS groups, of which `groups` are in offs: the next is the rest of the buffer
    of `rows`, the others are empty.

    Ends that decrease or pass the buffer are the caller's error, and still touch no foreign memory.
    """
    group_G = tl.arange(0, GROUPS)
    ends_G = tl.load(offs_ptr + group_G, mask=group_G < groups, other=rows)
    starts_G = tl.load(offs_ptr + group_G - 1, mask=(group_G > 0) & (group_G <= groups), other=0)
    ends_G = tl.minimum(tl.maximum(ends_G, 0), rows)
    return tl.where(group_G > groups, rows, tl.minimum(tl.maximum(starts_G, 0), rows)), ends_G


@triton.jit
def pointers(ptr, row_H, column_W, stride_row, stride_column):  # type: ignore[no-untyped-def]
    """(H, W) addresses; every product of index and stride in 64 bits."""
    down_H = row_H.to(tl.int64)[:, None] * stride_row
    return ptr + down_H + column_W.to(tl.int64)[None, :] * stride_column


@triton.jit
def described(  # type: ignore[no-untyped-def]
    descriptor, batch, row, column, H: tl.constexpr, W: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """Tile (H, W) of matrix `batch` of several that lie in memory as they are or TRANSPOSED; zero past the ends."""
    if TRANSPOSED:
        return tl.trans(tl.reshape(descriptor.load([batch, column, row]), (W, H)))
    else:
        return tl.reshape(descriptor.load([batch, row, column]), (H, W))


@triton.jit
def multiply(x_HD, y_DW, acc_HW, EMULATE: tl.constexpr):  # type: ignore[no-untyped-def]
    """acc + x @ y in fp32. EMULATE multiplies 16-bit operands in fp32: the same products, exactly."""
    if EMULATE:
        x_HD = x_HD.to(tl.float32)
        y_DW = y_DW.to(tl.float32)
    return tl.dot(x_HD, y_DW, acc_HW, input_precision="ieee")


@triton.jit
def write(  # type: ignore[no-untyped-def]
    out_ptr, acc_HW, row_H, column_W, row_end, columns, EMULATE: tl.constexpr
):
    """Round once to the output's dtype; rows from `row_end` on and columns past the end are others' or nobody's."""
    at_HW = pointers(out_ptr, row_H, column_W, columns, 1)
    mask_HW = (row_H < row_end)[:, None] & (column_W < columns)[None, :]
    tl.store(at_HW, rounded(acc_HW, out_ptr.dtype.element_ty, EMULATE), mask=mask_HW)
