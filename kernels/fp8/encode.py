"""The arithmetic that every fp8 quantiser shares, as Triton functions.

Formulas are those of `reference.py`. Everything here is exact, so any tiling gives the same bits:
the amax is an integer maximum, the scale one IEEE division, the code one rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.fp8.formats import format_of
from kernels.hardware import hardware_of

AMAX_FLOOR = tl.constexpr(1e-12)

_TRITON_DTYPES = {
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e4m3fnuz: tl.float8e4b8,
    torch.float8_e5m2: tl.float8e5,
    torch.float8_e5m2fnuz: tl.float8e5b16,
}


class Encoding(NamedTuple):
    """How the kernels of a launch scale and encode.

    Attributes:
        max, nan_code, mantissa_bits, bias, has_negative_zero: those of the format (`formats.py`).
        native: Triton's name of the format where the chip converts to it by itself.
        power_of_two: scales are rounded down to one.
        inverse: scales are stored as their reciprocals, which is what a matmul multiplies by.
    """

    max: float
    nan_code: int
    mantissa_bits: int
    bias: int
    has_negative_zero: bool
    native: str | None
    power_of_two: bool
    inverse: bool

    @property
    def native_dtype(self) -> Any:
        return tl.dtype(self.native)

    @property
    def max_exponent(self) -> int:
        """That of the largest power of two that the format holds."""
        return int(self.max).bit_length() - 1


def encoding_of(dtype: torch.dtype, arch: str, power_of_two: bool, inverse: bool = False) -> Encoding:
    """That of an fp8 dtype on this architecture."""
    form = format_of(dtype)
    native = _TRITON_DTYPES[dtype].name if dtype in hardware_of(arch).native_fp8 else None
    return Encoding(
        form.max, form.nan_code, form.mantissa_bits, form.bias, form.has_negative_zero, native, power_of_two, inverse
    )


@triton.jit
def magnitude_bits(x):  # type: ignore[no-untyped-def]
    """|x| as an integer of the same width. Its order is that of |x|, with NaN > Inf > finite."""
    if x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        return x.to(tl.int16, bitcast=True) & 0x7FFF


@triton.jit
def scale_of(amax_bits, X_DTYPE: tl.constexpr, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
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
    scale = tl.div_rn(tl.full(floor.shape, ENCODING.max, tl.float32), floor)
    if ENCODING.power_of_two:
        scale = (scale.to(tl.int32, bitcast=True) & -8388608).to(tl.float32, bitcast=True)
    return tl.where(not_finite, float("nan"), scale), not_finite


@triton.jit
def stored_scale(scale, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
    """What becomes of a scale in memory; the reciprocal of a power of two is exact."""
    if ENCODING.inverse:
        return tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    else:
        return scale


@triton.jit
def encode(x, scale, not_finite, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
    """The uint8 codes of x under `scale`; `scale` and `not_finite` broadcast to x."""
    code = encode_finite(x.to(tl.float32) * scale, ENCODING)
    return tl.where(not_finite, ENCODING.nan_code, code).to(tl.uint8)


@triton.jit
def encode_finite(y, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
    """The uint8 codes of y fp32, clamped to the finite ones; those of NaN are any."""
    y = tl.clamp(y, -ENCODING.max, ENCODING.max)
    if ENCODING.native is not None:
        code = y.to(ENCODING.native_dtype).to(tl.uint8, bitcast=True)
    else:
        code = _encode_by_software(y, ENCODING.mantissa_bits, ENCODING.bias)
    if not ENCODING.has_negative_zero:
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
