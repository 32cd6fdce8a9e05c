"""Quantise down the rows of a group and write each column's codes side by side (transposed).

Serves `colwise_per_group`, `rowwise_per_group` (as the same on the transposed view) and `transpose_3d_*`
(every expert a group of N rows; on Hopper `panels.py` where these are few). Formulas: `reference.py`. PADDED writes
each group at the next multiple of 16.

Shape suffixes: T rows of the tile (tokens, or N of a weight), W columns of the tile, V a vector of 16 rows,
C chunks, G groups, K columns.

How. A *panel* is one group's rows by W columns; what shares scales lies in one panel. It is cut into
equal chunks of rows, one a program. A program reads its chunk, keeps its first tile (T rows) in
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

from kernels.fp8.configs import ColumnsConfig
from kernels.fp8.encode import Encoding, encode, scale_of, stored_scale
from kernels.fp8.transposed import Form, Panel, amax_of, load_tiles, write_tiles
from kernels.jit import named

COUNT_MASK = tl.constexpr(0xFF)
PUBLISHED = tl.constexpr(0x80000000)  # an amax has 31 bits at most; the top one says that it is there
MAX_CHUNKS = 48  # of a panel: one bit each in its word, above the count


@triton.jit
def _find_group(offs_ptr, slot, groups, rows, T: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The group that slot belongs to, its rows [start, end), the slot's number within it, and all gaps before it.

    Group g owns slots offs[g-1] // T + g up to offs[g] // T + g, which is at least
    cdiv(length, T), and no sum over groups is needed to find it. Number `groups` is the rest of the
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
def _look(at_CW, mask_CW, UNCACHED: tl.constexpr):  # type: ignore[no-untyped-def]
    """What is published by now, not what a cache remembers."""
    return tl.load(
        at_CW, mask=mask_CW, other=PUBLISHED, cache_modifier=".cv" if UNCACHED else "", volatile=not UNCACHED
    )


@triton.jit
def _panel_amax(  # type: ignore[no-untyped-def]
    amax_ptr, width, columns, chunks, polls, W: tl.constexpr, C: tl.constexpr, UNCACHED: tl.constexpr
):  # fmt: skip
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
        words_CW = _look(at_CW, mask_CW, UNCACHED)
        while (tl.min(words_CW) < PUBLISHED) & (left > 0):
            words_CW = _look(at_CW, mask_CW, UNCACHED)
            left -= 1
        complete = complete & (tl.min(words_CW) >= PUBLISHED)
        amax_W = tl.maximum(amax_W, tl.max(words_CW & 0x7FFFFFFF, 0))
    return amax_W.to(tl.int32, bitcast=True), complete


@triton.jit
def _cut(start, end, T: tl.constexpr, CHUNKS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Chunks of rows [start, end): where the first begins, how many, how high.

    They are equal, and begin on multiples of 16 rows of the buffer so that codes are stored as vectors.
    """
    base = start // 16 * 16
    span = end - base
    chunks = tl.maximum(tl.minimum(tl.cdiv(span, T), CHUNKS), 1)
    height = tl.maximum(tl.cdiv(tl.cdiv(span, chunks), 16), 1) * 16
    return base, tl.maximum(tl.cdiv(span, height), 1), height


@triton.jit(do_not_specialize=["groups", "rows", "slots", "first_programs"])
def quantize_columns(  # type: ignore[no-untyped-def]  # noqa: C901  # most branches are the compiler's
    x_ptr, offs_ptr, codes_ptr, scales_ptr, amax_ptr, word_ptr, groups, rows, width, slots, stride_g, stride_t,
    stride_k, x2_ptr, codes2_ptr, scales2_ptr, width2, stride2_t, stride2_k, first_programs, padded_offs_ptr, code_rows,
    ATOMIC: tl.constexpr, form: tl.constexpr, encoding: tl.constexpr, config: tl.constexpr,
):  # fmt: skip
    """One chunk of one panel a program, of which it keeps the configuration's `rows` in registers.

    With offs (groups,) int32: x (rows, width), jagged along the rows by it; codes at column * rows + row; `slots` in
    all. Without: x (groups, rows, width), codes at group * rows * width + column * rows + row; `slots` a group.
    Scales (groups, width); amax (slots in all, width) uint32 holds each chunk's, published by an atomic maximum if
    ATOMIC; word (groups, stripes) int64. amax and word begin at zero.
    With padded_offs (groups,) int32, which is written: codes at column * code_rows + padded row.
    With x2: programs from `first_programs` on do the same for it, jagged too, with its own part of amax and word.
    """
    FORM: tl.constexpr = named(Form, form)
    ENCODING: tl.constexpr = named(Encoding, encoding)
    CONFIG: tl.constexpr = named(ColumnsConfig, config)
    JAGGED: tl.constexpr = offs_ptr is not None
    PADDED: tl.constexpr = padded_offs_ptr is not None
    T: tl.constexpr = CONFIG.rows
    W: tl.constexpr = CONFIG.width
    REST: tl.constexpr = CONFIG.rest

    pid = tl.program_id(0)
    if x2_ptr is not None:
        if pid >= first_programs:
            pid -= first_programs
            word_ptr += groups * tl.cdiv(width, W)
            amax_ptr += slots.to(tl.int64) * width
            x_ptr = x2_ptr
            codes_ptr = codes2_ptr
            scales_ptr = scales2_ptr
        is_second = tl.program_id(0) >= first_programs
        width = tl.where(is_second, width2, width)
        if FORM.unit != "t":
            stride_t = tl.where(is_second, stride2_t, stride_t)
        if FORM.unit != "k":
            stride_k = tl.where(is_second, stride2_k, stride_k)

    # Order of programs: the chunks of a panel close together, so that they run at about the same time.
    stripes = tl.cdiv(width, W)
    blocks = tl.cdiv(stripes, CONFIG.stripes)
    outer = pid // (slots * CONFIG.stripes)
    slot = pid % (slots * CONFIG.stripes) // CONFIG.stripes
    stripe = outer % blocks * CONFIG.stripes + pid % CONFIG.stripes
    row_count = tl.zeros([], tl.int64) + (code_rows if PADDED else rows)
    if FORM.rows_aligned or PADDED:
        row_count = row_count // 16 * 16  # tells the compiler that it is a multiple
    if JAGGED:
        group, start, end, chunk, gaps = _find_group(offs_ptr, slot, groups, rows, T, PADDED)
        slot_row = slot
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
        slot_row = group * slots + slot
        is_group = group < groups
        x_ptr += group.to(tl.int64) * stride_g
        codes_ptr += group * row_count * width

    base, chunks, height = _cut(start, end, T, CONFIG.chunks)
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
    panel_ptr = x_ptr + (first_column // 2 if FORM.words else first_column * stride_k)
    panel = Panel(panel_ptr, stride_t, stride_k, rows, columns, codes_ptr + first_column * row_count, row_count)

    # Past the last group nothing is loaded: its zeros have the codes that are due there.
    load_high = tl.where(is_group, high, 0)
    kept = load_tiles(panel, first, low, load_high, T, W, CONFIG.pack, FORM)
    shared = is_group & (chunks > 1)
    panel_word_ptr = word_ptr + group * stripes + stripe
    word = chunks.to(tl.int64)
    if shared:  # counted while the loads are under way
        word = tl.atomic_add(panel_word_ptr, 1, sem="relaxed") + 1
    last = (word & COUNT_MASK) == chunks
    abandoned = word >> 8

    amax_W = amax_of(kept, W, FORM)
    for at in range(T, load_high, REST):  # what cannot be kept
        tiles = load_tiles(panel, first + at, low - at, load_high - at, REST, W, CONFIG.pack, FORM)
        amax_W = tl.maximum(amax_W, amax_of(tiles, W, FORM))

    mine = True
    if shared:
        panel_amax_ptr = amax_ptr + (slot_row - chunk).to(tl.int64) * width + first_column
        own_ptr = panel_amax_ptr + chunk.to(tl.int64) * width + column_W
        published_W = amax_W.to(tl.uint32, bitcast=True) | PUBLISHED
        if ATOMIC:
            tl.atomic_max(own_ptr, published_W, mask=in_width_W, sem="relaxed")
        else:
            tl.store(own_ptr, published_W, mask=in_width_W, cache_modifier=".wt")
        # Once all have counted, all run: then the wait is for memory, not for a program that has no place yet.
        polls = tl.where(last, 2147483647, CONFIG.polls)
        looking = True
        while looking:
            panel_amax_W, mine = _panel_amax(
                panel_amax_ptr, width, columns, chunks, polls, W, CONFIG.wait_rows, CONFIG.uncached
            )
            amax_W = tl.maximum(amax_W, panel_amax_W)
            looking = False
            if not mine:
                flag = tl.full([], 1, tl.int64) << (chunk + 8)
                looking = (tl.atomic_add(panel_word_ptr, flag, sem="relaxed") & COUNT_MASK) == chunks
                polls = 2147483647

    scale_W, not_finite_W = scale_of(amax_W, FORM.dtype, ENCODING)
    if is_group & last:
        tl.store(scales_ptr + panel_row + column_W, stored_scale(scale_W, ENCODING), mask=in_width_W)

    if PADDED:  # noqa: SIM102  (the compiler decides this one, the program the next)
        if is_group & (chunk == 0) & (stripe == 0):
            tl.store(padded_offs_ptr + group, tl.cdiv(end, 16) * 16)

    if mine:
        write_tiles(kept, panel, first, scale_W, not_finite_W, low, tl.minimum(high, T), T, W, FORM, ENCODING)

    # The rest: rows that were not kept, the chunks of those that gave up, and rows short of a vector.
    helping = last & (abandoned != 0)
    if (mine & ((high > T) | (low % 16 != 0) | (high % 16 != 0))) | helping:
        for c in range(tl.where(helping, 0, chunk), tl.where(helping, chunks, chunk + 1)):
            own = (c == chunk) & mine
            if own | (((abandoned >> c) & 1) != 0):
                c_first = base + c * height
                c_low = tl.maximum(c_first, start) - c_first
                c_high = tl.minimum(c_first + height, end) - c_first
                c_load_high = tl.where(is_group, c_high, 0)
                for at in range(tl.where(own, T, 0), c_high, REST):
                    tiles = load_tiles(panel, c_first + at, c_low - at, c_load_high - at, REST, W, CONFIG.pack, FORM)
                    write_tiles(
                        tiles, panel, c_first + at, scale_W, not_finite_W, c_low - at, tl.minimum(c_high - at, REST),
                        REST, W, FORM, ENCODING,
                    )  # fmt: skip
                if (c_low % 16 != 0) | (c_high % 16 != 0):
                    _write_short(
                        panel, c_first, c_low, c_high, c_load_high, scale_W, not_finite_W, W, PADDED, FORM, ENCODING
                    )


@triton.jit
def _write_short(  # type: ignore[no-untyped-def]
    panel, first, low, high, load_high, scale_W, not_finite_W, W: tl.constexpr, PADDED: tl.constexpr,
    FORM: tl.constexpr, ENCODING: tl.constexpr,
):  # fmt: skip
    """Codes of the rows at either end of [low, high) that are short of a vector."""
    column_W = tl.arange(0, W)
    in_width_W = column_W < panel.columns
    for edge in range(2):
        row_V = tl.where(edge == 0, low, high) // 16 * 16 + tl.arange(0, 16)
        mask_WV = ((row_V >= low) & (row_V < high))[None, :] & in_width_W[:, None]
        x_at_WV = (
            panel.x_ptr.to(tl.pointer_type(FORM.dtype))
            + (first + row_V).to(tl.int64)[None, :] * (2 if FORM.words else 1) * panel.stride_t
            + column_W.to(tl.int64)[:, None] * panel.stride_k
        )
        x_WV = tl.load(x_at_WV, mask=mask_WV & (row_V < load_high)[None, :], other=0.0)
        codes_WV = encode(x_WV, scale_W[:, None], not_finite_W[:, None], ENCODING)
        codes_at_WV = panel.codes_ptr + column_W[:, None] * panel.row_count + (first + row_V)[None, :]
        if PADDED:  # and the gap behind the group
            codes_WV = tl.where((row_V < high)[None, :], codes_WV, 0).to(tl.uint8)
            vector_V = (row_V >= low) & (row_V < tl.cdiv(high, 16) * 16)
            mask_WV = vector_V[None, :] & in_width_W[:, None]
        tl.store(codes_at_WV, codes_WV, mask=mask_WV)
