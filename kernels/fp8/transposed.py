"""Tiles of the column quantiser: loaded from rows, reduced down each column, written transposed.

A tile holds T rows by W columns of a group. Codes of a column lie side by side, so they are stored as whole vectors of
16 rows; what is short of a vector is `columns.py`'s.

Shape suffixes: T rows of the tile (tokens, or N of a weight), W columns of the tile, P rows that one thread packs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.fp8.encode import encode, encode_finite, magnitude_bits


@triton.jit
def _load_packed(  # type: ignore[no-untyped-def]
    tile_ptr, stride_t, stride_k, low, high, columns, T: tl.constexpr, W: tl.constexpr, FIRST: tl.constexpr,
    STEP: tl.constexpr, PACK: tl.constexpr,
):  # fmt: skip
    """Rows FIRST, FIRST + STEP, ... of each PACK rows, as (T / PACK, W, [2, ...])."""
    if STEP == PACK:
        row_T = tl.arange(0, T // PACK) * PACK + FIRST
        column_W = tl.arange(0, W)
        mask_TW = ((row_T >= low) & (row_T < high))[:, None] & (column_W < columns)[None, :]
        at_TW = tile_ptr + row_T.to(tl.int64)[:, None] * stride_t + column_W.to(tl.int64)[None, :] * stride_k
        return tl.load(at_TW, mask=mask_TW, other=0.0)
    else:
        even = _load_packed(tile_ptr, stride_t, stride_k, low, high, columns, T, W, FIRST, 2 * STEP, PACK)
        odd = _load_packed(tile_ptr, stride_t, stride_k, low, high, columns, T, W, FIRST + STEP, 2 * STEP, PACK)
        return tl.join(even, odd)


@triton.jit
def _load_tile(  # type: ignore[no-untyped-def]
    tile_ptr, stride_t, stride_k, low, high, rows, columns, T: tl.constexpr, W: tl.constexpr,
    PACK: tl.constexpr, ROWS_ALIGNED: tl.constexpr,
):  # fmt: skip
    """A tile (W, T) of x, zero outside rows [low, high) and past `columns`. Rows [0, rows) of it are in the buffer.

    PACK > 1: a thread loads PACK consecutive rows of a few columns, so that after a relabelling of its registers
    it has PACK consecutive codes of each column, and the transposition moves words and not bytes.
    PACK = 1 is for contiguous rows: whole vectors of 16 are loaded, neighbours of the group included, and
    what is not of the group is dropped in registers.
    """
    if PACK == 1:
        row_T = tl.arange(0, T)
        column_W = tl.arange(0, W)
        vector_low = low // 16 * 16
        vector_high = tl.minimum(tl.cdiv(high, 16) * 16, rows)
        if ROWS_ALIGNED:
            vector_high = vector_high // 16 * 16
        mask_WT = ((row_T >= vector_low) & (row_T < vector_high))[None, :] & (column_W < columns)[:, None]
        at_WT = tile_ptr + column_W.to(tl.int64)[:, None] * stride_k + row_T.to(tl.int64)[None, :] * stride_t
        x_WT = tl.load(at_WT, mask=mask_WT, other=0.0)
        return tl.where(((row_T >= low) & (row_T < high))[None, :], x_WT, 0.0)
    else:
        packed = _load_packed(tile_ptr, stride_t, stride_k, low, high, columns, T, W, 0, 1, PACK)
        packed_TWP = tl.reshape(packed, (T // PACK, W, PACK))
        return tl.reshape(tl.permute(packed_TWP, (1, 0, 2)), (W, T))


@triton.jit
def _load_words(  # type: ignore[no-untyped-def]
    tile_ptr, stride_t, low, high, columns, T: tl.constexpr, W: tl.constexpr, WIDTH_ALIGNED: tl.constexpr,
    FIRST: tl.constexpr,
):  # fmt: skip
    """Rows FIRST, FIRST + 4, ... as (T / 4, W / 2) int32, each two neighbouring 16-bit columns."""
    row_T = tl.arange(0, T // 4) * 4 + FIRST
    pair_W = tl.arange(0, W // 2)
    pairs = columns // 16 * 8 if WIDTH_ALIGNED else columns // 2
    mask_TW = ((row_T >= low) & (row_T < high))[:, None] & (pair_W < pairs)[None, :]
    return tl.load(tile_ptr + row_T.to(tl.int64)[:, None] * stride_t + pair_W[None, :], mask=mask_TW, other=0)


@triton.jit
def load_tiles(  # type: ignore[no-untyped-def]
    tile_ptr, stride_t, stride_k, low, high, rows, columns, T: tl.constexpr, TAIL: tl.constexpr, W: tl.constexpr,
    PACK: tl.constexpr, WORDS: tl.constexpr, ROWS_ALIGNED: tl.constexpr, WIDTH_ALIGNED: tl.constexpr,
):  # fmt: skip
    """What a program keeps of T + TAIL rows by W columns, zero outside rows [low, high) and past `columns`.

    WORDS: four tiles of `_load_words` for T, as a 16-bit value alone would take a register of 32 bits, then four
    for TAIL. Without WORDS there is no tail.
    """
    if WORDS:
        head0 = _load_words(tile_ptr, stride_t, low, high, columns, T, W, WIDTH_ALIGNED, 0)
        head1 = _load_words(tile_ptr, stride_t, low, high, columns, T, W, WIDTH_ALIGNED, 1)
        head2 = _load_words(tile_ptr, stride_t, low, high, columns, T, W, WIDTH_ALIGNED, 2)
        head3 = _load_words(tile_ptr, stride_t, low, high, columns, T, W, WIDTH_ALIGNED, 3)
        if TAIL == 0:
            return (head0, head1, head2, head3)
        else:
            tail_ptr = tile_ptr + stride_t.to(tl.int64) * T
            low -= T
            high -= T
            tail0 = _load_words(tail_ptr, stride_t, low, high, columns, TAIL, W, WIDTH_ALIGNED, 0)
            tail1 = _load_words(tail_ptr, stride_t, low, high, columns, TAIL, W, WIDTH_ALIGNED, 1)
            tail2 = _load_words(tail_ptr, stride_t, low, high, columns, TAIL, W, WIDTH_ALIGNED, 2)
            tail3 = _load_words(tail_ptr, stride_t, low, high, columns, TAIL, W, WIDTH_ALIGNED, 3)
            return (head0, head1, head2, head3, tail0, tail1, tail2, tail3)
    else:
        return (_load_tile(tile_ptr, stride_t, stride_k, low, high, rows, columns, T, W, PACK, ROWS_ALIGNED),)


@triton.jit
def amax_of(tiles, TAIL: tl.constexpr, W: tl.constexpr, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """int32 bits of the amax of each column."""
    if WORDS:
        amax_W = _amax_words(tiles[0], tiles[1], tiles[2], tiles[3], W)
        if TAIL > 0:
            amax_W = tl.maximum(amax_W, _amax_words(tiles[4], tiles[5], tiles[6], tiles[7], W))
        return amax_W
    else:
        return tl.max(magnitude_bits(tiles[0]).to(tl.int32), 1)


@triton.jit
def _amax_words(words0, words1, words2, words3, W: tl.constexpr):  # type: ignore[no-untyped-def]
    even = tl.maximum(words0 & 0x7FFF, words1 & 0x7FFF)
    even = tl.maximum(even, tl.maximum(words2 & 0x7FFF, words3 & 0x7FFF))
    odd = tl.maximum(words0 & 0x7FFF0000, words1 & 0x7FFF0000)
    odd = tl.maximum(odd, tl.maximum(words2 & 0x7FFF0000, words3 & 0x7FFF0000))
    return tl.reshape(tl.join(tl.max(even, 0), tl.max(odd, 0) >> 16), (W,))


@triton.jit
def _encode_four(  # type: ignore[no-untyped-def]
    words0, words1, words2, words3, scale_W, not_finite_W, ODD: tl.constexpr, X_DTYPE: tl.constexpr,
    MAX: tl.constexpr, NAN_CODE: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr,
    NEGATIVE_ZERO: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """(T / 4, W / 2) int32: the codes of four rows of the even or odd columns, first row in the lowest byte."""
    low = _encode_two(words0, words1, scale_W, ODD, X_DTYPE, MAX, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE)
    high = _encode_two(words2, words3, scale_W, ODD, X_DTYPE, MAX, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE)
    NAN_WORD: tl.constexpr = NAN_CODE * 0x01010101 - (4294967296 if NAN_CODE >= 0x80 else 0)
    return tl.where(not_finite_W[None, :], NAN_WORD, low | (high << 16))


@triton.jit
def _encode_two(  # type: ignore[no-untyped-def]
    words0, words1, scale_W, ODD: tl.constexpr, X_DTYPE: tl.constexpr, MAX: tl.constexpr,
    MANTISSA: tl.constexpr, BIAS: tl.constexpr, NEGATIVE_ZERO: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    x0 = _half(words0, ODD, X_DTYPE) * scale_W[None, :]
    x1 = _half(words1, ODD, X_DTYPE) * scale_W[None, :]
    # Joined, so that one instruction converts both.
    codes = encode_finite(tl.join(x0, x1), MAX, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE)
    code0, code1 = tl.split(codes)
    return code0.to(tl.int32) | (code1.to(tl.int32) << 8)


@triton.jit
def _half(words, ODD: tl.constexpr, X_DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The even or odd 16-bit columns of words, as fp32."""
    if X_DTYPE == tl.bfloat16:
        bits = (words & -65536) if ODD else (words << 16)
        return bits.to(tl.float32, bitcast=True)
    else:
        bits = (words >> 16) if ODD else words
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def write_tiles(  # type: ignore[no-untyped-def]
    tiles, tile_ptr, scale_W, not_finite_W, row_count, low, high, columns,
    T: tl.constexpr, TAIL: tl.constexpr, W: tl.constexpr, WORDS: tl.constexpr, X_DTYPE: tl.constexpr,
    MAX: tl.constexpr, NAN_CODE: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr,
    NEGATIVE_ZERO: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Encode what `load_tiles` returned and store its whole vectors of 16 rows within [low, high)."""
    if WORDS:
        _write_words(
            tiles[0], tiles[1], tiles[2], tiles[3], tile_ptr, scale_W, not_finite_W, row_count, low, high, columns,
            T, W, X_DTYPE, MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE,
        )  # fmt: skip
        if TAIL > 0:  # noqa: SIM102  (the compiler decides this one, the program the next)
            if high > T:
                _write_words(
                    tiles[4], tiles[5], tiles[6], tiles[7], tile_ptr + T, scale_W, not_finite_W, row_count,
                    low - T, high - T, columns, TAIL, W, X_DTYPE, MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE,
                )  # fmt: skip
    else:
        codes_WT = encode(
            tiles[0], scale_W[:, None], not_finite_W[:, None], MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE
        )
        _store_vectors(tile_ptr, codes_WT, row_count, low, high, columns, T, W)


@triton.jit
def _write_words(  # type: ignore[no-untyped-def]
    words0, words1, words2, words3, tile_ptr, scale_W, not_finite_W, row_count, low, high, columns,
    T: tl.constexpr, W: tl.constexpr, X_DTYPE: tl.constexpr, MAX: tl.constexpr, NAN_CODE: tl.constexpr,
    MANTISSA: tl.constexpr, BIAS: tl.constexpr, NEGATIVE_ZERO: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    row4_T = tl.arange(0, T // 4)
    pair_W = tl.arange(0, W // 2)
    mask_T = (row4_T >= tl.cdiv(low, 16) * 4) & (row4_T < high // 16 * 4)
    mask_WT = mask_T[None, :] & (2 * pair_W < columns)[:, None]
    row4_count = row_count // 16 * 4
    at_WT = tile_ptr.to(tl.pointer_type(tl.int32)) + (2 * pair_W).to(tl.int64)[:, None] * row4_count + row4_T[None, :]
    scale_even_W, scale_odd_W = tl.split(tl.reshape(scale_W, (W // 2, 2)))
    bad_even_W, bad_odd_W = tl.split(tl.reshape(not_finite_W.to(tl.int32), (W // 2, 2)))
    even_TW = _encode_four(
        words0, words1, words2, words3, scale_even_W, bad_even_W != 0, False, X_DTYPE,
        MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE,
    )  # fmt: skip
    tl.store(at_WT, tl.trans(even_TW), mask=mask_WT)
    odd_TW = _encode_four(
        words0, words1, words2, words3, scale_odd_W, bad_odd_W != 0, True, X_DTYPE,
        MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE,
    )  # fmt: skip
    tl.store(at_WT + row4_count, tl.trans(odd_TW), mask=mask_WT)


@triton.jit
def _store_vectors(  # type: ignore[no-untyped-def]
    tile_ptr, codes_WT, column_stride, low, high, columns, T: tl.constexpr, W: tl.constexpr
):
    """The whole vectors of 16 rows within [low, high) of a tile (W, T) of codes."""
    row_T = tl.arange(0, T)
    column_W = tl.arange(0, W)
    mask_T = (row_T >= tl.cdiv(low, 16) * 16) & (row_T < high // 16 * 16)
    at_WT = tile_ptr + column_W.to(tl.int64)[:, None] * column_stride + row_T[None, :]
    tl.store(at_WT, codes_WT, mask=mask_T[None, :] & (column_W < columns)[:, None])
