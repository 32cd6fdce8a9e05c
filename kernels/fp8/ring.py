"""Quantise down the rows of a group or weight on Hopper: panels pass through a ring in shared memory.

Does what `columns.py` does, with the same bits, for 16-bit values whose rows are whole 32-bit words. Written in Gluon,
as `panels.py` is. Formulas: `reference.py`.

Shape suffixes: T rows of a tile, W pairs of neighbouring columns (one 32-bit word each), C chunks, G groups.

How. A *panel* is one group's rows by PAIRS pairs of columns, cut into *chunks* of HELD rows at most. As many programs
as run at a time share all chunks out. In each, four warps copy tiles of its chunks to a ring in shared memory, with no
register in between and as far ahead as there is room, so that memory is never idle. Two teams of eight take turns at
the chunks: one takes the amax of each column of its chunk while the other encodes. A thread reads 16 rows of a word and
stores 16 codes of either column as one vector, a quarter of a warp whole lines. Memory is read once and written once.

A panel of several chunks: each publishes its amax, in words of its own whose top bit says that it is there (they begin
at zero), and looks for the others' a bounded number of times. Chunks of a panel run side by side, so that they are
there soon; a program that does not find them takes the amax from the rows itself. So progress never depends on which
programs run at a time. What of a chunk is longer than HELD, in panels longer than `most_chunks` of them, is read twice.

A team knows a filling of a slot from the one before it, not from the one before that: the parity of a barrier says no
more. It is never that far ahead, as teams take turns at chunks that have tiles, and the ring has more slots than a
chunk has tiles.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from kernels.fp8.words import (
    codes,
    copy_layout,
    copy_to_shared,
    encode_layout,
    max_pairs,
    scale_of,
    shared_layout,
    store_scale,
)

__all__ = ["quantize_ring"]

LOADER_WARPS = gl.constexpr(4)
LOADER_REGISTERS = gl.constexpr(56)  # a thread
TEAM_REGISTERS = gl.constexpr(112)  # of the second team; the first has what these leave


@gluon.constexpr_function
def _table_layout(groups, warps):  # type: ignore[no-untyped-def]
    """Each warp holds all groups, so that looking one up needs no barrier."""
    return gl.BlockedLayout([groups // 32], [32], [warps], [0])


@gluon.jit
def _add(a, b):  # type: ignore[no-untyped-def]
    return a + b


@gluon.jit
def _cut(start, end, most_chunks, HELD: gl.constexpr):  # type: ignore[no-untyped-def]
    """Of rows [start, end): where the first chunk begins, how many, how high. All begin on multiples of 16 rows of the
    buffer of codes, so that these are stored as vectors. One at least, of no row where there is none."""
    base = start // 16 * 16
    span = end - base
    chunks = gl.maximum(gl.minimum(gl.cdiv(span, HELD), most_chunks), 1)
    height = gl.maximum(gl.cdiv(gl.cdiv(span, chunks), 16), 1) * 16
    return base, gl.maximum(gl.cdiv(span, height), 1), height


@gluon.jit
def _table(  # type: ignore[no-untyped-def]
    offs_ptr, groups, rows, most_chunks, PADDED: gl.constexpr, HELD: gl.constexpr, GROUPS: gl.constexpr
):
    """Of each group: its first row and its end in the buffer of codes, the chunks up to its end, the gaps before it.

    Number `groups` is the rest of the buffer. Ends outside of it are the caller's error, and touch no foreign memory.
    """
    TABLE: gl.constexpr = _table_layout(GROUPS, gl.num_warps())
    group_G = gl.arange(0, GROUPS, TABLE)
    start_G = gl.load(offs_ptr + group_G - 1, mask=(group_G > 0) & (group_G <= groups), other=0)
    end_G = gl.load(offs_ptr + group_G, mask=group_G < groups, other=0)
    gap_G = gl.zeros([GROUPS], gl.int32, TABLE)
    if PADDED:
        own_G = gl.where(group_G < groups, (start_G - end_G) & 15, 0)
        gap_G = gl.associative_scan(own_G, 0, _add) - own_G
        start_G += gap_G
        end_G += gap_G
    end_G = gl.where(group_G < groups, end_G, rows)
    start_G = gl.minimum(gl.maximum(start_G, 0), rows)
    end_G = gl.minimum(gl.maximum(end_G, start_G), rows)
    _, chunks_G, _ = _cut(start_G, end_G, most_chunks, HELD)
    has_rest = (group_G == groups) & (end_G > start_G)
    chunks_G = gl.where((group_G < groups) | has_rest, chunks_G, 0)
    last_G = gl.associative_scan(chunks_G, 0, _add)
    return start_G, end_G, last_G, gap_G, gl.sum(chunks_G, 0)


@gluon.jit
def _chunk(  # type: ignore[no-untyped-def]
    item, start_G, end_G, last_G, gap_G, all_chunks, all_stripes, rows, most_chunks,
    JAGGED: gl.constexpr, HELD: gl.constexpr, STRIPES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """What number `item` of all chunks is: neighbouring stripes first, then the chunks of a panel, then groups.

    (group, stripe, its first row, rows [low, high) of it that are the group's, gaps before it, its number in the panel
    and in all panels, the panel's chunks, the group's first row and end)
    """
    block = item // (all_chunks * STRIPES)
    stripes = gl.minimum(all_stripes - block * STRIPES, STRIPES)
    in_block = item - block * (all_chunks * STRIPES)
    number = in_block // stripes
    stripe = block * STRIPES + (in_block - number * stripes)
    if JAGGED:
        group_G = gl.arange(0, GROUPS, _table_layout(GROUPS, gl.num_warps()))
        before_G = last_G <= number
        group = gl.sum(before_G.to(gl.int32), 0)
        own_G = group_G == group
        start = gl.sum(gl.where(own_G, start_G, 0), 0)
        end = gl.sum(gl.where(own_G, end_G, 0), 0)
        gap = gl.sum(gl.where(own_G, gap_G, 0), 0)
        chunk = number - gl.max(gl.where(before_G, last_G, 0), 0)
        base, chunks, height = _cut(start, end, most_chunks, HELD)
    else:
        start = number * 0
        end = rows
        gap = number * 0
        base, chunks, height = _cut(start, end, most_chunks, HELD)
        group = number // chunks
        chunk = number - group * chunks
    first = base + chunk * height
    low = gl.maximum(first, start) - first
    high = gl.minimum(end - first, height)
    return group, stripe, first, low, high, gap, chunk, number, chunks, start, end


@gluon.jit
def _amax_of(x_ptr, stride_t, low, high, pairs, T: gl.constexpr, PAIRS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Of each word's halves over rows [low, high), from memory."""
    COPY: gl.constexpr = copy_layout(PAIRS, gl.num_warps())
    row_T = gl.arange(0, T, gl.SliceLayout(1, COPY))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, COPY))
    amax_TW = gl.zeros([T, PAIRS], gl.int32, COPY)
    for at in range(low, high, T):
        at_TW = x_ptr + (at + row_T).to(gl.int64)[:, None] * stride_t + pair_W[None, :]
        words_TW = gl.load(at_TW, mask=(at + row_T < high)[:, None] & (pair_W < pairs)[None, :], other=0)
        amax_TW = max_pairs(amax_TW, words_TW & 0x7FFF7FFF)
    return amax_TW


@gluon.jit
def _write(  # type: ignore[no-untyped-def]
    codes_at_TW, row_count, words_TW, even_W, odd_W, row_T, low, high, in_width_W,
    X_DTYPE: gl.constexpr, NATIVE: gl.constexpr,
):  # fmt: skip
    """Codes of a tile, of those rows [low, high) of it that make up vectors of 16."""
    whole_T = (row_T >= gl.cdiv(low, 16) * 16) & (row_T < high // 16 * 16)
    mask_TW = whole_T[:, None] & in_width_W[None, :]
    gl.store(codes_at_TW, codes(words_TW, even_W, False, X_DTYPE, NATIVE), mask=mask_TW)
    gl.store(codes_at_TW + row_count, codes(words_TW, odd_W, True, X_DTYPE, NATIVE), mask=mask_TW)


@gluon.jit
def _write_short(  # type: ignore[no-untyped-def]
    x_ptr, stride_t, codes_ptr, row_count, even_W, odd_W, at, low, high, load_high, pairs,
    PADDED: gl.constexpr, PAIRS: gl.constexpr, X_DTYPE: gl.constexpr, NATIVE: gl.constexpr,
):  # fmt: skip
    """Codes of 16 rows from `at` on that are not all in [low, high); x_ptr and codes_ptr are row 0's."""
    SHORT: gl.constexpr = gl.BlockedLayout([1, 1], [32 // PAIRS, PAIRS], [gl.num_warps(), 1], [1, 0])
    row_T = at + gl.arange(0, 16, gl.SliceLayout(1, SHORT))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, SHORT))
    even_W = gl.convert_layout(even_W, gl.SliceLayout(0, SHORT))
    odd_W = gl.convert_layout(odd_W, gl.SliceLayout(0, SHORT))
    at_TW = x_ptr + row_T.to(gl.int64)[:, None] * stride_t + pair_W[None, :]
    inside_TW = ((row_T >= low) & (row_T < high))[:, None] & (pair_W < pairs)[None, :]
    words_TW = gl.load(at_TW, mask=inside_TW & (row_T < load_high)[:, None], other=0)
    even_TW = codes(words_TW, even_W, False, X_DTYPE, NATIVE)
    odd_TW = codes(words_TW, odd_W, True, X_DTYPE, NATIVE)
    if PADDED:  # and the gap behind the group
        even_TW = gl.where(inside_TW, even_TW, gl.full_like(even_TW, 0))
        odd_TW = gl.where(inside_TW, odd_TW, gl.full_like(odd_TW, 0))
        inside_TW = ((row_T >= low) & (row_T < gl.cdiv(high, 16) * 16))[:, None] & (pair_W < pairs)[None, :]
    codes_at_TW = codes_ptr + (2 * pair_W.to(gl.int64) * row_count)[None, :] + row_T[:, None]
    gl.store(codes_at_TW, even_TW, mask=inside_TW)
    gl.store(codes_at_TW + row_count, odd_TW, mask=inside_TW)


@gluon.jit
def _next(slot, phase, SLOTS: gl.constexpr):  # type: ignore[no-untyped-def]
    """The slot after this one; the phase of its barriers changes each time round."""
    wrapped = slot == SLOTS - 1
    return gl.where(wrapped, 0, slot + 1), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def _all_chunks(  # type: ignore[no-untyped-def]
    offs_ptr, groups, rows, most_chunks, PADDED: gl.constexpr, HELD: gl.constexpr, GROUPS: gl.constexpr
):
    """As `_table`, and without offs what stands in its place."""
    if offs_ptr is not None:
        start_G, end_G, last_G, gap_G, chunks = _table(offs_ptr, groups, rows, most_chunks, PADDED, HELD, GROUPS)
    else:
        start_G = groups
        end_G = groups
        last_G = groups
        gap_G = groups
        _, chunks, _ = _cut(rows * 0, rows, most_chunks, HELD)
        chunks *= groups
    return start_G, end_G, last_G, gap_G, chunks


@gluon.jit
def _stripes_of(width, width2, PAIRS: gl.constexpr):  # type: ignore[no-untyped-def]
    """Panels side by side of the first operand, and of both."""
    stripes = gl.cdiv(width, 2 * PAIRS)
    all_stripes = stripes
    if width2 is not None:
        all_stripes += gl.cdiv(width2, 2 * PAIRS)
    return stripes, all_stripes


@gluon.jit
def _load(  # type: ignore[no-untyped-def]
    x_ptr, x2_ptr, offs_ptr, ring, full, empty, groups, rows, width, width2, stride_t, stride2_t, stride_g, most_chunks,
    PADDED: gl.constexpr, ALIGNED: gl.constexpr, GROUPS: gl.constexpr, T: gl.constexpr, PAIRS: gl.constexpr,
    SLOTS: gl.constexpr, HELD: gl.constexpr, STRIPES: gl.constexpr,
):  # fmt: skip
    """The warps that have all rows copied, as soon as there is room for them."""
    JAGGED: gl.constexpr = offs_ptr is not None
    COPY: gl.constexpr = copy_layout(PAIRS, gl.num_warps())
    row_T = gl.arange(0, T, gl.SliceLayout(1, COPY))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, COPY))
    stripes, all_stripes = _stripes_of(width, width2, PAIRS)
    start_G, end_G, last_G, gap_G, chunks = _all_chunks(offs_ptr, groups, rows, most_chunks, PADDED, HELD, GROUPS)
    slot = 0
    phase = 1  # an empty slot need not be waited for the first time round
    for item in range(gl.program_id(0), chunks * all_stripes, gl.num_programs(0)):
        group, stripe, first, low, high, gap, _, _, _, _, _ = _chunk(
            item, start_G, end_G, last_G, gap_G, chunks, all_stripes, rows, most_chunks, JAGGED, HELD, STRIPES, GROUPS
        )
        pair0 = stripe * PAIRS
        own_ptr = x_ptr
        own_width = width
        own_stride_t = stride_t
        if x2_ptr is not None:  # noqa: SIM102  (the compiler decides this one, the program the next)
            if stripe >= stripes:
                pair0 -= stripes * PAIRS
                own_ptr = x2_ptr
                own_width = width2
                own_stride_t = stride2_t
        if JAGGED:
            own_ptr += (first - gap).to(gl.int64) * own_stride_t
        else:
            own_ptr += group.to(gl.int64) * stride_g + first.to(gl.int64) * own_stride_t
        pairs = own_width // 2 - pair0
        if ALIGNED:
            pairs = pairs // 8 * 8  # tells the compiler that it is a multiple
        at_TW = own_ptr + pair0 + row_T.to(gl.int64)[:, None] * own_stride_t + pair_W[None, :]
        end = gl.where(group < groups, gl.minimum(high, HELD), 0)
        for at in range(0, end, T):
            mbarrier.wait(empty.index(slot), phase)
            row = at + row_T
            # Zeros where it is masked.
            mask_TW = ((row >= low) & (row < end))[:, None] & (pair_W < pairs)[None, :]
            copy_to_shared(ring.index(slot), at_TW, mask=mask_TW)
            async_copy.mbarrier_arrive(full.index(slot), increment_count=False)
            at_TW += own_stride_t.to(gl.int64) * T
            slot, phase = _next(slot, phase, SLOTS)


@gluon.jit
def _quantize(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, codes_ptr, scales_ptr, amax_ptr, ring, full, empty, groups, rows, width, stride_t, stride_g,
    x2_ptr, codes2_ptr, scales2_ptr, width2, stride2_t, padded_offs_ptr, most_chunks,
    X_DTYPE: gl.constexpr, MAX: gl.constexpr, NATIVE: gl.constexpr, POWER_OF_TWO: gl.constexpr, INVERSE: gl.constexpr,
    GROUPS: gl.constexpr, T: gl.constexpr, PAIRS: gl.constexpr, SLOTS: gl.constexpr, HELD: gl.constexpr,
    STRIPES: gl.constexpr, POLLS: gl.constexpr, TEAM: gl.constexpr,
):  # fmt: skip
    """A team of warps that takes amaxes and encodes, every other of the program's chunks."""
    JAGGED: gl.constexpr = offs_ptr is not None
    SECOND: gl.constexpr = x2_ptr is not None
    PADDED: gl.constexpr = padded_offs_ptr is not None
    WARPS: gl.constexpr = gl.num_warps()
    COPY: gl.constexpr = copy_layout(PAIRS, WARPS)
    TILE: gl.constexpr = encode_layout(T, PAIRS, WARPS)
    POLL: gl.constexpr = gl.BlockedLayout([1, 1], [32 // PAIRS, PAIRS], [WARPS, 1], [1, 0])
    row_T = gl.arange(0, T, gl.SliceLayout(1, TILE))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, TILE))
    row_count = rows.to(gl.int64) // 16 * 16  # tells the compiler that it is a multiple
    stripes, all_stripes = _stripes_of(width, width2, PAIRS)
    all_pairs = width // 2
    if SECOND:
        all_pairs += width2 // 2
    start_G, end_G, last_G, gap_G, all_chunks = _all_chunks(offs_ptr, groups, rows, most_chunks, PADDED, HELD, GROUPS)
    if PADDED:  # noqa: SIM102  (the compiler decides this one, the program the next)
        if gl.program_id(0) == 0:
            group_G = gl.arange(0, GROUPS, _table_layout(GROUPS, WARPS))
            gl.store(padded_offs_ptr + group_G, gl.cdiv(end_G, 16) * 16, mask=group_G < groups)
    done = gl.to_tensor(0)  # tiles before those of this chunk
    turn = gl.to_tensor(TEAM)
    for item in range(gl.program_id(0), all_chunks * all_stripes, gl.num_programs(0)):
        group, stripe, first, low, high, gap, chunk, number, chunks, start, end = _chunk(
            item, start_G, end_G, last_G, gap_G, all_chunks, all_stripes, rows, most_chunks,
            JAGGED, HELD, STRIPES, GROUPS,
        )  # fmt: skip
        is_group = group < groups
        tiles = gl.cdiv(gl.where(is_group, gl.minimum(high, HELD), 0), T)
        if turn == 0:
            pair0 = stripe * PAIRS
            slot_pair0 = pair0  # in amax
            own_x_ptr = x_ptr
            own_codes_ptr = codes_ptr
            own_scales_ptr = scales_ptr
            own_width = width
            own_stride_t = stride_t
            if SECOND:  # noqa: SIM102
                if stripe >= stripes:
                    pair0 -= stripes * PAIRS
                    slot_pair0 = width // 2 + pair0
                    own_x_ptr = x2_ptr
                    own_codes_ptr = codes2_ptr
                    own_scales_ptr = scales2_ptr
                    own_width = width2
                    own_stride_t = stride2_t
            pairs = own_width // 2 - pair0
            in_width_W = pair_W < pairs
            panel_ptr = own_x_ptr + pair0
            if JAGGED:
                panel_ptr -= gap.to(gl.int64) * own_stride_t
            else:
                panel_ptr += group.to(gl.int64) * stride_g
                own_codes_ptr += group.to(gl.int64) * row_count * own_width

            amax_TW = gl.zeros([T, PAIRS], gl.int32, COPY)
            for tile in range(done, done + tiles):
                mbarrier.wait(full.index(tile % SLOTS), (tile // SLOTS) & 1)
                amax_TW = max_pairs(amax_TW, ring.index(tile % SLOTS).load(COPY) & 0x7FFF7FFF)
            if is_group & (high > HELD):
                longer_TW = _amax_of(panel_ptr, own_stride_t, first + HELD, first + high, pairs, T, PAIRS)
                amax_TW = max_pairs(amax_TW, longer_TW)
            amax_W = gl.convert_layout(gl.reduce(amax_TW, 0, max_pairs), gl.SliceLayout(0, TILE))

            if is_group & (chunks > 1):
                # With `overlap` the fill of amax may still run until here; all that came before it is done.
                ready = gl.inline_asm_elementwise(
                    "griddepcontrol.wait; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
                )
                slot_ptr = amax_ptr + (number - chunk).to(gl.int64) * all_pairs + slot_pair0
                own_at_W = slot_ptr + chunk.to(gl.int64) * all_pairs + pair_W
                gl.store(own_at_W, (amax_W | ready) | -2147483648, mask=in_width_W, cache_modifier=".wt")
                other_C = gl.arange(0, WARPS, gl.SliceLayout(1, POLL))
                other_W = gl.arange(0, PAIRS, gl.SliceLayout(0, POLL))
                found_CW = gl.zeros([WARPS, PAIRS], gl.int32, POLL)
                left = ready + POLLS
                for other in range(0, chunks, WARPS):
                    at_CW = slot_ptr + (other + other_C).to(gl.int64)[:, None] * all_pairs + other_W[None, :]
                    mask_CW = (other + other_C < chunks)[:, None] & (other_W < pairs)[None, :]
                    words_CW = gl.load(at_CW, mask=mask_CW, other=-2147483648, volatile=True)
                    while (gl.max(gl.max(words_CW, 0), 0) >= 0) & (left > 0):
                        words_CW = gl.load(at_CW, mask=mask_CW, other=-2147483648, volatile=True)
                        left -= 1
                    found_CW = max_pairs(found_CW, words_CW & 0x7FFF7FFF)
                if left > 0:
                    amax_W = gl.convert_layout(gl.reduce(found_CW, 0, max_pairs), gl.SliceLayout(0, TILE))
                else:
                    all_TW = _amax_of(panel_ptr, own_stride_t, start, end, pairs, T, PAIRS)
                    amax_W = gl.convert_layout(gl.reduce(all_TW, 0, max_pairs), gl.SliceLayout(0, TILE))

            even_W = scale_of(amax_W & 0xFFFF, X_DTYPE, MAX, POWER_OF_TWO)
            odd_W = scale_of(amax_W >> 16, X_DTYPE, MAX, POWER_OF_TWO)
            column_W = 2 * (pair0 + pair_W)
            if is_group & (chunk == 0):
                scale_at_W = own_scales_ptr + group.to(gl.int64) * own_width + column_W
                store_scale(scale_at_W, even_W, in_width_W, INVERSE)
                store_scale(scale_at_W + 1, odd_W, in_width_W, INVERSE)
            codes_at_TW = own_codes_ptr + (column_W.to(gl.int64) * row_count)[None, :] + (first + row_T)[:, None]

            for tile in range(tiles):
                slot = (done + tile) % SLOTS
                words_TW = ring.index(slot).load(TILE)
                mbarrier.arrive(empty.index(slot), count=1)  # once all warps are here
                _write(
                    codes_at_TW + tile * T, row_count, words_TW, even_W, odd_W, tile * T + row_T, low, high, in_width_W,
                    X_DTYPE, NATIVE,
                )  # fmt: skip

            # Past the last group zeros have the codes that are due there.
            for at in range(gl.where(is_group, HELD, 0), high, T):
                row = at + row_T
                mask_TW = ((row < high) & is_group)[:, None] & in_width_W[None, :]
                at_TW = panel_ptr + (first + row).to(gl.int64)[:, None] * own_stride_t + pair_W[None, :]
                words_TW = gl.load(at_TW, mask=mask_TW, other=0)
                _write(
                    codes_at_TW + at, row_count, words_TW, even_W, odd_W, row, low, high, in_width_W, X_DTYPE, NATIVE
                )
            if (low % 16 != 0) | (high % 16 != 0):
                for edge in range(2):
                    _write_short(
                        panel_ptr + first.to(gl.int64) * own_stride_t, own_stride_t,
                        own_codes_ptr + 2 * pair0.to(gl.int64) * row_count + first, row_count, even_W, odd_W,
                        gl.where(edge == 0, low, high) // 16 * 16, low, high, gl.where(is_group, high, 0), pairs,
                        PADDED, PAIRS, X_DTYPE, NATIVE,
                    )  # fmt: skip
        done += tiles
        turn = gl.where(tiles > 0, 1 - turn, turn)
    gl.inline_asm_elementwise("griddepcontrol.wait; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def zero_words(words_ptr, count, BLOCK: gl.constexpr):  # type: ignore[no-untyped-def]
    """words (count,) int32 become zero, beside the kernel launched next if that one waits for it where it has to."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, LAYOUT)
    gl.store(words_ptr + at, gl.zeros([BLOCK], gl.int32, LAYOUT), mask=at < count)


@gluon.jit(do_not_specialize=["groups", "rows", "most_chunks"])  # type: ignore[untyped-decorator]
def quantize_ring(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, codes_ptr, scales_ptr, amax_ptr, groups, rows, width, stride_t, stride_g,
    x2_ptr, codes2_ptr, scales2_ptr, width2, stride2_t, padded_offs_ptr, most_chunks,
    X_DTYPE: gl.constexpr, MAX: gl.constexpr, NATIVE: gl.constexpr, POWER_OF_TWO: gl.constexpr, INVERSE: gl.constexpr,
    ALIGNED: gl.constexpr, GROUPS: gl.constexpr, T: gl.constexpr, PAIRS: gl.constexpr, SLOTS: gl.constexpr,
    HELD: gl.constexpr, STRIPES: gl.constexpr, POLLS: gl.constexpr,
):  # fmt: skip
    """x (rows, width) bf16 or fp16 as int32 words, stride_t words a row, jagged along the rows by offs (groups,) int32;
    without offs (groups, rows, width), stride_g words a group.

    Codes at column * rows + row, or (group * width + column) * rows + row; `rows` are those of codes, a multiple of 16;
    width is even. Scales (groups, width). amax (chunks of all panels, pairs of both operands) int32 begins at zero.
    PADDED (padded_offs_ptr given): row r of x is row r + gaps before it of the codes. ALIGNED: widths are multiples of
    16. INVERSE: scales are stored as their reciprocals. most_chunks * STRIPES is at most the number of programs.
    """
    PADDED: gl.constexpr = padded_offs_ptr is not None
    ring = gl.allocate_shared_memory(gl.int32, [SLOTS, T, PAIRS], shared_layout(T, PAIRS))
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=32 * LOADER_WARPS)
        mbarrier.init(empty.index(slot), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_quantize, (
                x_ptr, offs_ptr, codes_ptr, scales_ptr, amax_ptr, ring, full, empty, groups, rows, width, stride_t,
                stride_g, x2_ptr, codes2_ptr, scales2_ptr, width2, stride2_t, padded_offs_ptr, most_chunks,
                X_DTYPE, MAX, NATIVE, POWER_OF_TWO, INVERSE, GROUPS, T, PAIRS, SLOTS, HELD, STRIPES, POLLS, 0,
            )),
            (_quantize, (
                x_ptr, offs_ptr, codes_ptr, scales_ptr, amax_ptr, ring, full, empty, groups, rows, width, stride_t,
                stride_g, x2_ptr, codes2_ptr, scales2_ptr, width2, stride2_t, padded_offs_ptr, most_chunks,
                X_DTYPE, MAX, NATIVE, POWER_OF_TWO, INVERSE, GROUPS, T, PAIRS, SLOTS, HELD, STRIPES, POLLS, 1,
            )),
            (_load, (
                x_ptr, x2_ptr, offs_ptr, ring, full, empty, groups, rows, width, width2, stride_t, stride2_t, stride_g,
                most_chunks, PADDED, ALIGNED, GROUPS, T, PAIRS, SLOTS, HELD, STRIPES,
            )),
        ],
        [gl.num_warps(), LOADER_WARPS],
        [TEAM_REGISTERS, LOADER_REGISTERS],
    )  # fmt: skip
