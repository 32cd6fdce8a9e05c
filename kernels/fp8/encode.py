"""The arithmetic that every fp8 quantiser shares, as Triton functions.

Formulas are those of `reference.py`. Everything here is exact, so any tiling gives the same bits:
the amax is an integer maximum, the scale one IEEE division, the code one rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.fp8.formats import Format
from kernels.hardware import hardware_of

AMAX_FLOOR = tl.constexpr(1e-12)

_TRITON_DTYPES = {
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e4m3fnuz: tl.float8e4b8,
    torch.float8_e5m2: tl.float8e5,
    torch.float8_e5m2fnuz: tl.float8e5b16,
}


def format_constants(format_: Format, arch: str, power_of_two: bool, inverse: bool = False) -> Mapping[str, Any]:
    """The constexpr arguments that tell a kernel how to scale and encode on this architecture.

    INVERSE: scales are stored as their reciprocals, which is what a matmul multiplies by.
    NATIVE is the Triton type when the chip converts to it by itself and None otherwise.
    """
    native = _TRITON_DTYPES[format_.dtype] if format_.dtype in hardware_of(arch).native_fp8 else None
    return {
        "MAX": format_.max,
        "NAN_CODE": format_.nan_code,
        "MANTISSA": format_.mantissa_bits,
        "BIAS": format_.bias,
        "NEGATIVE_ZERO": format_.has_negative_zero,
        "NATIVE": native,
        "POWER_OF_TWO": power_of_two,
        "INVERSE": inverse,
    }


@triton.jit
def magnitude_bits(x):  # type: ignore[no-untyped-def]
    """|x| as an integer of the same width. Its order is that of |x|, with NaN > Inf > finite."""
    if x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        return x.to(tl.int16, bitcast=True) & 0x7FFF


@triton.jit
def scale_of(  # type: ignore[no-untyped-def]
    amax_bits, X_DTYPE: tl.constexpr, MAX: tl.constexpr, POWER_OF_TWO: tl.constexpr
):
    """(scale fp32, is the slice not finite) from the int32 bits of its amax in the input dtype."""
    if X_DTYPE == tl.bfloat16:
        not_finite = amax_bits >= 0x7F80
        amax = (amax_bits << 16).to(tl.float32, bitcast=True)
    elif X_DTYPE == tl.float16:
        not_finite = amax_bits >= 0x7C00
        amax = amax_bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        not_finite = amax_bits >= 0x7F800000
        amax = amax_bits.to(tl.float32, bitcast=True)
    # Plain `/` is approximate on NVIDIA.
    floor = tl.where(not_finite, 1.0, tl.maximum(amax, AMAX_FLOOR))
    scale = tl.div_rn(tl.full(floor.shape, MAX, tl.float32), floor)
    if POWER_OF_TWO:
        scale = (scale.to(tl.int32, bitcast=True) & -8388608).to(tl.float32, bitcast=True)
    return tl.where(not_finite, float("nan"), scale), not_finite


@triton.jit
def stored_scale(scale, INVERSE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What becomes of a scale in memory; the reciprocal of a power of two is exact."""
    if INVERSE:
        return tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    else:
        return scale


@triton.jit
def encode(  # type: ignore[no-untyped-def]
    x,
    scale,
    not_finite,
    MAX: tl.constexpr,
    NAN_CODE: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    NEGATIVE_ZERO: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """The uint8 codes of x under `scale`; `scale` and `not_finite` broadcast to x."""
    code = encode_finite(x.to(tl.float32) * scale, MAX, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE)
    return tl.where(not_finite, NAN_CODE, code).to(tl.uint8)


@triton.jit
def encode_finite(  # type: ignore[no-untyped-def]
    y,
    MAX: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    NEGATIVE_ZERO: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """The uint8 codes of y fp32, clamped to the finite ones; those of NaN are any."""
    y = tl.clamp(y, -MAX, MAX)
    if NATIVE is not None:
        code = y.to(NATIVE).to(tl.uint8, bitcast=True)
    else:
        code = _encode_by_software(y, MANTISSA, BIAS)
    if not NEGATIVE_ZERO:
        code = tl.where(code == 0x80, 0, code)
    return code.to(tl.uint8)


@triton.jit
def _encode_by_software(y, MANTISSA: tl.constexpr, BIAS: tl.constexpr):  # type: ignore[no-untyped-def]
    """fp32 in [-MAX, MAX] to the nearest code, ties to even; NaN gives any code."""
    SHIFT: tl.constexpr = 23 - MANTISSA
    bits = y.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Normal: drop SHIFT bits, carrying into the exponent where that rounds up, and change the bias.
    rounded = magnitude + ((1 << (SHIFT - 1)) - 1) + ((magnitude >> SHIFT) & 1)
    normal = (rounded >> SHIFT) - ((127 - BIAS) << MANTISSA)
    # Subnormal: next to this power of two, the spacing of fp32 is the spacing of the codes.
    MAGIC: tl.constexpr = (127 + 24 - BIAS - MANTISSA) << 23
    magic = tl.full(y.shape, MAGIC, tl.int32).to(tl.float32, bitcast=True)
    subnormal = (magnitude.to(tl.float32, bitcast=True) + magic).to(tl.int32, bitcast=True) - MAGIC
    code = tl.where(magnitude < ((128 - BIAS) << 23), subnormal, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
