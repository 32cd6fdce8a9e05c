"""The one rounding at a kernel's store, right in Triton's interpreter as well."""

from __future__ import annotations

from kernels.jit import jit, tl


@jit()
def rounded(x, DTYPE: tl.constexpr, BY_HAND: tl.constexpr):  # type: ignore[no-untyped-def]
    """x fp32 in DTYPE, to nearest even. BY_HAND: Triton's interpreter truncates to bf16, and turns NaN into Inf."""
    if BY_HAND and DTYPE == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        half = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16)
        return tl.where(x == x, half, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(DTYPE)
