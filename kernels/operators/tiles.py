"""What the kernels share on the device: which elements a program has."""

from __future__ import annotations

from kernels.jit import jit, tl


@jit()
def tile(rows, width, R: tl.constexpr, C: tl.constexpr, BANDS: tl.constexpr = False):  # type: ignore[no-untyped-def]
    """Rows (R, 1) and columns (1, C) of this program's tile as 64-bit numbers, and which of its elements exist.

    Programs run along the columns first, in BANDS along the rows: all of C columns, then all of the next. The width
    may pass 2^31, where all lies in one row.
    """
    program = tl.program_id(0)
    if BANDS:
        blocks = tl.cdiv(rows, R)
        block, band = program % blocks, program // blocks
    else:
        blocks = tl.cdiv(width, C)
        block, band = program // blocks, program % blocks
    row_R = block.to(tl.int64) * R + tl.arange(0, R)
    column_C = band.to(tl.int64) * C + tl.arange(0, C)
    return row_R[:, None], column_C[None, :], (row_R < rows)[:, None] & (column_C < width)[None, :]
