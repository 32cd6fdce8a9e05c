"""Tiles of the column quantiser: loaded from rows, reduced down each column, written transposed.

A tile holds T rows by W columns of a panel. Codes of a column lie side by side, so they are stored as whole vectors of
16 rows; what is short of a vector is `columns.py`'s.

Shape suffixes: T rows of the tile (tokens, or N of a weight), W columns of the tile, P rows that one thread packs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.fp8.encode import encode, encode_finite, magnitude_bits


class Form(NamedTuple):
    """How x lies in memory, and what is known of its sizes when a kernel is compiled.

    Attributes:
        name: Triton's name of the dtype.
        unit: the axis whose stride is 1: "k", "t" or "".
        words: x is given as int32 words of two neighbouring 16-bit columns, strides counting words.
        rows_aligned: a column of codes begins on a multiple of 16.
        width_aligned: the width is a multiple of 16.
    """

    name: str
    unit: str
    words: bool
    rows_aligned: bool
    width_aligned: bool

    @property
    def dtype(self) -> Any:
        return tl.dtype(self.name)


class Panel(NamedTuple):
    """W columns of x, of which `columns` exist: what the programs that share scales read.

    Row r lies at x_ptr + r * stride_t, and rows [0, rows) are in the buffer; row r of column k gets its code at
    codes_ptr + k * row_count + r.
    """

    x_ptr: Any
    stride_t: Any
    stride_k: Any
    rows: Any
    columns: Any
    codes_ptr: Any
    row_count: Any


# ---- loading ---------------------------------------------------------------------------------------------------------


@triton.jit
def load_tiles(  # type: ignore[no-untyped-def]
    panel, first, low, high, T: tl.constexpr, W: tl.constexpr, PACK: tl.constexpr, FORM: tl.constexpr
):
    """What a program keeps of T rows from row `first` on, zero outside of their rows [low, high) and of the panel's
    columns. Words: four tiles of `_load_words`, as a 16-bit value alone would take a register of 32 bits."""
    tile_ptr = panel.x_ptr + first.to(tl.int64) * panel.stride_t
    if FORM.words:
        words0 = _load_words(panel, tile_ptr, low, high, T, W, 0, FORM)
        words1 = _load_words(panel, tile_ptr, low, high, T, W, 1, FORM)
        words2 = _load_words(panel, tile_ptr, low, high, T, W, 2, FORM)
        words3 = _load_words(panel, tile_ptr, low, high, T, W, 3, FORM)
        return (words0, words1, words2, words3)
    elif PACK == 1:
        return (_load_vectors(panel, tile_ptr, panel.rows - first, low, high, T, W, FORM),)
    else:
        packed = _load_packed(panel, tile_ptr, low, high, T, W, 0, 1, PACK)
        packed_TWP = tl.reshape(packed, (T // PACK, W, PACK))
        return (tl.reshape(tl.permute(packed_TWP, (1, 0, 2)), (W, T)),)


@triton.jit
def _load_words(  # type: ignore[no-untyped-def]
    panel, tile_ptr, low, high, T: tl.constexpr, W: tl.constexpr, FIRST: tl.constexpr, FORM: tl.constexpr
):
    """Rows FIRST, FIRST + 4, ... as (T / 4, W / 2) int32, each two neighbouring 16-bit columns."""
    row_T = tl.arange(0, T // 4) * 4 + FIRST
    pair_W = tl.arange(0, W // 2)
    pairs = panel.columns // 16 * 8 if FORM.width_aligned else panel.columns // 2
    mask_TW = ((row_T >= low) & (row_T < high))[:, None] & (pair_W < pairs)[None, :]
    return tl.load(tile_ptr + row_T.to(tl.int64)[:, None] * panel.stride_t + pair_W[None, :], mask=mask_TW, other=0)


@triton.jit
def _load_vectors(panel, tile_ptr, rows, low, high, T: tl.constexpr, W: tl.constexpr, FORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile (W, T) of which rows [0, rows) are in the buffer, where rows lie side by side: whole vectors of 16 are
    loaded, neighbours of the group included, and what is not of the group is dropped in registers."""
    row_T = tl.arange(0, T)
    column_W = tl.arange(0, W)
    vector_low = low // 16 * 16
    vector_high = tl.minimum(tl.cdiv(high, 16) * 16, rows)
    if FORM.rows_aligned:
        vector_high = vector_high // 16 * 16
    mask_WT = ((row_T >= vector_low) & (row_T < vector_high))[None, :] & (column_W < panel.columns)[:, None]
    at_WT = tile_ptr + column_W.to(tl.int64)[:, None] * panel.stride_k + row_T[None, :] * panel.stride_t
    x_WT = tl.load(at_WT, mask=mask_WT, other=0.0)
    return tl.where(((row_T >= low) & (row_T < high))[None, :], x_WT, 0.0)


@triton.jit
def _load_packed(  # type: ignore[no-untyped-def]
    panel, tile_ptr, low, high, T: tl.constexpr, W: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr,
    PACK: tl.constexpr,
):  # fmt: skip
    """Rows FIRST, FIRST + STEP, ... of each PACK rows, as (T / PACK, W, [2, ...]).

    A thread loads PACK consecutive rows of a few columns, so that after a relabelling of its registers it has PACK
    consecutive codes of each column, and the transposition moves words and not bytes.
    """
    if STEP == PACK:
        row_T = tl.arange(0, T // PACK) * PACK + FIRST
        column_W = tl.arange(0, W)
        mask_TW = ((row_T >= low) & (row_T < high))[:, None] & (column_W < panel.columns)[None, :]
        across_W = column_W.to(tl.int64)[None, :] * panel.stride_k
        return tl.load(tile_ptr + row_T.to(tl.int64)[:, None] * panel.stride_t + across_W, mask=mask_TW, other=0.0)
    else:
        even = _load_packed(panel, tile_ptr, low, high, T, W, FIRST, 2 * STEP, PACK)
        odd = _load_packed(panel, tile_ptr, low, high, T, W, FIRST + STEP, 2 * STEP, PACK)
        return tl.join(even, odd)


# ---- reducing --------------------------------------------------------------------------------------------------------


@triton.jit
def amax_of(tiles, W: tl.constexpr, FORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """int32 bits of the amax of each column."""
    if FORM.words:
        even = tl.maximum(tiles[0] & 0x7FFF, tiles[1] & 0x7FFF)
        even = tl.maximum(even, tl.maximum(tiles[2] & 0x7FFF, tiles[3] & 0x7FFF))
        odd = tl.maximum(tiles[0] & 0x7FFF0000, tiles[1] & 0x7FFF0000)
        odd = tl.maximum(odd, tl.maximum(tiles[2] & 0x7FFF0000, tiles[3] & 0x7FFF0000))
        return tl.reshape(tl.join(tl.max(even, 0), tl.max(odd, 0) >> 16), (W,))
    else:
        return tl.max(magnitude_bits(tiles[0]).to(tl.int32), 1)


# ---- writing ---------------------------------------------------------------------------------------------------------


@triton.jit
def write_tiles(  # type: ignore[no-untyped-def]
    tiles, panel, first, scale_W, not_finite_W, low, high, T: tl.constexpr, W: tl.constexpr, FORM: tl.constexpr,
    ENCODING: tl.constexpr,
):  # fmt: skip
    """Encode what `load_tiles` returned and store its whole vectors of 16 rows within [low, high)."""
    tile_ptr = panel.codes_ptr + first
    if FORM.words:
        _write_words(tiles, panel, tile_ptr, scale_W, not_finite_W, low, high, T, W, FORM, ENCODING)
    else:
        codes_WT = encode(tiles[0], scale_W[:, None], not_finite_W[:, None], ENCODING)
        row_T = tl.arange(0, T)
        column_W = tl.arange(0, W)
        mask_T = (row_T >= tl.cdiv(low, 16) * 16) & (row_T < high // 16 * 16)
        at_WT = tile_ptr + column_W[:, None] * panel.row_count + row_T[None, :]
        tl.store(at_WT, codes_WT, mask=mask_T[None, :] & (column_W < panel.columns)[:, None])


@triton.jit
def _write_words(  # type: ignore[no-untyped-def]
    words, panel, tile_ptr, scale_W, not_finite_W, low, high, T: tl.constexpr, W: tl.constexpr, FORM: tl.constexpr,
    ENCODING: tl.constexpr,
):  # fmt: skip
    row4_T = tl.arange(0, T // 4)
    pair_W = tl.arange(0, W // 2)
    mask_T = (row4_T >= tl.cdiv(low, 16) * 4) & (row4_T < high // 16 * 4)
    mask_WT = mask_T[None, :] & (2 * pair_W < panel.columns)[:, None]
    row4_count = panel.row_count // 16 * 4
    at_WT = tile_ptr.to(tl.pointer_type(tl.int32)) + (2 * pair_W)[:, None] * row4_count + row4_T[None, :]
    scale_even_W, scale_odd_W = tl.split(tl.reshape(scale_W, (W // 2, 2)))
    bad_even_W, bad_odd_W = tl.split(tl.reshape(not_finite_W.to(tl.int32), (W // 2, 2)))
    even_TW = _encode_four(words, scale_even_W, bad_even_W != 0, False, FORM, ENCODING)
    tl.store(at_WT, tl.trans(even_TW), mask=mask_WT)
    odd_TW = _encode_four(words, scale_odd_W, bad_odd_W != 0, True, FORM, ENCODING)
    tl.store(at_WT + row4_count, tl.trans(odd_TW), mask=mask_WT)


@triton.jit
def _encode_four(  # type: ignore[no-untyped-def]
    words, scale_W, not_finite_W, ODD: tl.constexpr, FORM: tl.constexpr, ENCODING: tl.constexpr
):
    """(T / 4, W / 2) int32: the codes of four rows of the even or odd columns, first row in the lowest byte."""
    low = _encode_two(words[0], words[1], scale_W, ODD, FORM, ENCODING)
    high = _encode_two(words[2], words[3], scale_W, ODD, FORM, ENCODING)
    NAN_WORD: tl.constexpr = ENCODING.nan_code * 0x01010101 - (4294967296 if ENCODING.nan_code >= 0x80 else 0)
    return tl.where(not_finite_W[None, :], NAN_WORD, low | (high << 16))


@triton.jit
def _encode_two(words0, words1, scale_W, ODD: tl.constexpr, FORM: tl.constexpr, ENCODING: tl.constexpr):  # type: ignore[no-untyped-def]
    x0 = _half(words0, ODD, FORM) * scale_W[None, :]
    x1 = _half(words1, ODD, FORM) * scale_W[None, :]
    # Joined, so that one instruction converts both.
    code0, code1 = tl.split(encode_finite(tl.join(x0, x1), ENCODING))
    return code0.to(tl.int32) | (code1.to(tl.int32) << 8)


@triton.jit
def _half(words, ODD: tl.constexpr, FORM: tl.constexpr):  # type: ignore[no-untyped-def]
    """The even or odd 16-bit columns of words, as fp32."""
    if FORM.dtype == tl.bfloat16:
        bits = (words & -65536) if ODD else (words << 16)
        return bits.to(tl.float32, bitcast=True)
    else:
        bits = (words >> 16) if ODD else words
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
