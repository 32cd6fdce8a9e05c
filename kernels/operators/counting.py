"""How often each small number occurs, and how often before a place: what a stable sort by counting stands on.

Keys are cut into at most CHUNKS chunks, whose counts one launch takes. In the next one a program adds up what the
chunks before its own hold, and what its own chunk holds before its keys. So no program waits for another, equal keys
keep their order, and the result is the same in every run. A key out of [0, limit) counts as `limit`.

Shape suffixes: S keys of a program, A keys counted at a time, B buckets, K chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.jit import jit, tl
from kernels.operators.launch import cdiv

CHUNKS = 32
STEP = 128  # keys that one program places; every pair of them is compared
AHEAD = 1024  # keys counted at a time
WARPS = 4


def chunk_length(count: int) -> int:
    """Keys of a chunk: whole steps, so that no program's keys lie in two chunks."""
    return cdiv(cdiv(count, CHUNKS), STEP) * STEP


def whole_numbers(most: int) -> torch.dtype:
    """The narrowest type for positions and counts up to `most`."""
    return torch.int32 if most < 2**31 - 1 else torch.int64


def count_chunks(
    keys: Tensor, limit: int, buckets: int, zero: Tensor | None = None, fill: Tensor | None = None
) -> Tensor:
    """counts (CHUNKS, buckets): of the low digit of the keys in each chunk. One launch.

    keys (n,) of whole numbers, contiguous; buckets a power of two. On the way it writes 0 to all of `zero` and n to all
    of `fill`, two contiguous vectors of the type of the counts.
    """
    count = keys.shape[0]
    counts = keys.new_empty((CHUNKS, buckets), dtype=whole_numbers(count))
    sizes = [0 if vector is None else vector.numel() for vector in (zero, fill)]
    _count[(CHUNKS,)](
        keys, counts, zero, fill, count, limit, chunk_length(count), *sizes, B=buckets, A=AHEAD, num_warps=WARPS
    )
    return counts


@jit()
def clamped(keys_ptr, at_S, inside_S, limit, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keys at these places, `limit` for what is out of range or not there."""
    key_S = tl.load(keys_ptr + at_S, mask=inside_S, other=-1)
    return tl.where((key_S >= 0) & (key_S < limit), key_S, limit).to(DTYPE)


@jit()
def digit(key_S, shift, B: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which bucket a key belongs to: so many of its bits from `shift` on as B has values."""
    return ((key_S >> shift) & (B - 1)).to(tl.int32)


@jit()
def earlier(same_SS, S: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each of S keys: how many before it are the same, of `same` (S, S).

    Over the first dimension, along which elements lie in one thread: over the other one threads would have to meet.
    """
    lane_S = tl.arange(0, S)
    return tl.sum((same_SS & (lane_S[:, None] < lane_S[None, :])).to(tl.int32), 0)


@jit()
def counted(  # type: ignore[no-untyped-def]
    keys_ptr, counts_ptr, start, count, limit, chunk, shift, K: tl.constexpr, B: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Of each bucket (B,): all of its keys, and those before key number `start`.

    Without counts of chunks each program counts all keys by itself: for few, that is quicker than another launch.
    """
    if counts_ptr is None:
        all_B = tl.zeros((B,), tl.int32)
        before_B = tl.zeros((B,), tl.int32)
        for first in range(0, count, A):
            at_A = first + tl.arange(0, A)
            digit_A = digit(clamped(keys_ptr, at_A, at_A < count, limit, tl.int32), shift, B)
            all_B += tl.histogram(digit_A, B, mask=at_A < count)
            before_B += tl.histogram(digit_A, B, mask=at_A < start)
        return all_B, before_B
    else:
        number = start // chunk
        chunk_K = tl.arange(0, K)
        counts_KB = tl.load(counts_ptr + chunk_K[:, None] * B + tl.arange(0, B)[None, :])
        before_B = tl.sum(tl.where((chunk_K < number)[:, None], counts_KB, 0), 0)
        for first in range(number * chunk, start, A):
            at_A = first + tl.arange(0, A)
            key_A = clamped(keys_ptr, at_A, at_A < start, limit, counts_ptr.dtype.element_ty)
            before_B += tl.histogram(digit(key_A, shift, B), B, mask=at_A < start)
        return tl.sum(counts_KB, 0), before_B


@jit(do_not_specialize=["count", "limit", "chunk", "zeros", "fills"])
def _count(  # type: ignore[no-untyped-def]
    keys_ptr, counts_ptr, zero_ptr, fill_ptr, count, limit, chunk, zeros, fills, B: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    end = tl.minimum((number + 1) * chunk, count)
    counts_B = tl.zeros((B,), counts_ptr.dtype.element_ty)
    for first in range(number * chunk, end, A):
        at_A = first + tl.arange(0, A)
        key_A = clamped(keys_ptr, at_A, at_A < end, limit, counts_ptr.dtype.element_ty)
        counts_B += tl.histogram(digit(key_A, 0, B), B, mask=at_A < end)
    tl.store(counts_ptr + number * B + tl.arange(0, B), counts_B)
    if zero_ptr is not None:
        _set(zero_ptr, zeros, 0, A)
    if fill_ptr is not None:
        _set(fill_ptr, fills, count, A)


@jit()
def _set(to_ptr, size, value, A: tl.constexpr):  # type: ignore[no-untyped-def]
    """This program's share of filling a vector."""
    for first in range(tl.program_id(0).to(tl.int64) * A, size, tl.num_programs(0) * A):
        at_A = first + tl.arange(0, A)
        tl.store(to_ptr + at_A, tl.zeros((A,), to_ptr.dtype.element_ty) + value, mask=at_A < size)
