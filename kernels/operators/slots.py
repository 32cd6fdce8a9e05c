"""Sums over the places that ask for each row, where only few of them have to be put in order.

One launch gives each place a slot in the table of its row by counting atomically: which one is chance. The program that
adds a row puts the places in its table in order itself, each compared with each. A row that more places ask for than
its table has slots is long and cut into parts: before rows are added one program for each part finds its places in the
index, where they are in order, and afterwards a last launch adds the sums of the parts. Where no row is long these two
have nothing to do. No float is added atomically, so the result is the same in every run.

Shape suffixes: S places of a program, P slots of a row, L long rows at a time, E and F places looked at at a time, R
places added at a time, C columns of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.hardware import arch_of
from kernels.jit import jit, tl
from kernels.operators.configs import ListConfig, power_of_two
from kernels.operators.counting import whole_numbers
from kernels.operators.launch import after, cdiv, strides
from kernels.rounding import rounded

_STEP = 64  # places that one program gives slots; every pair of them is compared
_QUICK = 32  # slots that are read, and put in order, without a look at how many are taken
_PART_PROGRAMS = 512  # for parts of long rows, a block of columns; each takes every so-manieth
_ADDING_PROGRAMS = 128  # for the sums of long rows, a block of columns
_LONG_AT_ONCE = 128
_FACTS = 5  # of a part, see _find_parts
_LOOKED_AT = 4096  # places that one program looks at at a time for those that ask for a row
_MOST_PARTS = 256  # of a row that all places ask for: looking for a part takes a look at all places before it


def sum_by_slots(x: Tensor, index: Tensor, out: Tensor, config: ListConfig) -> None:
    """out[r] = sum of x[i] over i with index[i] == r, in fp32; 0 where there is none. Five launches, a fill included.

    x (n, width) any strides, n above 0; index (n,) int64, contiguous, what is out of range belongs to no row; out
    (rows, width) contiguous.
    """
    count, (rows, width) = index.shape[0], out.shape
    slots = config.slots
    assert slots is not None
    by_hand = arch_of(x.device) == "cpu"
    early = after(config.overlap)
    part = max(config.long, power_of_two(cdiv(count, _MOST_PARTS)))
    most_long = count // (slots + 1)
    most_parts = count // part + most_long
    blocks = cdiv(width, config.columns)
    dtype = whole_numbers(max(count, rows))
    programs = min(most_parts, _PART_PROGRAMS) if most_long else 0
    counts = torch.zeros(rows + 2, dtype=dtype, device=x.device)  # places of each row; long rows; their parts
    table = index.new_empty((rows, slots), dtype=dtype)
    long = index.new_empty(most_long, dtype=dtype)
    parts = index.new_empty((most_parts, _FACTS))
    found = index.new_empty(count if most_long else 0, dtype=dtype)
    partial = x.new_empty((most_parts if most_long else 0, width), dtype=torch.float32)
    _take_slots[(cdiv(count, _STEP),)](index, counts, table, long, count, rows, P=slots, S=_STEP, num_warps=2, **early)
    if most_long:
        _find_parts[(programs,)](
            index, counts, long, parts, found, count, rows, part,
            L=_LONG_AT_ONCE, E=_LOOKED_AT, FACTS=_FACTS, num_warps=8, **early,
        )  # fmt: skip
    _sum_slots[((programs + rows) * blocks,)](
        x, counts, table, parts, found, out, partial, rows, width, programs, *strides(x),
        BY_HAND=by_hand, P=slots, Q=min(slots, _QUICK), FACTS=_FACTS, R=config.rows, C=config.columns,
        num_warps=config.warps, **early,
    )  # fmt: skip
    if most_long:
        _add_parts[(_ADDING_PROGRAMS * cdiv(width, config.part_columns),)](
            partial, counts, parts, out, rows, width,
            BY_HAND=by_hand, N=_ADDING_PROGRAMS, FACTS=_FACTS, R=config.part_rows, C=config.part_columns, num_warps=4,
            **early,
        )  # fmt: skip


@jit()
def sum_places(  # type: ignore[no-untyped-def]
    x_ptr, order_ptr, start, end, column_C, width, x_row, x_column, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The sum (C,) of the rows of x that order[start:end] names, R at a time."""
    sum_C = tl.zeros((C,), tl.float32)
    for first in range(start, end, R):
        at_R = first + tl.arange(0, R)
        from_R = tl.load(order_ptr + at_R, mask=at_R < end, other=0).to(tl.int64)
        inside_RC = (at_R < end)[:, None] & (column_C < width)[None, :]
        x_RC = tl.load(x_ptr + from_R[:, None] * x_row + column_C[None, :] * x_column, mask=inside_RC, other=0.0)
        sum_C += tl.sum(x_RC.to(tl.float32), 0)
    return sum_C


@jit(do_not_specialize=["count", "rows"])
def _take_slots(  # type: ignore[no-untyped-def]
    index_ptr, counts_ptr, table_ptr, long_ptr, count, rows,
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
        counts_ptr + key_S, (sums_S % (2 * S)).to(DTYPE), mask=is_row_S & (first_S == lane_S), sem="relaxed"
    )
    slot_S = tl.gather(taken_S, first_S, 0) + sums_S // (2 * S)
    tl.store(table_ptr + key_S.to(tl.int64) * P + slot_S, at_S.to(DTYPE), mask=is_row_S & (slot_S < P))
    # One place of each long row finds its table just filled.
    is_long_S = is_row_S & (slot_S == P)
    one_S = tl.full((S,), 1, DTYPE)
    number_S = tl.atomic_add(counts_ptr + rows + tl.zeros((S,), tl.int64), one_S, mask=is_long_S, sem="relaxed")
    tl.store(long_ptr + number_S, key_S, mask=is_long_S)


@jit()
def _ranks(place_P, taken_P, table_ptr, asked, P: tl.constexpr, Q: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many of the first `asked` slots of a table hold earlier places than each of P, Q looked at at a time; P where
    none is held."""
    rank_P = tl.zeros((P,), tl.int32)
    for first in range(0, asked, Q):
        at_Q = first + tl.arange(0, Q)
        other_Q = tl.load(table_ptr + at_Q, mask=at_Q < asked, other=0)
        before_QP = (other_Q[:, None] < place_P[None, :]) & (at_Q < asked)[:, None]
        rank_P += tl.sum(before_QP.to(tl.int32), 0)
    return tl.where(taken_P, rank_P, P)


@jit()
def _sum_ranked(  # type: ignore[no-untyped-def]
    x_ptr, place_P, rank_P, asked, column_C, width, x_row, x_column, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The sum (C,) of the rows of x that P slots name, in the order of their ranks from 0 to `asked`, R at a time."""
    sum_C = tl.zeros((C,), tl.float32)
    for first in range(0, asked, R):
        rank_R = first + tl.arange(0, R)
        from_R = tl.sum(tl.where(rank_P[:, None] == rank_R[None, :], place_P[:, None], 0), 0).to(tl.int64)
        inside_RC = (rank_R < asked)[:, None] & (column_C < width)[None, :]
        x_RC = tl.load(x_ptr + from_R[:, None] * x_row + column_C[None, :] * x_column, mask=inside_RC, other=0.0)
        sum_C += tl.sum(x_RC.to(tl.float32), 0)
    return sum_C


@jit()
def _asking(index_ptr, first, count, row, E: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of E places from `first` on: 1 where one asks for a row."""
    lane_E = tl.arange(0, E)
    left = tl.minimum(count - first, E).to(tl.int32)
    return (tl.load(index_ptr + first + lane_E, mask=lane_E < left, other=-1) == row).to(tl.int32)


@jit()
def _find(index_ptr, count, row, begin, end, found_ptr, E: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write to `found` which places ask for a row, in ascending order: all from number `begin` to before `end`."""
    first = begin * 0
    seen = begin * 0
    while (seen < end) & (first < count):
        asks_E = _asking(index_ptr, first, count, row, E)
        more = tl.sum(asks_E, 0)
        if seen + more > begin:
            # As numbers from `begin` on, which 32 bits hold: it is no more than E places before that one.
            number_E = tl.cumsum(asks_E, 0) - 1 + (seen - begin).to(tl.int32)
            is_wanted_E = (asks_E > 0) & (number_E >= 0) & (number_E < (end - begin).to(tl.int32))
            tl.store(found_ptr + number_E, (first + tl.arange(0, E)).to(found_ptr.dtype.element_ty), mask=is_wanted_E)
        seen += more
        first += E


@jit(do_not_specialize=["count", "rows", "part"])
def _find_parts(  # type: ignore[no-untyped-def]
    index_ptr, counts_ptr, long_ptr, parts_ptr, found_ptr, count, rows, part,
    OVERLAP: tl.constexpr, L: tl.constexpr, E: tl.constexpr, FACTS: tl.constexpr,
):  # fmt: skip
    """Every so-manieth part of the long rows: its places, and the facts of it.

    These are its row, where its places begin and end in `found`, which part of its row it is, and of how many.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    number = tl.program_id(0).to(tl.int64)
    longs = tl.load(counts_ptr + rows).to(tl.int64)
    parts = longs * 0  # of the long rows so far, and the places that ask for them
    places = longs * 0
    for first in range(0, longs, L):
        at_L = first + tl.arange(0, L)
        row_L = tl.load(long_ptr + at_L, mask=at_L < longs, other=0).to(tl.int64)
        asked_L = tl.load(counts_ptr + row_L, mask=at_L < longs, other=0).to(tl.int64)
        parts_L = (asked_L + part - 1) // part
        before_L = parts + tl.cumsum(parts_L, 0) - parts_L
        places_L = places + tl.cumsum(asked_L, 0) - asked_L
        parts += tl.sum(parts_L, 0)
        places += tl.sum(asked_L, 0)
        while number < parts:
            mine_L = (before_L <= number) & (number < before_L + parts_L)
            row = tl.sum(tl.where(mine_L, row_L, 0), 0)
            asked = tl.sum(tl.where(mine_L, asked_L, 0), 0)
            start = tl.sum(tl.where(mine_L, places_L, 0), 0)
            which = number - tl.sum(tl.where(mine_L, before_L, 0), 0)
            begin = which * part
            end = tl.minimum(begin + part, asked)
            facts_ptr = parts_ptr + number * FACTS
            tl.store(facts_ptr, row)
            tl.store(facts_ptr + 1, start + begin)
            tl.store(facts_ptr + 2, start + end)
            tl.store(facts_ptr + 3, which)
            tl.store(facts_ptr + 4, (asked + part - 1) // part)
            _find(index_ptr, count, row, begin, end, found_ptr + start + begin, E)
            number += tl.num_programs(0)
    if tl.program_id(0) == 0:
        tl.store(counts_ptr + rows + 1, parts.to(counts_ptr.dtype.element_ty))


@jit(do_not_specialize=["rows", "programs"])
def _sum_slots(  # type: ignore[no-untyped-def]
    x_ptr, counts_ptr, table_ptr, parts_ptr, found_ptr, out_ptr, partial_ptr, rows, width, programs, x_row, x_column,
    BY_HAND: tl.constexpr, OVERLAP: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, FACTS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The first programs add parts of long rows, every so-manieth. The others add a row each, if it is not long."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    blocks = tl.cdiv(width, C)
    number = (tl.program_id(0) // blocks).to(tl.int64)
    column_C = (tl.program_id(0) % blocks).to(tl.int64) * C + tl.arange(0, C)
    DTYPE: tl.constexpr = out_ptr.dtype.element_ty
    if number < programs:
        parts = tl.load(counts_ptr + rows + 1)
        while number < parts:
            facts_ptr = parts_ptr + number * FACTS
            start = tl.load(facts_ptr + 1)
            end = tl.load(facts_ptr + 2)
            sum_C = sum_places(x_ptr, found_ptr, start, end, column_C, width, x_row, x_column, R, C)
            if tl.load(facts_ptr + 4) > 1:
                tl.store(partial_ptr + number * width + column_C, sum_C, mask=column_C < width)
            else:
                to_C = out_ptr + tl.load(facts_ptr) * width + column_C
                tl.store(to_C, rounded(sum_C, DTYPE, BY_HAND), mask=column_C < width)
            number += programs
    else:
        row = number - programs
        asked = tl.load(counts_ptr + row).to(tl.int32)
        row_table_ptr = table_ptr + row * P
        quick_Q = tl.load(row_table_ptr + tl.arange(0, Q))  # before it is known how many were written
        if asked <= P:
            if asked <= Q:
                is_taken_Q = tl.arange(0, Q) < asked
                place_Q = tl.where(is_taken_Q, quick_Q, 0)
                before_QQ = (place_Q[:, None] < place_Q[None, :]) & is_taken_Q[:, None]
                rank_Q = tl.where(is_taken_Q, tl.sum(before_QQ.to(tl.int32), 0), Q)
                sum_C = _sum_ranked(x_ptr, place_Q, rank_Q, asked, column_C, width, x_row, x_column, R, C)
            else:
                is_taken_P = tl.arange(0, P) < asked
                place_P = tl.load(row_table_ptr + tl.arange(0, P), mask=is_taken_P, other=0)
                rank_P = _ranks(place_P, is_taken_P, row_table_ptr, asked, P, Q)
                sum_C = _sum_ranked(x_ptr, place_P, rank_P, asked, column_C, width, x_row, x_column, R, C)
            tl.store(out_ptr + row * width + column_C, rounded(sum_C, DTYPE, BY_HAND), mask=column_C < width)


@jit(do_not_specialize=["rows"])
def _add_parts(  # type: ignore[no-untyped-def]
    partial_ptr, counts_ptr, parts_ptr, out_ptr, rows, width,
    BY_HAND: tl.constexpr, OVERLAP: tl.constexpr, N: tl.constexpr, FACTS: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The rows of every N-th part, if it is the first of several of its row."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    column_C = (tl.program_id(0) // N).to(tl.int64) * C + tl.arange(0, C)
    for number in range((tl.program_id(0) % N).to(tl.int64), tl.load(counts_ptr + rows + 1), N):
        facts_ptr = parts_ptr + number * FACTS
        end = number + tl.load(facts_ptr + 4)
        if (tl.load(facts_ptr + 3) == 0) & (end - number > 1):
            sum_RC = tl.zeros((R, C), tl.float32)
            for first in range(number, end, R):
                part_R = first + tl.arange(0, R)
                inside_RC = (part_R < end)[:, None] & (column_C < width)[None, :]
                from_RC = partial_ptr + part_R[:, None] * width + column_C[None, :]
                sum_RC += tl.load(from_RC, mask=inside_RC, other=0.0)
            sum_C = rounded(tl.sum(sum_RC, 0), out_ptr.dtype.element_ty, BY_HAND)
            tl.store(out_ptr + tl.load(facts_ptr) * width + column_C, sum_C, mask=column_C < width)
