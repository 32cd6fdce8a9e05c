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

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from kernels.fp8.configs import RingConfig
from kernels.fp8.encode import Encoding
from kernels.fp8.ring_chunks import Operand, Rows, chunk_of, operand_of, table_of
from kernels.fp8.transposed import Form
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
from kernels.jit import named

__all__ = ["quantize_ring"]

LOADER_WARPS = gl.constexpr(4)
LOADER_REGISTERS = gl.constexpr(56)  # a thread
TEAM_REGISTERS = gl.constexpr(112)  # of the second team; the first has what these leave


class Ring(NamedTuple):
    """Slots of a tile in shared memory, and of each the barriers that tell it is full and that it is empty."""

    tiles: Any
    full: Any
    empty: Any


# ---- loading ---------------------------------------------------------------------------------------------------------


@gluon.jit
def _next(slot, phase, SLOTS: gl.constexpr):  # type: ignore[no-untyped-def]
    """The slot after this one; the phase of its barriers changes each time round."""
    wrapped = slot == SLOTS - 1
    return gl.where(wrapped, 0, slot + 1), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def _load(ring, rows, first, second, FORM: gl.constexpr, CONFIG: gl.constexpr, GROUPS: gl.constexpr):  # type: ignore[no-untyped-def]
    """The warps that have all rows copied, as soon as there is room for them."""
    T: gl.constexpr = CONFIG.rows
    PAIRS: gl.constexpr = CONFIG.width // 2
    COPY: gl.constexpr = copy_layout(PAIRS, gl.num_warps())
    row_T = gl.arange(0, T, gl.SliceLayout(1, COPY))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, COPY))
    table = table_of(rows, first, second, CONFIG, GROUPS, False)
    slot = 0
    phase = 1  # an empty slot need not be waited for the first time round
    for item in range(gl.program_id(0), table.chunks * table.all_stripes, gl.num_programs(0)):
        chunk = chunk_of(item, rows, table, CONFIG, GROUPS)
        own, pair0, _ = operand_of(chunk.stripe, first, second, table, CONFIG)
        x_ptr = own.x_ptr + (chunk.first - chunk.gap).to(gl.int64) * own.stride_t
        if rows.offs_ptr is None:
            x_ptr += chunk.group.to(gl.int64) * rows.stride_g
        pairs = own.width // 2 - pair0
        if FORM.width_aligned:
            pairs = pairs // 8 * 8  # tells the compiler that it is a multiple
        at_TW = x_ptr + pair0 + row_T.to(gl.int64)[:, None] * own.stride_t + pair_W[None, :]
        end = gl.where(chunk.group < rows.count, gl.minimum(chunk.high, CONFIG.held_rows), 0)
        for at in range(0, end, T):
            mbarrier.wait(ring.empty.index(slot), phase)
            row = at + row_T
            # Zeros where it is masked.
            mask_TW = ((row >= chunk.low) & (row < end))[:, None] & (pair_W < pairs)[None, :]
            copy_to_shared(ring.tiles.index(slot), at_TW, mask=mask_TW)
            async_copy.mbarrier_arrive(ring.full.index(slot), increment_count=False)
            at_TW += own.stride_t.to(gl.int64) * T
            slot, phase = _next(slot, phase, CONFIG.slots)


# ---- quantising ------------------------------------------------------------------------------------------------------


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
def _share(amax_W, chunk, slot_ptr, all_pairs, pairs, CONFIG: gl.constexpr):  # type: ignore[no-untyped-def]
    """Publish a chunk's amax and look for those of the panel's others: (theirs, whether all were found)."""
    PAIRS: gl.constexpr = CONFIG.width // 2
    WARPS: gl.constexpr = gl.num_warps()
    POLL: gl.constexpr = gl.BlockedLayout([1, 1], [32 // PAIRS, PAIRS], [WARPS, 1], [1, 0])
    pair_W = gl.arange(0, PAIRS, amax_W.type.layout)
    # Where the launch is early the fill of amax may still run until here; all that came before it is done.
    ready = gl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    own_at_W = slot_ptr + chunk.number.to(gl.int64) * all_pairs + pair_W
    gl.store(own_at_W, (amax_W | ready) | -2147483648, mask=pair_W < pairs, cache_modifier=".wt")
    other_C = gl.arange(0, WARPS, gl.SliceLayout(1, POLL))
    other_W = gl.arange(0, PAIRS, gl.SliceLayout(0, POLL))
    found_CW = gl.zeros([WARPS, PAIRS], gl.int32, POLL)
    left = ready + CONFIG.polls
    for other in range(0, chunk.chunks, WARPS):
        at_CW = slot_ptr + (other + other_C).to(gl.int64)[:, None] * all_pairs + other_W[None, :]
        mask_CW = (other + other_C < chunk.chunks)[:, None] & (other_W < pairs)[None, :]
        words_CW = gl.load(at_CW, mask=mask_CW, other=-2147483648, volatile=True)
        while (gl.max(gl.max(words_CW, 0), 0) >= 0) & (left > 0):
            words_CW = gl.load(at_CW, mask=mask_CW, other=-2147483648, volatile=True)
            left -= 1
        found_CW = max_pairs(found_CW, words_CW & 0x7FFF7FFF)
    return gl.convert_layout(gl.reduce(found_CW, 0, max_pairs), amax_W.type.layout), left > 0


@gluon.jit
def _write(  # type: ignore[no-untyped-def]
    codes_at_TW, row_count, words_TW, even_W, odd_W, row_T, low, high, in_width_W,
    FORM: gl.constexpr, ENCODING: gl.constexpr,
):  # fmt: skip
    """Codes of a tile, of those rows [low, high) of it that make up vectors of 16."""
    whole_T = (row_T >= gl.cdiv(low, 16) * 16) & (row_T < high // 16 * 16)
    mask_TW = whole_T[:, None] & in_width_W[None, :]
    gl.store(codes_at_TW, codes(words_TW, even_W, False, FORM, ENCODING), mask=mask_TW)
    gl.store(codes_at_TW + row_count, codes(words_TW, odd_W, True, FORM, ENCODING), mask=mask_TW)


@gluon.jit
def _write_short(  # type: ignore[no-untyped-def]
    x_ptr, stride_t, codes_ptr, row_count, even_W, odd_W, at, low, high, load_high, pairs,
    PADDED: gl.constexpr, PAIRS: gl.constexpr, FORM: gl.constexpr, ENCODING: gl.constexpr,
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
    even_TW = codes(words_TW, even_W, False, FORM, ENCODING)
    odd_TW = codes(words_TW, odd_W, True, FORM, ENCODING)
    if PADDED:  # and the gap behind the group
        even_TW = gl.where(inside_TW, even_TW, gl.full_like(even_TW, 0))
        odd_TW = gl.where(inside_TW, odd_TW, gl.full_like(odd_TW, 0))
        inside_TW = ((row_T >= low) & (row_T < gl.cdiv(high, 16) * 16))[:, None] & (pair_W < pairs)[None, :]
    codes_at_TW = codes_ptr + (2 * pair_W * row_count)[None, :] + row_T[:, None]
    gl.store(codes_at_TW, even_TW, mask=inside_TW)
    gl.store(codes_at_TW + row_count, odd_TW, mask=inside_TW)


@gluon.jit
def _quantize(  # type: ignore[no-untyped-def]  # noqa: C901  # a chunk's amax, scales and codes share its tiles
    ring, rows, first, second, amax_ptr, FORM: gl.constexpr, ENCODING: gl.constexpr, CONFIG: gl.constexpr,
    GROUPS: gl.constexpr, TEAM: gl.constexpr,
):  # fmt: skip
    """A team of warps that takes amaxes and encodes, every other of the program's chunks."""
    PADDED: gl.constexpr = rows.padded_offs_ptr is not None
    T: gl.constexpr = CONFIG.rows
    PAIRS: gl.constexpr = CONFIG.width // 2
    SLOTS: gl.constexpr = CONFIG.slots
    HELD: gl.constexpr = CONFIG.held_rows
    COPY: gl.constexpr = copy_layout(PAIRS, gl.num_warps())
    TILE: gl.constexpr = encode_layout(T, PAIRS, gl.num_warps())
    row_T = gl.arange(0, T, gl.SliceLayout(1, TILE))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, TILE))
    row_count = rows.rows.to(gl.int64) // 16 * 16  # tells the compiler that it is a multiple
    all_pairs = first.width // 2
    if second.x_ptr is not None:
        all_pairs += second.width // 2
    table = table_of(rows, first, second, CONFIG, GROUPS, PADDED)
    done = gl.to_tensor(0)  # tiles before those of this chunk
    turn = gl.to_tensor(TEAM)
    for item in range(gl.program_id(0), table.chunks * table.all_stripes, gl.num_programs(0)):
        chunk = chunk_of(item, rows, table, CONFIG, GROUPS)
        low = chunk.low
        high = chunk.high
        is_group = chunk.group < rows.count
        tiles = gl.cdiv(gl.where(is_group, gl.minimum(high, HELD), 0), T)
        if turn == 0:
            own, pair0, both_pair0 = operand_of(chunk.stripe, first, second, table, CONFIG)
            pairs = own.width // 2 - pair0
            in_width_W = pair_W < pairs
            panel_ptr = own.x_ptr + pair0
            codes_ptr = own.codes_ptr
            if rows.offs_ptr is not None:
                panel_ptr -= chunk.gap.to(gl.int64) * own.stride_t
            else:
                panel_ptr += chunk.group.to(gl.int64) * rows.stride_g
                codes_ptr += chunk.group * row_count * own.width

            amax_TW = gl.zeros([T, PAIRS], gl.int32, COPY)
            for tile in range(done, done + tiles):
                mbarrier.wait(ring.full.index(tile % SLOTS), (tile // SLOTS) & 1)
                amax_TW = max_pairs(amax_TW, ring.tiles.index(tile % SLOTS).load(COPY) & 0x7FFF7FFF)
            if is_group & (high > HELD):
                longer_TW = _amax_of(
                    panel_ptr, own.stride_t, chunk.first + HELD, chunk.first + high, pairs, T, PAIRS
                )  # fmt: skip
                amax_TW = max_pairs(amax_TW, longer_TW)
            amax_W = gl.convert_layout(gl.reduce(amax_TW, 0, max_pairs), gl.SliceLayout(0, TILE))

            if is_group & (chunk.chunks > 1):
                slot_ptr = amax_ptr + (chunk.place - chunk.number).to(gl.int64) * all_pairs + both_pair0
                found_W, complete = _share(amax_W, chunk, slot_ptr, all_pairs, pairs, CONFIG)
                if complete:
                    amax_W = found_W
                else:
                    all_TW = _amax_of(panel_ptr, own.stride_t, chunk.start, chunk.end, pairs, T, PAIRS)
                    amax_W = gl.convert_layout(gl.reduce(all_TW, 0, max_pairs), gl.SliceLayout(0, TILE))

            even_W = scale_of(amax_W & 0xFFFF, FORM, ENCODING)
            odd_W = scale_of(amax_W >> 16, FORM, ENCODING)
            column_W = 2 * (pair0 + pair_W)
            if is_group & (chunk.number == 0):
                scale_at_W = own.scales_ptr + chunk.group.to(gl.int64) * own.width + column_W
                store_scale(scale_at_W, even_W, in_width_W, ENCODING)
                store_scale(scale_at_W + 1, odd_W, in_width_W, ENCODING)
            codes_at_TW = codes_ptr + (column_W * row_count)[None, :] + (chunk.first + row_T)[:, None]

            for tile in range(tiles):
                slot = (done + tile) % SLOTS
                words_TW = ring.tiles.index(slot).load(TILE)
                mbarrier.arrive(ring.empty.index(slot), count=1)  # once all warps are here
                _write(
                    codes_at_TW + tile * T, row_count, words_TW, even_W, odd_W, tile * T + row_T, low, high, in_width_W,
                    FORM, ENCODING,
                )  # fmt: skip

            # Past the last group zeros have the codes that are due there.
            for at in range(gl.where(is_group, HELD, 0), high, T):
                row = at + row_T
                mask_TW = ((row < high) & is_group)[:, None] & in_width_W[None, :]
                at_TW = panel_ptr + (chunk.first + row).to(gl.int64)[:, None] * own.stride_t + pair_W[None, :]
                words_TW = gl.load(at_TW, mask=mask_TW, other=0)
                _write(codes_at_TW + at, row_count, words_TW, even_W, odd_W, row, low, high, in_width_W, FORM, ENCODING)
            if (low % 16 != 0) | (high % 16 != 0):
                for edge in range(2):
                    _write_short(
                        panel_ptr + chunk.first.to(gl.int64) * own.stride_t, own.stride_t,
                        codes_ptr + pair0 * (2 * row_count) + chunk.first, row_count, even_W, odd_W,
                        gl.where(edge == 0, low, high) // 16 * 16, low, high, gl.where(is_group, high, 0), pairs,
                        PADDED, PAIRS, FORM, ENCODING,
                    )  # fmt: skip
        done += tiles
        turn = gl.where(tiles > 0, 1 - turn, turn)
    gl.inline_asm_elementwise("griddepcontrol.wait; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


# ---- the kernels -----------------------------------------------------------------------------------------------------


@gluon.jit
def zero_words(words_ptr, count, BLOCK: gl.constexpr):  # type: ignore[no-untyped-def]
    """words (count,) int32 become zero, beside the kernel launched next if that one waits for it where it has to."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; mov.b32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    LAYOUT: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    at = gl.program_id(0).to(gl.int64) * BLOCK + gl.arange(0, BLOCK, LAYOUT)
    gl.store(words_ptr + at, gl.zeros([BLOCK], gl.int32, LAYOUT), mask=at < count)


@gluon.jit(do_not_specialize=["groups", "rows", "most_chunks"])  # type: ignore[untyped-decorator]
def quantize_ring(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, codes_ptr, scales_ptr, amax_ptr, groups, rows, width, stride_t, stride_g,
    x2_ptr, codes2_ptr, scales2_ptr, width2, stride2_t, padded_offs_ptr, most_chunks,
    GROUPS: gl.constexpr, form: gl.constexpr, encoding: gl.constexpr, config: gl.constexpr,
):  # fmt: skip
    """x (rows, width) bf16 or fp16 as int32 words, stride_t words a row, jagged along the rows by offs (groups,) int32;
    without offs (groups, rows, width), stride_g words a group.

    Codes at column * rows + row, or (group * width + column) * rows + row; `rows` are those of codes, a multiple of 16;
    width is even. Scales (groups, width). amax (chunks of all panels, pairs of both operands) int32 begins at zero.
    With padded_offs (groups,), which is written, row r of x is row r + gaps before it of the codes. GROUPS: a power of
    two that is not below `groups`. most_chunks times `stripes` is at most the number of programs.
    """
    FORM: gl.constexpr = named(Form, form)
    ENCODING: gl.constexpr = named(Encoding, encoding)
    CONFIG: gl.constexpr = named(RingConfig, config)
    T: gl.constexpr = CONFIG.rows
    PAIRS: gl.constexpr = CONFIG.width // 2
    SLOTS: gl.constexpr = CONFIG.slots
    tiles = gl.allocate_shared_memory(gl.int32, [SLOTS, T, PAIRS], shared_layout(T, PAIRS))
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=32 * LOADER_WARPS)
        mbarrier.init(empty.index(slot), count=1)
    fence_async_shared()
    ring = Ring(tiles, full, empty)
    all_rows = Rows(offs_ptr, padded_offs_ptr, groups, rows, stride_g, most_chunks)
    first = Operand(x_ptr, codes_ptr, scales_ptr, width, stride_t)
    second = Operand(x2_ptr, codes2_ptr, scales2_ptr, width2, stride2_t)
    gl.warp_specialize(
        [
            (_quantize, (ring, all_rows, first, second, amax_ptr, FORM, ENCODING, CONFIG, GROUPS, 0)),
            (_quantize, (ring, all_rows, first, second, amax_ptr, FORM, ENCODING, CONFIG, GROUPS, 1)),
            (_load, (ring, all_rows, first, second, FORM, CONFIG, GROUPS)),
        ],
        [gl.num_warps(), LOADER_WARPS],
        [TEAM_REGISTERS, LOADER_REGISTERS],
    )
