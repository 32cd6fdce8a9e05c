"""Floats that NumPy does not have, as the bits that Triton's interpreter keeps: bfloat16 and five of 8 bits.

They are computed with as float32, which holds each of them exactly, and rounded once to the nearest, ties to even.
Rounding float32's result of one operation is rounding the exact one: 24 bits are more than twice 8, and two.
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
    """A format of 8 bits.

    Attributes:
        mantissa, bias: bits of the mantissa, and the exponent's bias.
        largest: code of the largest finite number.
        infinity: code of infinity; None: there is none.
        nan: code of NaN; None: there is none.
        beyond: code that overflow and infinity become.
        unsigned_zero: whether there is no -0, whose code is NaN.
    """

    mantissa: int
    bias: int
    largest: int
    infinity: int | None
    nan: int | None
    beyond: int
    unsigned_zero: bool = False


# OCP 8-bit Floating Point Specification 1.0 (e4m3 as NVIDIA's float8e4nv, e5m2), the formats of AMD's CDNA 3 ISA (fnuz)
# and Triton's own e4b15. Overflow saturates as in PTX's `cvt.rn.satfinite` and in Triton's code for e4b15; in the fnuz
# formats it is NaN, as in PyTorch.
FP8 = {
    "fp8e4nv": _Format(3, 7, 0x7E, None, 0x7F, 0x7E),
    "fp8e5": _Format(2, 15, 0x7B, 0x7C, 0x7F, 0x7B),
    "fp8e4b8": _Format(3, 8, 0x7F, None, 0x80, 0x80, unsigned_zero=True),
    "fp8e5b16": _Format(2, 16, 0x7F, None, 0x80, 0x80, unsigned_zero=True),
    "fp8e4b15": _Format(3, 15, 0x7F, None, None, 0x7F),
}
CODED = {BF16, *FP8}

_SIGN = 0x80
_QUIET = 0x7FC0  # bfloat16's NaN


@functools.cache
def _values(name: str) -> Array:
    """float32 of each code."""
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
    """Between the magnitude of each code and the next; behind the largest as if there were a next one."""
    finite = _values(name)[: FP8[name].largest + 1].astype(np.float64)
    following = np.append(finite[1:], 2 * finite[-1] - finite[-2])
    middles: Array = (finite + following) / 2
    return middles


def decoded(bits: Array, name: str) -> Array:
    """float32 of the bits of a format."""
    if name == BF16:
        widened: Array = (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return widened
    values: Array = _values(name)[bits.view(np.uint8)]
    return values


def encoded(numbers: Array, name: str, *, truncate: bool = False) -> Array:
    """Bits of floats in a format: the nearest, of two as near the even one; towards zero if `truncate`."""
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


def _to_odd(numbers: Array) -> Array:
    """float32 of float64, and an odd last bit where it is not exact, so that rounding that again is rounding once
    (Boldo and Melquiond 2008)."""
    near = numbers.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.uint32)
    inexact = np.isfinite(numbers) & (back != numbers)
    cut = np.where(inexact & (np.abs(back) > np.abs(numbers)), bits - 1, bits)
    result: Array = np.where(inexact, cut | 1, bits).astype(np.uint32).view(np.float32)
    return result
