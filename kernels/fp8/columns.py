"""Quantise down the rows of a group and write each column's codes side by side (transposed).

Serves `colwise_per_group`, `rowwise_per_group` (as the same on the transposed view) and `transpose_3d_*`
(every expert a group of N rows). Formulas: `reference.py`. PADDED writes each group at the next multiple of 16.

Shape suffixes: T rows of the tile (tokens, or N of a weight), W columns of the tile, V a vector of 16 rows,
C chunks, G groups, K columns.

How. A *panel* is one group's rows by W columns; what shares scales lies in one panel. It is cut into
equal chunks of rows, one a program. A program reads its chunk, keeps its first tile (T + TAIL rows) in
registers, publishes the chunk's amax, waits until the panel's chunks are all published, and writes its codes. So
memory is read once and written once; only a chunk taller than a tile re-reads what it could not keep.

Publishing needs no fence: an amax fits 31 bits, so its word says by the top bit that it is there, and
each chunk has a word of its own (written by an atomic maximum onto zero, or by a store through the caches).

Progress never depends on which programs run at a time. The wait is bounded: a program that gives up
says so in the panel's word and leaves, and the last program of the panel to begin writes for it. One
atomic word a panel decides who writes: bits 0-7 count chunks whose programs have begun, bit 8 + c says
that chunk c was abandoned. An abandon whose previous value shows a full count came too late, so that
program writes itself; every earlier one is in the value that the last to begin saw. Either way each chunk is
written by exactly one program. With a full count all run, and none waits before it publishes, so waiting on
is waiting for memory and not for a program. Counting at the start and not after publishing keeps the atomic's
way there and back under the loads. With POLLS = 0 nothing else waits at all: what the interpreter needs, which
runs one program after the other, and it gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.fp8.encode import encode, encode_finite, magnitude_bits, scale_of

COUNT_MASK = tl.constexpr(0xFF)
PUBLISHED = tl.constexpr(0x80000000)  # an amax has 31 bits at most; the top one says that it is there
MAX_CHUNKS = 48  # of a panel: one bit each in its word, above the count


@triton.jit
def _find_group(offs_ptr, slot, groups, rows, T: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The group that slot belongs to, its rows [start, end), the slot's number within it, and all gaps before it.

    Group g owns slots offs[g-1] // T + g up to offs[g] // T + g, which is at least
    cdiv(length, HELD), and no sum over groups is needed to find it. Number `groups` is the rest of the
    buffer, past the last group.
    """
    BLOCK: tl.constexpr = 64  # within a warp
    group = 0
    start = tl.zeros([], tl.int32)
    end = tl.zeros([], tl.int32) + rows
    gaps = tl.zeros([], tl.int32)
    for first in range(0, groups, BLOCK):
        g = first + tl.arange(0, BLOCK)
        ends = tl.load(offs_ptr + g, mask=g < groups, other=2147483647)
        before = (ends // T + g + 1) <= slot
        group += tl.sum(before.to(tl.int32), 0)
        start = tl.maximum(start, tl.max(tl.where(before, ends, 0), 0))
        end = tl.minimum(end, tl.min(tl.where(before | (g >= groups), rows, ends), 0))
        if PADDED:
            starts = tl.load(offs_ptr + g - 1, mask=(g > 0) & (g < groups), other=0)
            gaps += tl.sum(tl.where(before, (starts - ends) & 15, 0), 0)
    start = tl.minimum(start, end)
    return group, start, end, slot - (start // T + group), gaps


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
def _load(  # type: ignore[no-untyped-def]
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
def _amax(tiles, TAIL: tl.constexpr, W: tl.constexpr, WORDS: tl.constexpr):  # type: ignore[no-untyped-def]
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
def _write(  # type: ignore[no-untyped-def]
    tiles, tile_ptr, scale_W, not_finite_W, row_count, low, high, columns,
    T: tl.constexpr, TAIL: tl.constexpr, W: tl.constexpr, WORDS: tl.constexpr, X_DTYPE: tl.constexpr,
    MAX: tl.constexpr, NAN_CODE: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr,
    NEGATIVE_ZERO: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Encode what `_load` returned and store its whole vectors of 16 rows within [low, high)."""
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


@triton.jit
def _panel_amax(amax_ptr, width, columns, chunks, polls, W: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """(amax of each column over the panel's chunks, whether all were published), after `polls` looks at most.

    Each word says itself that it is published, so nothing has to be ordered against anything.
    """
    column_W = tl.arange(0, W)
    amax_W = tl.zeros((W,), tl.uint32)
    left = tl.zeros([], tl.int32) + polls
    complete = chunks > 0
    for first in range(0, chunks, C):
        chunk_C = first + tl.arange(0, C)
        at_CW = amax_ptr + chunk_C.to(tl.int64)[:, None] * width + column_W[None, :]
        mask_CW = (chunk_C < chunks)[:, None] & (column_W < columns)[None, :]
        # Unsigned minimum: below PUBLISHED while any is not.
        words_CW = tl.load(at_CW, mask=mask_CW, other=PUBLISHED, volatile=True)
        while (tl.min(words_CW) < PUBLISHED) & (left > 0):
            words_CW = tl.load(at_CW, mask=mask_CW, other=PUBLISHED, volatile=True)
            left -= 1
        complete = complete & (tl.min(words_CW) >= PUBLISHED)
        amax_W = tl.maximum(amax_W, tl.max(words_CW & 0x7FFFFFFF, 0))
    return amax_W.to(tl.int32, bitcast=True), complete


@triton.jit(do_not_specialize=["groups", "rows", "slots", "first_programs"])
def quantize_columns(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, codes_ptr, scales_ptr, amax_ptr, word_ptr, groups, rows, width, slots, stride_g, stride_t,
    stride_k, x2_ptr, codes2_ptr, scales2_ptr, width2, stride2_t, stride2_k, first_programs, padded_offs_ptr, code_rows,
    SECOND: tl.constexpr, UNIT: tl.constexpr, X_DTYPE: tl.constexpr, WORDS: tl.constexpr, JAGGED: tl.constexpr,
    ATOMIC: tl.constexpr, ROWS_ALIGNED: tl.constexpr, WIDTH_ALIGNED: tl.constexpr, MAX: tl.constexpr,
    NAN_CODE: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, NEGATIVE_ZERO: tl.constexpr,
    NATIVE: tl.constexpr, POWER_OF_TWO: tl.constexpr, T: tl.constexpr, TAIL: tl.constexpr, W: tl.constexpr,
    PACK: tl.constexpr, STRIPES: tl.constexpr, CHUNKS: tl.constexpr, POLLS: tl.constexpr,
    WAIT_ROWS: tl.constexpr, REST: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One chunk of one panel a program; T + TAIL rows of it are kept in registers.

    JAGGED: x (rows, width), groups along the rows by offs (groups,) int32; codes at column * rows + row;
    `slots` in all. Else: x (groups, rows, width), codes at group * rows * width + column * rows + row;
    `slots` a group. Scales (groups, width); amax (slots in all, width) uint32 holds each chunk's; word
    (groups, stripes) int64. amax and word begin at zero.
    PADDED (padded_offs_ptr given): codes at column * code_rows + padded row; padded_offs (groups,) int32 is written.
    SECOND: programs from `first_programs` on do the same for x2, jagged too, with its own part of amax and word.
    UNIT names the stride that is 1, in both when there are two: "k", "t" or "". OVERLAP: launched while the fill
    of amax and word may still run, which is older than all that this kernel reads or overwrites before it waits.
    """
    pid = tl.program_id(0)
    if SECOND:
        if pid >= first_programs:
            pid -= first_programs
            word_ptr += groups.to(tl.int64) * tl.cdiv(width, W)
            amax_ptr += slots.to(tl.int64) * width
            x_ptr = x2_ptr
            codes_ptr = codes2_ptr
            scales_ptr = scales2_ptr
        is_second = tl.program_id(0) >= first_programs
        width = tl.where(is_second, width2, width)
        if UNIT != "t":
            stride_t = tl.where(is_second, stride2_t, stride_t)
        if UNIT != "k":
            stride_k = tl.where(is_second, stride2_k, stride_k)

    # Order of programs: the chunks of a panel close together, so that they run at about the same time.
    HELD: tl.constexpr = T + TAIL
    stripes = tl.cdiv(width, W)
    blocks = tl.cdiv(stripes, STRIPES)
    outer = pid // (slots * STRIPES)
    slot = pid % (slots * STRIPES) // STRIPES
    stripe = outer % blocks * STRIPES + pid % STRIPES
    PADDED: tl.constexpr = padded_offs_ptr is not None
    row_count = tl.zeros([], tl.int64) + (code_rows if PADDED else rows)
    if ROWS_ALIGNED or PADDED:
        row_count = row_count // 16 * 16  # tells the compiler that it is a multiple
    if JAGGED:
        group, start, end, chunk, gaps = _find_group(offs_ptr, slot, groups, rows, HELD, PADDED)
        slot_row = slot.to(tl.int64)
        is_group = group < groups
        if PADDED:  # from here on rows are those of codes; row r of them is row r - gaps of x
            start += gaps
            end = tl.where(is_group, end + gaps, code_rows)
            rows += gaps
            x_ptr -= gaps.to(tl.int64) * stride_t
    else:
        group = outer // blocks
        start = tl.zeros([], tl.int32)
        end = tl.zeros([], tl.int32) + rows
        chunk = slot
        slot_row = group.to(tl.int64) * slots + slot
        is_group = group < groups
        x_ptr += group.to(tl.int64) * stride_g
        codes_ptr += group.to(tl.int64) * row_count * width

    # Chunks are equal, and begin on multiples of 16 rows of the buffer so that codes are stored as vectors.
    base = start // 16 * 16
    span = end - base
    chunks = tl.maximum(tl.minimum(tl.cdiv(span, HELD), CHUNKS), 1)
    height = tl.maximum(tl.cdiv(tl.cdiv(span, chunks), 16), 1) * 16
    chunks = tl.maximum(tl.cdiv(span, height), 1)
    if (chunk >= chunks) | (stripe >= stripes):
        return
    first = base + chunk * height
    low = tl.maximum(first, start) - first  # rows of the chunk that are the group's
    high = tl.minimum(first + height, end) - first

    first_column = stripe.to(tl.int64) * W
    column_W = tl.arange(0, W)
    columns = tl.minimum(width - stripe * W, W)
    in_width_W = column_W < columns
    panel_row = group.to(tl.int64) * width + first_column
    panel_ptr = x_ptr + (first_column // 2 if WORDS else first_column * stride_k)
    panel_codes_ptr = codes_ptr + first_column * row_count

    # Past the last group nothing is loaded: its zeros have the codes that are due there.
    load_high = tl.where(is_group, high, 0)
    kept = _load(
        panel_ptr + first.to(tl.int64) * stride_t, stride_t, stride_k, low, load_high,
        rows - first, columns, T, TAIL, W, PACK, WORDS, ROWS_ALIGNED, WIDTH_ALIGNED,
    )  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    shared = is_group & (chunks > 1)
    panel_word_ptr = word_ptr + group.to(tl.int64) * stripes + stripe
    word = chunks.to(tl.int64)
    if shared:  # counted while the loads are under way
        word = tl.atomic_add(panel_word_ptr, 1, sem="relaxed") + 1
    last = (word & COUNT_MASK) == chunks
    abandoned = word >> 8

    amax_W = _amax(kept, TAIL, W, WORDS)
    for at in range(HELD, load_high, REST):  # what cannot be kept
        tiles = _load(
            panel_ptr + (first + at).to(tl.int64) * stride_t, stride_t, stride_k, low - at, load_high - at,
            rows - first - at, columns, REST, 0, W, PACK, WORDS, ROWS_ALIGNED, WIDTH_ALIGNED,
        )  # fmt: skip
        amax_W = tl.maximum(amax_W, _amax(tiles, 0, W, WORDS))

    mine = True
    if shared:
        panel_amax_ptr = amax_ptr + (slot_row - chunk) * width + first_column
        own_ptr = panel_amax_ptr + chunk.to(tl.int64) * width + column_W
        published_W = amax_W.to(tl.uint32, bitcast=True) | PUBLISHED
        if ATOMIC:
            tl.atomic_max(own_ptr, published_W, mask=in_width_W, sem="relaxed")
        else:
            tl.store(own_ptr, published_W, mask=in_width_W, cache_modifier=".wt")
        # Once all have counted, all run: then the wait is for memory, not for a program that has no place yet.
        polls = tl.where(last, 2147483647, POLLS)
        looking = True
        while looking:
            panel_amax_W, mine = _panel_amax(panel_amax_ptr, width, columns, chunks, polls, W, WAIT_ROWS)
            amax_W = tl.maximum(amax_W, panel_amax_W)
            looking = False
            if not mine:
                flag = tl.full([], 1, tl.int64) << (chunk + 8).to(tl.int64)
                looking = (tl.atomic_add(panel_word_ptr, flag, sem="relaxed") & COUNT_MASK) == chunks
                polls = 2147483647

    scale_W, not_finite_W = scale_of(amax_W, X_DTYPE, MAX, POWER_OF_TWO)
    if is_group & last:
        tl.store(scales_ptr + panel_row + column_W, scale_W, mask=in_width_W)

    if PADDED:  # noqa: SIM102  (the compiler decides this one, the program the next)
        if is_group & (chunk == 0) & (stripe == 0):
            tl.store(padded_offs_ptr + group, tl.cdiv(end, 16) * 16)

    if mine:
        _write(
            kept, panel_codes_ptr + first, scale_W, not_finite_W, row_count, low, tl.minimum(high, HELD), columns,
            T, TAIL, W, WORDS, X_DTYPE, MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE,
        )  # fmt: skip

    # The rest: rows that were not kept, the chunks of those that gave up, and rows short of a vector.
    helping = last & (abandoned != 0)
    if (mine & ((high > HELD) | (low % 16 != 0) | (high % 16 != 0))) | helping:
        for c in range(tl.where(helping, 0, chunk), tl.where(helping, chunks, chunk + 1)):
            own = (c == chunk) & mine
            if own | (((abandoned >> c) & 1) != 0):
                c_first = base + c * height
                c_low = tl.maximum(c_first, start) - c_first
                c_high = tl.minimum(c_first + height, end) - c_first
                c_load_high = tl.where(is_group, c_high, 0)
                for at in range(tl.where(own, HELD, 0), c_high, REST):
                    tiles = _load(
                        panel_ptr + (c_first + at).to(tl.int64) * stride_t, stride_t, stride_k, c_low - at,
                        c_load_high - at, rows - c_first - at,
                        columns, REST, 0, W, PACK, WORDS, ROWS_ALIGNED, WIDTH_ALIGNED,
                    )  # fmt: skip
                    _write(
                        tiles, panel_codes_ptr + c_first + at, scale_W, not_finite_W, row_count, c_low - at,
                        tl.minimum(c_high - at, REST), columns,
                        REST, 0, W, WORDS, X_DTYPE, MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE,
                    )  # fmt: skip
                if (c_low % 16 != 0) | (c_high % 16 != 0):
                    for edge in range(2):  # rows short of a vector
                        at = tl.where(edge == 0, c_low, c_high) // 16 * 16
                        row_V = at + tl.arange(0, 16)
                        mask_V = (row_V >= c_low) & (row_V < c_high)
                        mask_WV = mask_V[None, :] & in_width_W[:, None]
                        x_at_WV = (
                            panel_ptr.to(tl.pointer_type(X_DTYPE))
                            + (c_first + row_V).to(tl.int64)[None, :] * (2 if WORDS else 1) * stride_t
                            + column_W.to(tl.int64)[:, None] * stride_k
                        )
                        x_WV = tl.load(x_at_WV, mask=mask_WV & (row_V < c_load_high)[None, :], other=0.0)
                        codes_WV = encode(
                            x_WV, scale_W[:, None], not_finite_W[:, None],
                            MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE,
                        )  # fmt: skip
                        codes_at_WV = (
                            panel_codes_ptr + column_W.to(tl.int64)[:, None] * row_count + (c_first + row_V)[None, :]
                        )
                        if PADDED:  # and the gap behind the group
                            codes_WV = tl.where((row_V < c_high)[None, :], codes_WV, 0).to(tl.uint8)
                            vector_V = (row_V >= c_low) & (row_V < tl.cdiv(c_high, 16) * 16)
                            mask_WV = vector_V[None, :] & in_width_W[:, None]
                        tl.store(codes_at_WV, codes_WV, mask=mask_WV)
