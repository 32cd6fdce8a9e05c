"""For each row the places that ask for it, in order; and sums over them that no hot row makes slow.

One launch gives each place a slot in the table of its row by counting atomically: which one is chance. The program
that adds a row puts the places in its table in order itself, each compared with each. Where a row is asked for by more
places than its table has slots, the lists of all rows are made by a stable radix sort of the index, 8 bits a pass
(`counting`), in as many passes as the rows have bytes; else its launches end at once. A sorted list of up to LONG
places has a program of its own, too, for each block of columns. A longer one is cut at fixed places of the sorted order
into parts of LONG, whose fp32 sums a last launch adds in order. No float is added atomically, so the result is the same
in every run, whatever order programs run in.

Shape suffixes: N places, S places of a program, P slots of a row, B buckets, R places added at a time, C columns of a
block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, cdiv, pick
from kernels.operators.configs import ListConfig, list_candidates
from kernels.operators.counting import (
    STEP,
    add,
    clamped,
    count_keys,
    counted,
    digit,
    earlier,
    rows_of_counts,
    sizes_of_count,
    steps_of_chunk,
    whole_numbers,
)
from kernels.operators.launch import after, strides
from kernels.rounding import rounded

DIGIT_BITS = 8
BUCKETS = 1 << DIGIT_BITS
_SLOTS_AT_ONCE = 64  # places that one program gives slots; every pair of them is compared


@dataclass(frozen=True)
class Lists:
    """Row r is asked for at the places order[starts[r]:ends[r]], ascending; nobody asks for it where ends is 0."""

    order: Tensor  # (n,)
    starts: Tensor  # (rows,)
    ends: Tensor  # (rows,)


def sum_by_index(x: Tensor, index: Tensor, out: Tensor, candidate: int | None) -> None:
    """out[r] = sum of x[i] over i with index[i] == r, in fp32; 0 where there is none.

    x (n, width) any strides; index (n,) int64 or int32, what is out of range belongs to no row; out (rows, width)
    contiguous.
    """
    rows = out.shape[0]
    if out.numel() == 0:
        return
    if path_of(_sum_lists, x.device) == "eager":
        kept = (index >= 0) & (index < rows)
        sums = torch.zeros(out.shape, dtype=torch.float32, device=out.device)
        out.copy_(sums.index_add_(0, index[kept], x[kept].float()))
        return
    if index.shape[0] == 0:
        out.zero_()
        return
    config = _config_of(arch_of(x.device), out.shape[1], candidate)
    index = index.contiguous()
    tables = _tables_of(index, rows, config)
    _sum(x, index, tables, _sorted(index, tables, config.overlap), out, config)


@cache
def _config_of(arch: str, width: int, candidate: int | None) -> ListConfig:
    return pick(list_candidates(arch, width), candidate)


@dataclass(frozen=True)
class Tables:
    """Row r is asked for by asked[r] places: those at table[r, :asked[r]], in any order, if that many fit."""

    asked: Tensor  # (rows,)
    table: Tensor  # (rows, P)
    is_full: Tensor  # (1,), 1 where a row has more places than slots
    counters: Tensor  # (passes, rows_of_counts, BUCKETS), zeros for the sort
    ends: Tensor  # (rows,), zeros for the sort


def _tables_of(index: Tensor, rows: int, config: ListConfig) -> Tables:
    """index (n,) int64 or int32, contiguous, n and rows above 0; what is out of [0, rows) is in no table."""
    count = index.shape[0]
    dtype = whole_numbers(max(count, rows))
    passes = cdiv(rows.bit_length(), DIGIT_BITS)  # of the keys 0 to `rows`, the last one for what is out of range
    # Each begins on 16 bytes, whatever the rows: kernels are compiled for how their pointers are aligned.
    sizes = [passes * rows_of_counts(count) * BUCKETS, 4, cdiv(rows, 4) * 4, cdiv(rows, 4) * 4]
    counters, is_full, asked, ends = torch.zeros(sum(sizes), dtype=dtype, device=index.device).split(sizes)
    table = index.new_empty((rows, config.slots), dtype=dtype)
    launch = _taking(config)
    launch(index.device, cdiv(count, _SLOTS_AT_ONCE), index, asked, table, is_full, count, rows)
    return Tables(asked[:rows], table, is_full[:1], counters.view(passes, -1, BUCKETS), ends[:rows])


@cache
def _taking(config: ListConfig) -> Launch:
    return Launch(_take_slots, P=config.slots, S=_SLOTS_AT_ONCE, num_warps=2, **after(config.overlap))


def _sorted(index: Tensor, tables: Tables, overlap: bool) -> Lists:
    """The lists of all rows; what is out of range comes last and is in none. Where no table is full nothing is written
    to them."""
    count, rows = index.shape[0], tables.asked.shape[0]
    counts, ends = tables.counters, tables.ends
    dtype, passes = ends.dtype, len(counts)
    starts = index.new_empty(rows, dtype=dtype)
    steps, launch = steps_of_chunk(count), _placing(overlap)
    count_keys(index, rows, counts[0], fill=starts, value=count, needed=tables.is_full, overlap=overlap)
    keys, order = index, None
    for number in range(passes):
        last = number == passes - 1
        next_keys = None if last else index.new_empty(count, dtype=dtype)
        next_order = index.new_empty(count, dtype=dtype)
        marks = (None, starts, ends) if last else (counts[number + 1], None, None)
        launch(
            index.device, cdiv(count, STEP), tables.is_full, keys, order, counts[number], next_keys, next_order, *marks,
            count, rows, steps, DIGIT_BITS * number,
        )  # fmt: skip
        keys, order = next_keys, next_order
    assert order is not None
    return Lists(order, starts, ends)


@cache
def _placing(overlap: bool) -> Launch:
    return Launch(_place, **sizes_of_count(BUCKETS), **after(overlap))


def _sum(x: Tensor, index: Tensor, tables: Tables, lists: Lists, out: Tensor, config: ListConfig) -> None:
    count, (rows, width) = index.shape[0], out.shape
    launch, launch_parts = _summing(arch_of(x.device), config)
    parts = cdiv(count, config.long)
    partial = x.new_empty((2 * parts, width), dtype=torch.float32)
    begins = index.new_empty(parts, dtype=lists.order.dtype)
    launch(
        x.device, (parts + rows) * cdiv(width, config.columns), x, tables.asked, tables.table, tables.is_full,
        index, lists.order, lists.starts, lists.ends, out, partial, begins, count, rows, width, parts, *strides(x),
    )  # fmt: skip
    programs = parts * cdiv(width, config.part_columns)
    launch_parts(x.device, programs, tables.is_full, partial, begins, lists.starts, lists.ends, out, width)


@cache
def _summing(arch: str, config: ListConfig) -> tuple[Launch, Launch]:
    constants = {"BY_HAND": arch == "cpu", "LONG": config.long, **after(config.overlap)}
    sizes = {"P": config.slots, "R": config.rows, "C": config.columns, "num_warps": config.warps}
    part_sizes = {"R": config.part_rows, "C": config.part_columns, "num_warps": 4}
    return Launch(_sum_lists, **constants, **sizes), Launch(_sum_parts, **constants, **part_sizes)


@jit(do_not_specialize=["count", "rows"])
def _take_slots(  # type: ignore[no-untyped-def]
    index_ptr, asked_ptr, table_ptr, is_full_ptr, count, rows,
    OVERLAP: tl.constexpr, P: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """S places to slots of their rows. Of places that ask for one row the first takes the slots of all: thousands of
    atomics at one address would wait for each other."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    DTYPE: tl.constexpr = table_ptr.dtype.element_ty
    at_S = tl.program_id(0).to(tl.int64) * S + tl.arange(0, S)
    row_S = tl.load(index_ptr + at_S, mask=at_S < count, other=-1)
    is_row_S = (row_S >= 0) & (row_S < rows)
    key_S = tl.where(is_row_S, row_S, -1).to(DTYPE)
    lane_S = tl.arange(0, S)
    same_SS = key_S[:, None] == key_S[None, :]
    # Counts of all that are the same, and of those before times 2 S, in one sum.
    weight_SS = tl.where(lane_S[:, None] < lane_S[None, :], 2 * S + 1, 1)
    sums_S = tl.sum(tl.where(same_SS, weight_SS, 0), 0)
    first_S = tl.min(tl.where(same_SS, lane_S[:, None], S), 0)
    if OVERLAP:  # what is above reads the index alone, which was there before the fill began
        tl.extra.cuda.gdc_wait()
    taken_S = tl.atomic_add(
        asked_ptr + key_S, (sums_S % (2 * S)).to(DTYPE), mask=is_row_S & (first_S == lane_S), sem="relaxed"
    )
    slot_S = tl.gather(taken_S, first_S, 0) + sums_S // (2 * S)
    tl.store(table_ptr + key_S.to(tl.int64) * P + slot_S, at_S.to(DTYPE), mask=is_row_S & (slot_S < P))
    tl.store(is_full_ptr + lane_S * 0, tl.full((S,), 1, DTYPE), mask=is_row_S & (slot_S == P))


@jit(do_not_specialize=["count", "limit", "steps", "shift"])
def _place(  # type: ignore[no-untyped-def]
    is_full_ptr, keys_ptr, order_ptr, counts_ptr, next_keys_ptr, next_order_ptr, next_counts_ptr, starts_ptr, ends_ptr,
    count, limit, steps, shift,
    OVERLAP: tl.constexpr, K: tl.constexpr, B: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One pass of the sort: S keys to their places by one digit. It counts for the next pass, the last one marks where
    the list of each row starts and ends."""
    DTYPE: tl.constexpr = next_order_ptr.dtype.element_ty
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if tl.load(is_full_ptr) == 0:
        return
    at_S = tl.program_id(0).to(tl.int64) * S + tl.arange(0, S)
    inside_S = at_S < count
    key_S = clamped(keys_ptr, at_S, inside_S, limit, DTYPE)
    digit_S = digit(key_S, shift, B)
    all_B, before_B = counted(counts_ptr, tl.program_id(0), steps, K, B, F)
    first_B = tl.cumsum(all_B, 0) - all_B + before_B
    # Keys that are not there come last, and so count for none.
    to_S = tl.gather(first_B, digit_S, 0).to(tl.int64) + earlier(digit_S[:, None] == digit_S[None, :], S)
    number_S = at_S if order_ptr is None else tl.load(order_ptr + at_S, mask=inside_S, other=0)
    tl.store(next_order_ptr + to_S, number_S.to(DTYPE), mask=inside_S)
    if next_keys_ptr is not None:
        tl.store(next_keys_ptr + to_S, key_S, mask=inside_S)
        add(next_counts_ptr, to_S, digit(key_S // B, shift, B), inside_S, steps, K, B, S)
    else:
        same_SS = key_S[:, None] == key_S[None, :]
        before_S = earlier(same_SS, S)
        is_row_S = key_S < limit
        to_S = to_S.to(DTYPE)
        # One key speaks for its like: thousands of them at one address would wait for each other.
        tl.atomic_min(starts_ptr + key_S, to_S, mask=is_row_S & (before_S == 0), sem="relaxed")
        is_last_S = before_S + 1 == tl.sum(same_SS.to(tl.int32), 0)
        tl.atomic_max(ends_ptr + key_S, to_S + 1, mask=is_row_S & is_last_S, sem="relaxed")


@jit()
def _sum_rows(x_ptr, from_R, is_row_R, column_C, width, x_row, x_column):  # type: ignore[no-untyped-def]
    """The sum (C,) of R rows of x, less those where `is_row` is false."""
    inside_RC = is_row_R[:, None] & (column_C < width)[None, :]
    x_RC = tl.load(x_ptr + from_R[:, None] * x_row + column_C[None, :] * x_column, mask=inside_RC, other=0.0)
    return tl.sum(x_RC.to(tl.float32), 0)


@jit()
def _sum_places(  # type: ignore[no-untyped-def]
    x_ptr, order_ptr, start, end, column_C, width, x_row, x_column, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    sum_C = tl.zeros((C,), tl.float32)
    for first in range(start, end, R):
        at_R = first + tl.arange(0, R)
        from_R = tl.load(order_ptr + at_R, mask=at_R < end, other=0).to(tl.int64)
        sum_C += _sum_rows(x_ptr, from_R, at_R < end, column_C, width, x_row, x_column)
    return sum_C


@jit()
def _sum_slots(  # type: ignore[no-untyped-def]
    x_ptr, place_P, asked, column_C, width, x_row, x_column, P: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The sum (C,) of the rows of x that the first `asked` of P slots name, in ascending order, R at a time."""
    is_taken_P = tl.arange(0, P) < asked
    place_P = tl.where(is_taken_P, place_P, 0)
    before_PP = (place_P[:, None] < place_P[None, :]) & is_taken_P[:, None]
    rank_P = tl.where(is_taken_P, tl.sum(before_PP.to(tl.int32), 0), P)
    sum_C = tl.zeros((C,), tl.float32)
    for first in range(0, asked, R):
        rank_R = first + tl.arange(0, R)
        from_R = tl.sum(tl.where(rank_P[:, None] == rank_R[None, :], place_P[:, None], 0), 0).to(tl.int64)
        sum_C += _sum_rows(x_ptr, from_R, rank_R < asked, column_C, width, x_row, x_column)
    return sum_C


@jit(do_not_specialize=["count", "rows", "parts"])
def _sum_lists(  # type: ignore[no-untyped-def]
    x_ptr, asked_ptr, table_ptr, is_full_ptr, index_ptr, order_ptr, starts_ptr, ends_ptr, out_ptr, partial_ptr,
    begins_ptr, count, rows, width, parts, x_row, x_column,
    BY_HAND: tl.constexpr, OVERLAP: tl.constexpr, P: tl.constexpr, LONG: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
    """The first programs take a part of the sorted order each, if there is one, of which they add up what belongs to
    long lists: at most the lists of its first and its last place. The others take a row each, if its list is short."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    blocks = tl.cdiv(width, C)
    number = (tl.program_id(0) // blocks).to(tl.int64)
    column_C = (tl.program_id(0) % blocks).to(tl.int64) * C + tl.arange(0, C)
    if number < parts:
        if tl.load(is_full_ptr) == 0:
            return
        start = number * LONG
        end = tl.minimum(start + LONG, count)
        left = tl.load(index_ptr + tl.load(order_ptr + start))
        right = tl.load(index_ptr + tl.load(order_ptr + end - 1))
        is_left = (left >= 0) & (left < rows)
        is_right = (right >= 0) & (right < rows)
        left_start = tl.load(starts_ptr + left, mask=is_left, other=0)
        left_end = tl.load(ends_ptr + left, mask=is_left, other=0)
        right_start = tl.load(starts_ptr + right, mask=is_right, other=0)
        right_end = tl.load(ends_ptr + right, mask=is_right, other=0)
        right_is_long = right_end - right_start > LONG
        if left_end - left_start > LONG:
            sum_C = _sum_places(
                x_ptr, order_ptr, start, tl.minimum(end, left_end), column_C, width, x_row, x_column, R, C
            )
            tl.store(partial_ptr + 2 * number * width + column_C, sum_C, mask=column_C < width)
        if right_is_long & (right != left):
            sum_C = _sum_places(x_ptr, order_ptr, right_start, end, column_C, width, x_row, x_column, R, C)
            tl.store(partial_ptr + (2 * number + 1) * width + column_C, sum_C, mask=column_C < width)
        if tl.program_id(0) % blocks == 0:
            begin = tl.where(right_is_long & (right_start >= start), right, -1)
            tl.store(begins_ptr + number, begin.to(begins_ptr.dtype.element_ty))
    else:
        row = number - parts
        asked = tl.load(asked_ptr + row)
        place_P = tl.load(table_ptr + row * P + tl.arange(0, P))  # before it is known how many were written
        if asked <= LONG:
            if asked <= P:
                sum_C = _sum_slots(x_ptr, place_P, asked.to(tl.int32), column_C, width, x_row, x_column, P, R, C)
            else:
                start = tl.load(starts_ptr + row)
                sum_C = _sum_places(x_ptr, order_ptr, start, start + asked, column_C, width, x_row, x_column, R, C)
            sum_C = rounded(sum_C, out_ptr.dtype.element_ty, BY_HAND)
            tl.store(out_ptr + row * width + column_C, sum_C, mask=column_C < width)


@jit()
def _sum_parts(  # type: ignore[no-untyped-def]
    is_full_ptr, partial_ptr, begins_ptr, starts_ptr, ends_ptr, out_ptr, width,
    BY_HAND: tl.constexpr, OVERLAP: tl.constexpr, LONG: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The long list that begins in a part, if one does: its sum here, and those of the parts that it reaches into."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    if tl.load(is_full_ptr) == 0:
        return
    blocks = tl.cdiv(width, C)
    program = tl.program_id(0).to(tl.int64)
    number = program // blocks
    row = tl.load(begins_ptr + number).to(tl.int64)
    if row >= 0:
        start = tl.load(starts_ptr + row)
        end = tl.load(ends_ptr + row)
        column_C = program % blocks * C + tl.arange(0, C)
        sum_RC = tl.zeros((R, C), tl.float32)
        for first in range(number, tl.cdiv(end, LONG), R):
            part_R = first + tl.arange(0, R)
            # Where it begins within a part it is the list of that part's last place, else that of the first.
            at_R = 2 * part_R + (part_R * LONG < start)
            inside_RC = (part_R * LONG < end)[:, None] & (column_C < width)[None, :]
            sum_RC += tl.load(partial_ptr + at_R[:, None] * width + column_C[None, :], mask=inside_RC, other=0.0)
        sum_C = rounded(tl.sum(sum_RC, 0), out_ptr.dtype.element_ty, BY_HAND)
        tl.store(out_ptr + row * width + column_C, sum_C, mask=column_C < width)
