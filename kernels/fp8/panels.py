"""Quantise down the rows of a group on Hopper: a panel waits in shared memory for its scales.

Does what `columns.py` does, with the same bits, for 16-bit inputs whose rows are whole 32-bit words (`words` in
`launch.py`), where one program can hold most panels. Formulas: `reference.py`.

Shape suffixes: T rows of a tile, W pairs of neighbouring columns (one 32-bit word each), G groups, C chunks.

How. A *panel* is one group's rows by PAIRS pairs of columns. A program copies a chunk of it, up to TILES * T rows, to
shared memory without a register in between, takes the amax of each column, and encodes from there: a thread reads
16 rows of a pair of columns and stores 16 codes of each as one vector. Memory is read once and written once.

Nothing waits for another program. A group longer than a chunk takes two launches of the same kernel: in phase 0 each of
its chunks stores its amax to a word of its own, in phase 1 each takes the maximum over the group's and encodes; so only
such a group is read twice. The first chunk of every group has a program of its own, those after it are shared out among
`extras` programs, which find none where all groups are short.
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
def _encode_layout(t, pairs, warps, vector):  # type: ignore[no-untyped-def]
    """`vector` rows of a word a thread, threads down the tile as cover it, so that a warp stores whole lines."""
    rows = [[1 << bit, 0] for bit in range((t - 1).bit_length())]
    words = [[0, 1 << bit] for bit in range((pairs - 1).bit_length())]
    registers = (vector - 1).bit_length()
    rest = rows[registers:] + words
    warp_bits = (warps - 1).bit_length()
    return gl.DistributedLinearLayout(
        rows[:registers] + rest[5 + warp_bits :], rest[:5], rest[5 : 5 + warp_bits], [], [t, pairs]
    )


@gluon.constexpr_function
def _shared_layout(t, pairs):  # type: ignore[no-untyped-def]
    """Row after row. Pieces of 16 bytes are kept whole; which piece of 128 bytes one is, is mixed with the number of
    its 16 rows, so that what a warp reads at once while encoding lies in different banks."""
    bases = [[0, 1 << bit] for bit in range((pairs - 1).bit_length())]
    bases += [[1 << bit, 0] for bit in range((t - 1).bit_length())]
    for bit in range(3):
        row, column = bases[2 + bit]
        bases[(pairs - 1).bit_length() + 4 + bit] = [(16 << bit) + row, column]
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
def _next_group(offs_ptr, group, groups, rows, phase, HELD: gl.constexpr, LAYOUT: gl.constexpr):  # type: ignore[no-untyped-def]
    """The first group from `group` on that has chunks for the extra programs; groups + 1 where none has.

    Number `groups` is the rest of the buffer, past the last group: all of it is theirs, in phase 0.
    """
    BLOCK: gl.constexpr = 128
    found = groups + 1
    for first in range(group // BLOCK * BLOCK, groups + 1, BLOCK):
        g = first + gl.arange(0, BLOCK, LAYOUT)
        start = gl.load(offs_ptr + g - 1, mask=(g > 0) & (g <= groups), other=0)
        end = gl.load(offs_ptr + g, mask=g < groups, other=0)
        end = gl.where(g == groups, rows, end)
        long = gl.where(g < groups, end - start // 16 * 16 > HELD, (end > start) & (phase == 0))
        found = gl.minimum(found, gl.min(gl.where(long & (g >= group) & (g <= groups), g, 2147483647), 0))
    return found


@gluon.jit(do_not_specialize=["groups", "rows", "main", "extras", "phase", "chunk_rows"])  # type: ignore[untyped-decorator]
def quantize_panels(  # type: ignore[no-untyped-def]
    x_ptr, offs_ptr, codes_ptr, scales_ptr, amax_ptr, groups, rows, width, stride_g, stride_t, x2_ptr, codes2_ptr,
    scales2_ptr, width2, stride2_t, main, extras, phase, chunk_rows,
    X_DTYPE: gl.constexpr, ROWS_ALIGNED: gl.constexpr, WIDTH_ALIGNED: gl.constexpr, MAX: gl.constexpr,
    NATIVE: gl.constexpr, POWER_OF_TWO: gl.constexpr, TILES: gl.constexpr, T: gl.constexpr, PAIRS: gl.constexpr,
    STRIPES: gl.constexpr, WARPS: gl.constexpr, VECTOR: gl.constexpr, WAIT: gl.constexpr,
):  # fmt: skip
    """x (rows, width) jagged by offs (groups,) int32, or without offs x (groups, rows, width); rows of whole words.

    Codes at column * rows + row, or at group * rows * width + column * rows + row; scales (groups, width). amax (chunks
    of all groups, pairs of all columns) int32 is scratch, for groups of several chunks. x2: a second input of
    the same groups. The first `main` programs take the first chunk of each panel, `extras` more what follows; phase: 0,
    then 1 where a group may have more than one chunk.
    """
    JAGGED: gl.constexpr = offs_ptr is not None
    SECOND: gl.constexpr = x2_ptr is not None
    HELD: gl.constexpr = TILES * T
    COPY: gl.constexpr = _copy_layout(PAIRS, WARPS)
    ENCODE: gl.constexpr = _encode_layout(T, PAIRS, WARPS, VECTOR)
    shared = gl.allocate_shared_memory(gl.int32, [TILES, T, PAIRS], _shared_layout(T, PAIRS))
    row_T = gl.arange(0, T, gl.SliceLayout(1, COPY))
    pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, COPY))
    code_row_T = gl.arange(0, T, gl.SliceLayout(1, ENCODE))
    code_pair_W = gl.arange(0, PAIRS, gl.SliceLayout(0, ENCODE))

    row_count = rows.to(gl.int64)
    if ROWS_ALIGNED:
        row_count = row_count // 16 * 16  # tells the compiler that it is a multiple
    stripes = gl.cdiv(width, 2 * PAIRS)
    all_stripes = stripes
    all_pairs = width // 2
    if SECOND:
        all_stripes += gl.cdiv(width2, 2 * PAIRS)
        all_pairs += width2 // 2

    pid = gl.program_id(0)
    is_main = pid < main
    step = gl.maximum(extras, 1)
    # Neighbouring stripes side by side, then the groups: rows are read in long pieces, and columns of codes written so.
    block = pid // (groups * STRIPES)
    block_stripes = gl.maximum(gl.minimum(all_stripes - block * STRIPES, STRIPES), 1)
    in_block = pid - block * groups * STRIPES
    group = in_block // block_stripes
    item = block * STRIPES + in_block % block_stripes  # of a group: chunk * all_stripes + stripe
    if not is_main:
        item = pid - main
        group *= 0
    looking = group >= 0
    while looking:
        if JAGGED:  # noqa: SIM102
            if not is_main:
                group = _next_group(offs_ptr, group, groups, rows, phase, HELD, gl.SliceLayout(1, COPY))
        looking = (not is_main) & (group <= groups)
        if WAIT:
            looking = group < 0
        is_group = group < groups
        start = group * 0
        end = rows
        if JAGGED:
            start = gl.load(offs_ptr + group - 1, mask=(group > 0) & (group <= groups), other=0)
            end = gl.load(offs_ptr + group, mask=is_group, other=0)
            end = gl.where(is_group, end, rows)
        base = start // 16 * 16  # codes are stored as vectors of 16 rows of the buffer
        chunks = gl.maximum(gl.cdiv(end - base, chunk_rows), 1)
        last_item = item + 1
        if WAIT:
            last_item = groups * chunks * all_stripes
        elif not is_main:
            last_item = chunks * all_stripes
            if is_group & (phase == 0):
                item += all_stripes  # the first chunk is not theirs
        if group > groups:
            last_item = item
        while item < last_item:
            if WAIT:
                group = item // (chunks * all_stripes)
                in_group = item - group * chunks * all_stripes
                block = in_group // (chunks * STRIPES)
                block_stripes = gl.minimum(all_stripes - block * STRIPES, STRIPES)
                in_block = in_group - block * chunks * STRIPES
                chunk = in_block // block_stripes
                stripe = block * STRIPES + in_block % block_stripes
            else:
                chunk = item // all_stripes
                stripe = item - chunk * all_stripes
            first = base + chunk * (chunk_rows // 16 * 16)
            low = gl.maximum(first, start) - first  # rows of the chunk that are the group's
            high = gl.minimum(end - first, chunk_rows)
            load_high = gl.where(is_group, high, 0)  # past the last group zeros have the codes that are due there
            tiles = gl.cdiv(high, T)

            pair0 = stripe * PAIRS
            slot_pair0 = pair0  # in amax
            own_ptr = x_ptr
            own_codes_ptr = codes_ptr
            own_scales_ptr = scales_ptr
            own_width = width
            own_stride_t = stride_t
            if SECOND:  # noqa: SIM102  (the compiler decides this one, the program the next)
                if stripe >= stripes:
                    pair0 -= stripes * PAIRS
                    slot_pair0 = width // 2 + pair0
                    own_ptr = x2_ptr
                    own_codes_ptr = codes2_ptr
                    own_scales_ptr = scales2_ptr
                    own_width = width2
                    own_stride_t = stride2_t
            pairs = own_width // 2 - pair0
            if WIDTH_ALIGNED:
                pairs = pairs // 8 * 8
            if not JAGGED:
                own_ptr += group.to(gl.int64) * stride_g
                own_codes_ptr += group.to(gl.int64) * row_count * own_width
            slot_row = ((group * chunks) if WAIT else (start // HELD + group)).to(
                gl.int64
            )  # of the group's first chunk
            slot_ptr = amax_ptr + slot_row * all_pairs + slot_pair0

            x_at_TW = own_ptr + first.to(gl.int64) * own_stride_t + pair0
            x_at_TW += row_T.to(gl.int64)[:, None] * own_stride_t + pair_W[None, :]
            for tile in range(tiles):
                row = tile * T + row_T
                mask_TW = ((row >= low) & (row < load_high))[:, None] & (pair_W < pairs)[None, :]
                _copy_to_shared(shared.index(tile), x_at_TW, mask=mask_TW)
                x_at_TW += own_stride_t.to(gl.int64) * T
            async_copy.commit_group()
            async_copy.wait_group(0)

            amax_TW = gl.zeros([T, PAIRS], gl.int32, COPY)
            if phase == 0:
                for tile in range(tiles):
                    amax_TW = _max_pairs(amax_TW, shared.index(tile).load(COPY) & 0x7FFF7FFF)
            else:
                for other in range(0, chunks, T):
                    at_TW = slot_ptr + (other + row_T).to(gl.int64)[:, None] * all_pairs + pair_W[None, :]
                    mask_TW = (other + row_T < chunks)[:, None] & (pair_W < pairs)[None, :]
                    amax_TW = _max_pairs(amax_TW, gl.load(at_TW, mask=mask_TW, other=0))
            amax_W = gl.reduce(amax_TW, 0, _max_pairs)

            if WAIT:
                own_at_W = slot_ptr + chunk.to(gl.int64) * all_pairs + pair_W
                gl.store(own_at_W, amax_W | -2147483648, mask=pair_W < pairs, cache_modifier=".wt")
                POLL: gl.constexpr = gl.BlockedLayout([1, 1], [32 // PAIRS, PAIRS], [WARPS, 1], [1, 0])
                other_C = gl.arange(0, WAIT, gl.SliceLayout(1, POLL))
                other_W = gl.arange(0, PAIRS, gl.SliceLayout(0, POLL))
                at_CW = slot_ptr + other_C.to(gl.int64)[:, None] * all_pairs + other_W[None, :]
                mask_CW = (other_C < chunks)[:, None] & (other_W < pairs)[None, :]
                words_CW = gl.load(at_CW, mask=mask_CW, other=-2147483648, volatile=True)
                while gl.max(gl.max(words_CW, 0), 0) >= 0:
                    words_CW = gl.load(at_CW, mask=mask_CW, other=-2147483648, volatile=True)
                amax_W = gl.convert_layout(gl.reduce(words_CW & 0x7FFF7FFF, 0, _max_pairs), gl.SliceLayout(0, COPY))

            if (not WAIT) & is_group & (phase == 0) & (chunks > 1):
                gl.store(slot_ptr + chunk.to(gl.int64) * all_pairs + pair_W, amax_W, mask=pair_W < pairs)
            else:
                panel_amax_W = gl.convert_layout(amax_W, gl.SliceLayout(0, ENCODE))
                even_W = _scale_of(panel_amax_W & 0xFFFF, X_DTYPE, MAX, POWER_OF_TWO)
                odd_W = _scale_of(panel_amax_W >> 16, X_DTYPE, MAX, POWER_OF_TWO)
                if is_group & (chunk == 0):
                    scale_at_W = own_scales_ptr + group.to(gl.int64) * own_width + 2 * (pair0 + code_pair_W)
                    gl.store(scale_at_W, even_W, mask=code_pair_W < pairs)
                    gl.store(scale_at_W + 1, odd_W, mask=code_pair_W < pairs)
                code_at_TW = own_codes_ptr + (2 * (pair0 + code_pair_W)).to(gl.int64)[None, :] * row_count
                code_at_TW += (first + code_row_T)[:, None]
                whole_low = gl.cdiv(low, 16) * 16
                whole_high = high // 16 * 16
                for tile in range(tiles):
                    words_TW = shared.index(tile).load(ENCODE)
                    even_TW = _codes(words_TW, even_W, False, X_DTYPE, NATIVE)
                    odd_TW = _codes(words_TW, odd_W, True, X_DTYPE, NATIVE)
                    row = tile * T + code_row_T
                    whole = (row >= whole_low) & (row < whole_high)
                    in_width = (code_pair_W < pairs)[None, :]
                    gl.store(code_at_TW, even_TW, mask=whole[:, None] & in_width)
                    gl.store(code_at_TW + row_count, odd_TW, mask=whole[:, None] & in_width)
                    if (low > tile * T) | ((high % 16 != 0) & (tile == tiles - 1)):  # rows short of a vector
                        short = (row >= low) & (row < high) & ((row < whole_low) | (row >= whole_high))
                        gl.store(code_at_TW, even_TW, mask=short[:, None] & in_width)
                        gl.store(code_at_TW + row_count, odd_TW, mask=short[:, None] & in_width)
                    code_at_TW += T
            item += step
        item -= last_item
        group += 1
