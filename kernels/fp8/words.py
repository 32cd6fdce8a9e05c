"""What the two quantisers written in Gluon share: how tiles of 32-bit words lie, and amaxes, scales and codes of them.

A word is a pair of neighbouring 16-bit values of a row. Formulas: `reference.py`.

Shape suffixes: T rows of a tile, W pairs of neighbouring columns, one 32-bit word each.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Triton 3.9 has renamed it.
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
AMAX_FLOOR = gl.constexpr(1e-12)


@gluon.constexpr_function
def copy_layout(pairs, warps):  # type: ignore[no-untyped-def]
    """16 bytes of a row a thread."""
    pieces = pairs // 4
    return gl.BlockedLayout([1, 4], [32 // pieces, pieces], [warps, 1], [1, 0])


@gluon.constexpr_function
def encode_layout(t, pairs, warps):  # type: ignore[no-untyped-def]
    """16 rows of a word a thread, threads down the tile as cover it, so that a warp stores whole lines."""
    rows = [[1 << bit, 0] for bit in range(t.bit_length() - 1)]
    words = [[0, 1 << bit] for bit in range(pairs.bit_length() - 1)]
    rest = rows[4:] + words
    end = 5 + warps.bit_length() - 1
    return gl.DistributedLinearLayout(rows[:4] + rest[end:], rest[:5], rest[5:end], [], [t, pairs])


@gluon.constexpr_function
def shared_layout(t, pairs):  # type: ignore[no-untyped-def]
    """Row after row. Pieces of 16 bytes are kept whole; which piece of 128 bytes one is, is mixed with the number of
    its 16 rows, so that what a warp reads at once while encoding lies in different banks."""
    words = [[0, 1 << bit] for bit in range(pairs.bit_length() - 1)]
    bases = words + [[1 << bit, 0] for bit in range(t.bit_length() - 1)]
    for bit in range(3):
        row, column = bases[2 + bit]
        bases[len(words) + 4 + bit] = [(16 << bit) + row, column]
    return gl.SharedLinearLayout(bases)


@gluon.jit
def max_pairs(a, b):  # type: ignore[no-untyped-def]
    """Maximum of each unsigned 16-bit half."""
    return gl.inline_asm_elementwise("max.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit  # type: ignore[untyped-decorator]
def scale_of(amax_W, FORM: gl.constexpr, ENCODING: gl.constexpr):  # type: ignore[no-untyped-def]
    """fp32 scale from the int32 bits of an amax in the input dtype; NaN where it is not finite."""
    if FORM.dtype == gl.bfloat16:
        not_finite_W = amax_W >= 0x7F80
        value_W = (amax_W << 16).to(gl.float32, bitcast=True)
    else:
        not_finite_W = amax_W >= 0x7C00
        value_W = amax_W.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    floor_W = gl.where(not_finite_W, 1.0, gl.maximum(value_W, AMAX_FLOOR))
    scale_W = gl.div_rn(gl.full_like(floor_W, ENCODING.max), floor_W)
    if ENCODING.power_of_two:
        scale_W = (scale_W.to(gl.int32, bitcast=True) & -8388608).to(gl.float32, bitcast=True)
    return gl.where(not_finite_W, float("nan"), scale_W)


@gluon.jit  # type: ignore[untyped-decorator]
def codes(words_TW, scale_W, ODD: gl.constexpr, FORM: gl.constexpr, ENCODING: gl.constexpr):  # type: ignore[no-untyped-def]
    """uint8 codes of the even or odd columns. No clamp and no choice of the NaN code: what a slice's own amax scales
    rounds to the largest code at most, and the instruction gives NaN the canonical code."""
    if FORM.dtype == gl.bfloat16:
        bits_TW = (words_TW & -65536) if ODD else (words_TW << 16)
        x_TW = bits_TW.to(gl.float32, bitcast=True)
    else:
        half_TW = (words_TW >> 16) if ODD else words_TW
        x_TW = half_TW.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return (x_TW * gl.expand_dims(scale_W, 0)).to(ENCODING.native_dtype).to(gl.uint8, bitcast=True)


@gluon.jit  # type: ignore[untyped-decorator]
def store_scale(at_W, scale_W, mask_W, ENCODING: gl.constexpr):  # type: ignore[no-untyped-def]
    """The scale, or its reciprocal; that of a power of two is exact."""
    if ENCODING.inverse:
        scale_W = gl.div_rn(gl.full_like(scale_W, 1.0), scale_W)
    gl.store(at_W, scale_W, mask=mask_W)
