"""Quantise weights down their rows on Hopper: a whole panel waits in shared memory for its scales.

Does what `columns.py` does, with the same bits, for weights of 16-bit values that have few enough rows (`configs.py`
says which). Written in Gluon, Triton's lower language, as in Triton a kernel cannot say what stays in shared memory.
Formulas: `reference.py`.

Shape suffixes: T rows of a tile, W pairs of neighbouring columns, one 32-bit word each.

How. A *panel* is all rows of one weight by PAIRS pairs of columns. A program copies it to shared memory without a
register in between, takes the amax of each column, and encodes from there: a thread reads 16 rows of a pair of columns
and stores 16 codes of each as one vector. Memory is read once and written once, no program waits for another, and
nothing has to begin at zero.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# Triton 3.9 has renamed it.
_copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
AMAX_FLOOR = gl.constexpr(1e-12)


@gluon.constexpr_function
def _copy_layout(pairs, warps):  # type: ignore[no-untyped-def]
    """16 bytes of a row a thread."""
    pieces = pairs // 4
    return gl.BlockedLayout([1, 4], [32 // pieces, pieces], [warps, 1], [1, 0])


@gluon.constexpr_function
def _encode_layout(t, pairs, warps):  # type: ignore[no-untyped-def]
    """16 rows of a word a thread, threads down the tile as cover it, so that a warp stores whole lines."""
    rows = [[1 << bit, 0] for bit in range(t.bit_length() - 1)]
    words = [[0, 1 << bit] for bit in range(pairs.bit_length() - 1)]
    rest = rows[4:] + words
    end = 5 + warps.bit_length() - 1
    return gl.DistributedLinearLayout(rows[:4] + rest[end:], rest[:5], rest[5:end], [], [t, pairs])


@gluon.constexpr_function
def _shared_layout(t, pairs):  # type: ignore[no-untyped-def]
    """Row after row. Pieces of 16 bytes are kept whole; which piece of 128 bytes one is, is mixed with the number of
    its 16 rows, so that what a warp reads at once while encoding lies in different banks."""
    words = [[0, 1 << bit] for bit in range(pairs.bit_length() - 1)]
    bases = words + [[1 << bit, 0] for bit in range(t.bit_length() - 1)]
    for bit in range(3):
        row, column = bases[2 + bit]
        bases[len(words) + 4 + bit] = [(16 << bit) + row, column]
    return gl.SharedLinearLayout(bases)


@gluon.jit
def _max_pairs(a, b):  # type: ignore[no-untyped-def]
    """Maximum of each unsigned 16-bit half."""
    return gl.inline_asm_elementwise("max.u16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit  # type: ignore[untyped-decorator]
def _scale_of(amax_W, X_DTYPE: gl.constexpr, MAX: gl.constexpr, POWER_OF_TWO: gl.constexpr):  # type: ignore[no-untyped-def]
    """fp32 scale from the int32 bits of an amax in the input dtype; NaN where it is not finite."""
    if X_DTYPE == gl.bfloat16:
        not_finite_W = amax_W >= 0x7F80
        value_W = (amax_W << 16).to(gl.float32, bitcast=True)
    else:
        not_finite_W = amax_W >= 0x7C00
        value_W = amax_W.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    floor_W = gl.where(not_finite_W, 1.0, gl.maximum(value_W, AMAX_FLOOR))
    scale_W = gl.div_rn(gl.full_like(floor_W, MAX), floor_W)
    if POWER_OF_TWO:
        scale_W = (scale_W.to(gl.int32, bitcast=True) & -8388608).to(gl.float32, bitcast=True)
    return gl.where(not_finite_W, float("nan"), scale_W)


@gluon.jit  # type: ignore[untyped-decorator]
def _codes(words_TW, scale_W, ODD: gl.constexpr, X_DTYPE: gl.constexpr, NATIVE: gl.constexpr):  # type: ignore[no-untyped-def]
    """uint8 codes of the even or odd columns. No clamp and no choice of the NaN code: what a slice's own amax scales
    rounds to MAX at most, and the instruction gives NaN the canonical code."""
    if X_DTYPE == gl.bfloat16:
        bits_TW = (words_TW & -65536) if ODD else (words_TW << 16)
        x_TW = bits_TW.to(gl.float32, bitcast=True)
    else:
        half_TW = (words_TW >> 16) if ODD else words_TW
        x_TW = half_TW.to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return (x_TW * gl.expand_dims(scale_W, 0)).to(NATIVE).to(gl.uint8, bitcast=True)


@gluon.jit  # type: ignore[untyped-decorator]
def _store_scale(at_W, scale_W, mask_W, INVERSE: gl.constexpr):  # type: ignore[no-untyped-def]
    """The scale, or its reciprocal, which is what a matmul multiplies by; that of a power of two is exact."""
    if INVERSE:
        scale_W = gl.div_rn(gl.full_like(scale_W, 1.0), scale_W)
    gl.store(at_W, scale_W, mask=mask_W)


@gluon.jit(do_not_specialize=["groups", "rows"])  # type: ignore[untyped-decorator]
def quantize_panels(  # type: ignore[no-untyped-def]
    x_ptr, codes_ptr, scales_ptr, groups, rows, width, stride_g, stride_t,
    X_DTYPE: gl.constexpr, MAX: gl.constexpr, NATIVE: gl.constexpr, POWER_OF_TWO: gl.constexpr, INVERSE: gl.constexpr,
    TILES: gl.constexpr, T: gl.constexpr, PAIRS: gl.constexpr, STRIPES: gl.constexpr,
):  # fmt: skip
    """One panel a program. x (groups, rows, width), bf16 or fp16 as int32 words, whose strides count words; its
    innermost is 1. rows and width are multiples of 16, and rows are TILES * T at most.

    Codes (groups, width, rows) uint8 and scales (groups, width) fp32, both contiguous. INVERSE: scales are stored as
    their reciprocals. STRIPES neighbouring panels of a weight run side by side.
    """
    WARPS: gl.constexpr = gl.num_warps()
    COPY: gl.constexpr = _copy_layout(PAIRS, WARPS)
    ENCODE: gl.constexpr = _encode_layout(T, PAIRS, WARPS)
    shared = gl.allocate_shared_memory(gl.int32, [TILES, T, PAIRS], _shared_layout(T, PAIRS))

    # Neighbouring stripes, then the weights: rows are read in long pieces, and columns of codes written so.
    stripes = gl.cdiv(width, 2 * PAIRS)
    block = gl.program_id(0) // (groups * STRIPES)
    block_stripes = gl.minimum(stripes - block * STRIPES, STRIPES)
    in_block = gl.program_id(0) - block * groups * STRIPES
    group = (in_block // block_stripes).to(gl.int64)
    pair0 = (block * STRIPES + in_block % block_stripes) * PAIRS
    # Both say to the compiler what they are a multiple of.
    pairs = (width // 2 - pair0) // 8 * 8
    row_count = rows.to(gl.int64) // 16 * 16
    tiles = gl.cdiv(rows, T)

    row_T = gl.arange(0, T, gl.SliceLayout(1, COPY))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, COPY))
    x_at_TW = x_ptr + group * stride_g + pair0 + row_T.to(gl.int64)[:, None] * stride_t + pair_W[None, :]
    for tile in range(tiles):
        mask_TW = (tile * T + row_T < rows)[:, None] & (pair_W < pairs)[None, :]
        _copy_to_shared(shared.index(tile), x_at_TW, mask=mask_TW)  # zeros where it is masked
        x_at_TW += stride_t.to(gl.int64) * T
    async_copy.commit_group()
    async_copy.wait_group(0)

    amax_TW = gl.zeros([T, PAIRS], gl.int32, COPY)
    for tile in range(tiles):
        amax_TW = _max_pairs(amax_TW, shared.index(tile).load(COPY) & 0x7FFF7FFF)
    amax_W = gl.convert_layout(gl.reduce(amax_TW, 0, _max_pairs), gl.SliceLayout(0, ENCODE))
    even_W = _scale_of(amax_W & 0xFFFF, X_DTYPE, MAX, POWER_OF_TWO)
    odd_W = _scale_of(amax_W >> 16, X_DTYPE, MAX, POWER_OF_TWO)

    code_row_T = gl.arange(0, T, gl.SliceLayout(1, ENCODE))
    code_pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, ENCODE))
    in_width_W = code_pair_W < pairs
    column_W = group * width + 2 * (pair0 + code_pair_W)
    _store_scale(scales_ptr + column_W, even_W, in_width_W, INVERSE)
    _store_scale(scales_ptr + column_W + 1, odd_W, in_width_W, INVERSE)
    codes_at_TW = codes_ptr + (column_W * row_count)[None, :] + code_row_T[:, None]
    for tile in range(tiles):
        words_TW = shared.index(tile).load(ENCODE)
        mask_TW = (tile * T + code_row_T < row_count)[:, None] & in_width_W[None, :]
        gl.store(codes_at_TW, _codes(words_TW, even_W, False, X_DTYPE, NATIVE), mask=mask_TW)
        gl.store(codes_at_TW + row_count, _codes(words_TW, odd_W, True, X_DTYPE, NATIVE), mask=mask_TW)
        codes_at_TW += T
