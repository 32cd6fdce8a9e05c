"""Quantise along rows and down columns in one launch, so that memory is read once: `rowwise_colwise_per_group`, and
`colwise_transpose_3d` on the (E, N, K) memory.

Shape suffixes: R rows of a row program, T rows and W columns of a column program's tile, G groups, K columns.

How. Both scales of an element need all of its row and all of its column, so it has to be looked at twice; what can be
saved is that the second look goes to memory. One grid holds the programs of `rows.py` and those of `columns.py`, and
only their order is new: a group's row programs and column programs are dealt evenly among each other (as Bresenham
draws a line), then the next group's. Whichever comes first to an element brings it into the cache, from which the
other takes it. Neither waits for the other, so nothing depends on that order but the time. Row programs stream, while
column programs mostly wait for each other, and an SM has both to choose from.

Bytes an element of 16 bits, codes written twice: 4 from and to memory where a group fits the cache beside what runs
(a group of 1040 x 5120 has 10.6 MB), against 6 of two kernels. Of a larger group, or an expert of 8192 x 5120 (84 MB),
rows and columns move through it at the same relative pace and meet near the diagonal only: with a cache of a fraction
f of it, about 6 - 4 f, until f = 1/2. Groups of a token batch, and experts of narrow models, are of the first kind.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.fp8.columns import cut, quantize_chunk
from kernels.fp8.rows import quantize_block


@triton.jit
def _find_group(offs_ptr, pid, groups, rows, per_slot, T: tl.constexpr, R: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The group whose program pid is, its rows [start, end), and all gaps before it; `groups` is the rest.

    Before group g come (offs[g-1] // T + g) * per_slot column programs, as `columns.find_group` has it, and
    offs[g-1] // R row programs: a block of rows that lies in two groups counts to the later one.
    """
    BLOCK: tl.constexpr = 64  # within a warp
    group = 0
    start = tl.zeros([], tl.int32)
    end = tl.zeros([], tl.int32) + rows
    gaps = tl.zeros([], tl.int32)
    for first in range(0, groups, BLOCK):
        g = first + tl.arange(0, BLOCK)
        ends = tl.load(offs_ptr + g, mask=g < groups, other=0)
        before = ((ends // T + g + 1) * per_slot + ends // R <= pid) & (g < groups)
        group += tl.sum(before.to(tl.int32), 0)
        start = tl.maximum(start, tl.max(tl.where(before, ends, 0), 0))
        end = tl.minimum(end, tl.min(tl.where(before | (g >= groups), rows, ends), 0))
        if PADDED:
            starts = tl.load(offs_ptr + g - 1, mask=(g > 0) & (g < groups), other=0)
            gaps += tl.sum(tl.where(before, (starts - ends) & 15, 0), 0)
    return group, tl.minimum(start, end), end, gaps


@triton.jit(do_not_specialize=["groups", "rows", "slots"])
def quantize_both(  # type: ignore[no-untyped-def]
    x_ptr, tiles_ptr, offs_ptr, row_codes_ptr, row_scales_ptr, codes_ptr, scales_ptr, amax_ptr, word_ptr,
    padded_offs_ptr, groups, rows, width, slots, code_rows, stride_g, stride_t, tiles_stride_g, tiles_stride_t,
    X_DTYPE: tl.constexpr, WORDS: tl.constexpr, JAGGED: tl.constexpr, ROWS_ALIGNED: tl.constexpr,
    WIDTH_ALIGNED: tl.constexpr, MAX: tl.constexpr, NAN_CODE: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr,
    NEGATIVE_ZERO: tl.constexpr, NATIVE: tl.constexpr, POWER_OF_TWO: tl.constexpr, INVERSE: tl.constexpr,
    R: tl.constexpr, ROW_BLOCK: tl.constexpr, ROW_TAIL: tl.constexpr, T: tl.constexpr, TAIL: tl.constexpr,
    W: tl.constexpr, PACK: tl.constexpr, STRIPES: tl.constexpr, CHUNKS: tl.constexpr, POLLS: tl.constexpr,
    WAIT_ROWS: tl.constexpr, REST: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """R rows, or a chunk of a panel, a program.

    x: rows lie side by side in memory, as x_ptr with stride_g and stride_t; with WORDS the same memory is tiles_ptr in
    words of 32 bits. JAGGED: x (rows, width) and offs (groups,) int32, `slots` in all; row codes (rows, width), row
    scales (rows,). Else: x (groups, rows, width), `slots` a group; row codes (groups, rows, width), row scales
    (groups, rows). What is reduced down columns, amax and word: as in `columns.quantize_columns`.
    """
    HELD: tl.constexpr = T + TAIL
    PADDED: tl.constexpr = padded_offs_ptr is not None
    pid = tl.program_id(0)
    stripes = tl.cdiv(width, W)
    per_slot = tl.cdiv(stripes, STRIPES) * STRIPES
    if JAGGED:
        group, start, end, gaps = _find_group(offs_ptr, pid, groups, rows, per_slot, HELD, R, PADDED)
        is_group = group < groups
        first_slot = start // HELD + group
        group_slots = tl.where(is_group, end // HELD + group + 1, slots) - first_slot
        first_block = start // R
        blocks = tl.where(is_group, end // R, tl.cdiv(rows, R)) - first_block
        index = pid - first_slot * per_slot - first_block
        all_rows = rows
    else:
        all_rows = groups * rows
        blocks = tl.cdiv(tl.cdiv(all_rows, R), groups)
        group_slots = slots
        group = pid // (blocks + slots * per_slot)
        index = pid % (blocks + slots * per_slot)
        is_group = group < groups
        first_slot = group * slots
        first_block = group * blocks
        start = tl.zeros([], tl.int32)
        end = tl.zeros([], tl.int32) + rows

    # Dealt evenly: of the first i programs, i * blocks // count are row programs.
    count = (blocks + group_slots * per_slot).to(tl.int64)
    block = (index.to(tl.int64) * blocks // count).to(tl.int32)
    if ((index + 1).to(tl.int64) * blocks // count).to(tl.int32) > block:
        quantize_block(
            first_block + block, x_ptr, row_codes_ptr, row_scales_ptr, all_rows, rows, width, stride_g, stride_t, 1,
            MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO, NATIVE, POWER_OF_TWO, INVERSE,
            True, R, ROW_BLOCK, ROW_TAIL, True,
        )  # fmt: skip
        return

    # As in `columns.quantize_columns`: neighbouring stripes side by side, the chunks of a panel close together.
    index -= block
    chunk = index % (group_slots * STRIPES) // STRIPES
    stripe = index // (group_slots * STRIPES) * STRIPES + index % STRIPES
    slot_row = (first_slot + chunk).to(tl.int64)
    row_count = tl.zeros([], tl.int64) + (code_rows if PADDED else rows)
    if ROWS_ALIGNED or PADDED:
        row_count = row_count // 16 * 16  # tells the compiler that it is a multiple
    if PADDED:  # from here on rows are those of codes; row r of them is row r - gaps of x
        start += gaps
        end = tl.where(is_group, end + gaps, code_rows)
        rows += gaps
        tiles_ptr -= gaps.to(tl.int64) * tiles_stride_t
    if not JAGGED:
        tiles_ptr += group.to(tl.int64) * tiles_stride_g
        codes_ptr += group.to(tl.int64) * row_count * width

    base, chunks, height = cut(start, end, HELD, CHUNKS)
    if (chunk >= chunks) | (stripe >= stripes):
        return
    quantize_chunk(
        tiles_ptr, codes_ptr, scales_ptr, amax_ptr, word_ptr, padded_offs_ptr, group, start, end, rows, row_count,
        width, chunk, base, chunks, height, slot_row, stripe, stripes, is_group, tiles_stride_t, 1,
        X_DTYPE, WORDS, True, ROWS_ALIGNED, WIDTH_ALIGNED, INVERSE, MAX, NAN_CODE, MANTISSA, BIAS, NEGATIVE_ZERO,
        NATIVE, POWER_OF_TWO, T, TAIL, W, PACK, POLLS, WAIT_ROWS, REST, OVERLAP,
    )  # fmt: skip
