"""The four 8-bit float formats that the quantisers write.

`fn` and `fnuz` share bit patterns and differ by a factor of two in value, so a format is always
carried as its dtype and never as bare bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """One 8-bit float format: what a kernel has to know to scale, clamp and encode."""

    name: str
    dtype: torch.dtype
    max: float  # largest finite value; scales aim the largest magnitude of a slice at it
    nan_code: int  # the byte that every element of a slice holding NaN or Inf becomes
    mantissa_bits: int
    bias: int
    has_negative_zero: bool  # in the fnuz formats 0x80 is NaN, so a negative underflow must be 0x00

    @property
    def max_code(self) -> int:
        """The byte of `max`; the finite codes are 0 .. max_code and the same with the sign bit."""
        exponent = int(self.max).bit_length() - 1
        significand = int(self.max) >> (exponent - self.mantissa_bits)  # with its leading one
        return ((exponent + self.bias - 1) << self.mantissa_bits) + significand

    def __str__(self) -> str:
        return self.name


FORMATS: dict[torch.dtype, Format] = {
    format_.dtype: format_
    for format_ in (
        Format("e4m3fn", torch.float8_e4m3fn, 448.0, 0x7F, 3, 7, True),
        Format("e4m3fnuz", torch.float8_e4m3fnuz, 240.0, 0x80, 3, 8, False),
        Format("e5m2", torch.float8_e5m2, 57344.0, 0x7F, 2, 15, True),
        Format("e5m2fnuz", torch.float8_e5m2fnuz, 57344.0, 0x80, 2, 16, False),
    )
}


def format_of(dtype: torch.dtype) -> Format:
    """The format of an output dtype; an unknown one is an error that lists the known."""
    if dtype not in FORMATS:
        known = ", ".join(str(known_dtype) for known_dtype in FORMATS)
        raise ValueError(f"dtype: is {dtype}; may be {known}")
    return FORMATS[dtype]
