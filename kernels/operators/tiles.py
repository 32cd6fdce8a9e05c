"""What the kernels share on the device: which elements a program has, and the one rounding at the store."""

from __future__ import annotations

from kernels.operators.jit import jit, tl


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


@jit()
def rounded(x, DTYPE: tl.constexpr, BY_HAND: tl.constexpr):  # type: ignore[no-untyped-def]
    """x fp32 in DTYPE, to nearest even. BY_HAND: Triton's interpreter truncates to bf16, and turns NaN into Inf."""
    if BY_HAND and DTYPE == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        half = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16)
        return tl.where(x == x, half, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(DTYPE)
