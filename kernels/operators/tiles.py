"""What the kernels share on the device: which elements a program has."""

from __future__ import annotations

from kernels.jit import jit, tl


@jit()
def tile(rows, width, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows (R, 1) and columns (1, C) of this program's tile as 64-bit numbers, and which of its elements exist.

    Programs run along the columns first. The width may pass 2^31, where all lies in one row.
    """
    blocks = tl.cdiv(width, C)
    program = tl.program_id(0)
    row_R = (program // blocks).to(tl.int64) * R + tl.arange(0, R)
    column_C = (program % blocks).to(tl.int64) * C + tl.arange(0, C)
    return row_R[:, None], column_C[None, :], (row_R < rows)[:, None] & (column_C < width)[None, :]
