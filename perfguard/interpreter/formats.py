"""Floats that NumPy lacks, as the bits that Triton's interpreter stores: bfloat16 and five 8-bit formats.

Operations compute in float32, which represents each of them exactly, and round once to the nearest, ties to even.
Rounding the float32 result of one operation equals rounding the exact result, since 24 bits >= 2 · 8 + 2.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BF16 = "bf16"


@dataclass(frozen=True)
class _Format:
    """An 8-bit format.

    Attributes:
        mantissa, bias: the bits of the mantissa, and the bias of the exponent.
        largest: the code of the largest finite number.
        infinity: the code of infinity; None: there is none.
        nan: the code of NaN; None: there is none.
        beyond: the code for overflow and infinity.
        unsigned_zero: whether the format lacks -0, so that its code is NaN.
    """

    mantissa: int
    bias: int
    largest: int
    infinity: int | None
    nan: int | None
    beyond: int
    unsigned_zero: bool = False


# The formats are those of the OCP 8-bit Floating Point Specification 1.0 (e4m3 as NVIDIA's float8e4nv, e5m2), of AMD's
# CDNA 3 ISA (fnuz), and Triton's e4b15. Overflow saturates as in PTX's `cvt.rn.satfinite` and in Triton's code for
# e4b15; in the fnuz formats it is NaN, as in PyTorch.
FP8 = {
    "fp8e4nv": _Format(3, 7, 0x7E, None, 0x7F, 0x7E),
    "fp8e5": _Format(2, 15, 0x7B, 0x7C, 0x7F, 0x7B),
    "fp8e4b8": _Format(3, 8, 0x7F, None, 0x80, 0x80, unsigned_zero=True),
    "fp8e5b16": _Format(2, 16, 0x7F, None, 0x80, 0x80, unsigned_zero=True),
    "fp8e4b15": _Format(3, 15, 0x7F, None, None, 0x7F),
}
CODED = {BF16, *FP8}

_SIGN = 0x80
_QUIET = 0x7FC0  # NaN of bfloat16.


@functools.cache
def _values(name: str) -> Array:
    """The float32 value of each code."""
    form = FP8[name]
    codes = np.arange(256)
    exponent, mantissa = (codes & 0x7F) >> form.mantissa, codes & ((1 << form.mantissa) - 1)
    scaled = np.where(exponent == 0, mantissa, mantissa + (1 << form.mantissa)).astype(np.float64)
    values = np.ldexp(scaled, np.maximum(exponent, 1) - form.bias - form.mantissa)
    values[(codes & 0x7F) > form.largest] = np.nan
    if form.infinity is not None:
        values[form.infinity] = np.inf
    values[_SIGN:] = -values[:_SIGN]
    if form.unsigned_zero:
        values[_SIGN] = np.nan
    result: Array = values.astype(np.float32)
    return result


@functools.cache
def _middles(name: str) -> Array:
    """The middles between the magnitudes of adjacent codes; the largest has a hypothetical next one."""
    finite = _values(name)[: FP8[name].largest + 1].astype(np.float64)
    following = np.append(finite[1:], 2 * finite[-1] - finite[-2])
    middles: Array = (finite + following) / 2
    return middles


def decoded(bits: Array, name: str) -> Array:
    """The float32 values of bits in a format."""
    if name == BF16:
        widened: Array = (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return widened
    values: Array = _values(name)[bits.view(np.uint8)]
    return values


def encoded(numbers: Array, name: str, *, truncate: bool = False) -> Array:
    """The bits of floats in a format, rounded to the nearest, ties to even, or towards zero if `truncate`."""
    if name == BF16:
        return _bfloat16(numbers, truncate)
    form = FP8[name]
    given = numbers.astype(np.float64 if numbers.dtype == np.float64 else np.float32)
    magnitude = np.abs(given)
    if truncate:
        finite = _values(name)[: form.largest + 1].astype(given.dtype)
        codes = np.searchsorted(finite, magnitude, side="right") - 1
        beyond = np.isinf(magnitude)
    else:
        middles = _middles(name).astype(given.dtype)
        codes = np.searchsorted(middles, magnitude, side="left")
        odd_tie = (codes & 1 == 1) & (middles[np.minimum(codes, form.largest)] == magnitude)
        codes = codes + odd_tie
        beyond = codes > form.largest
    codes = np.where(beyond, form.beyond, codes)
    signed = np.signbit(given) & ((codes != 0) & ~beyond if form.unsigned_zero else True)
    codes = np.where(signed, codes | _SIGN, codes)
    if form.nan is not None:
        codes = np.where(np.isnan(given), form.nan, codes)
    result: Array = codes.astype(np.uint8)
    return result


def _bfloat16(numbers: Array, truncate: bool) -> Array:
    given = _to_odd(numbers) if numbers.dtype == np.float64 else numbers.astype(np.float32)
    bits = given.view(np.uint32)
    short = bits >> 16
    if not truncate:
        short = (bits + (0x7FFF + (short & 1))) >> 16
    result: Array = np.where(np.isnan(given), _QUIET, short).astype(np.uint16)
    return result


def sum_to_odd(left: Array, right: Array) -> Array:
    """The sum in float64 with an odd last bit if inexact (see `_to_odd`); the error is that of Knuth's TwoSum."""
    wide = right.astype(np.float64)
    total = np.asarray(left + wide)
    with np.errstate(invalid="ignore"):  # Infinities have no error.
        added = total - left
        error = (left - (total - added)) + (wide - added)
    even = (total.view(np.uint64) & 1) == 0
    inexact = np.isfinite(total) & (error != 0)
    result: Array = np.where(inexact & even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return result


def _to_odd(numbers: Array) -> Array:
    """float64 as float32 with an odd last bit if inexact, so that rounding the result again equals rounding once (Boldo
    and Melquiond 2008)."""
    near = numbers.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    inexact = np.isfinite(numbers) & (back != numbers)
    cut = np.where(inexact & (np.abs(back) > np.abs(numbers)), bits - 1, bits)
    result: Array = np.where(inexact, cut | 1, bits).astype(np.uint32).view(np.float32)
    return result
