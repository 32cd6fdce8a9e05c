"""How often each small number occurs, and how often before a place: what a stable sort by counting stands on.

One launch counts keys a step of STEP keys and a chunk of steps. In the next one a program adds up the chunks before its
own step's and the steps before its own in that chunk. So no program waits for another, equal keys keep their order, and
counts are whole numbers, which atomics add up to the same in any order. A key out of [0, limit) counts as `limit`.

The counts of a pass are one matrix (CHUNKS + steps, buckets), zero at first: chunks in the first rows, then steps.
What these kernels lack is instructions, not bandwidth: counting in registers is what they avoid.

Shape suffixes: S keys of a program, B buckets, K chunks, F steps added at a time.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.jit import jit, tl
from kernels.launch import Launch, cdiv
from kernels.operators.launch import after

CHUNKS = 32
STEP = 128  # keys that one program places; every pair of them is compared
WARPS = 4
MOST_NARROW = 2**31 - 2**16  # that int32 counts, with room for a block behind
_AT_ONCE = 512  # keys that one program counts
_STEPS_AT_ONCE = 16


def rows_of_counts(count: int) -> int:
    """Rows of the matrix of counts for so many keys."""
    return CHUNKS + cdiv(count, STEP)


def steps_of_chunk(count: int) -> int:
    return max(1, cdiv(cdiv(count, STEP), CHUNKS))


def whole_numbers(most: int) -> torch.dtype:
    """The narrowest type for positions and counts up to `most`, and for those of a block that begins there."""
    return torch.int32 if most <= MOST_NARROW else torch.int64


def count_keys(
    keys: Tensor,
    limit: int,
    counts: Tensor,
    fill: Tensor | None,
    value: int,
    *,
    needed: Tensor | None = None,
    overlap: bool = False,
) -> None:
    """Add to counts (rows_of_counts, B) the low digit of keys (n,), contiguous. One launch.

    B is a power of two. On the way it writes `value` to all of `fill`, a contiguous vector, if given. Where `needed`
    (1,) is 0 nothing is done.
    """
    count = keys.shape[0]
    programs, steps = cdiv(max(count, 1), _AT_ONCE), steps_of_chunk(count)
    launch = _counting(counts.shape[1], overlap)
    fills = 0 if fill is None else fill.shape[0]
    launch(keys.device, programs, keys, counts, fill, needed, count, limit, steps, fills, value)


@cache
def _counting(buckets: int, overlap: bool) -> Launch:
    return Launch(_count, K=CHUNKS, B=buckets, STEP=STEP, S=_AT_ONCE, num_warps=WARPS, **after(overlap))


def sizes_of_count(buckets: int) -> dict[str, int]:
    """The constants of a kernel that calls `counted` and `earlier`."""
    return {"K": CHUNKS, "B": buckets, "F": _STEPS_AT_ONCE, "S": STEP, "num_warps": WARPS}


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
def add(counts_ptr, at_S, digit_S, inside_S, steps, K: tl.constexpr, B: tl.constexpr, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Count keys that lie at places `at`."""
    one_S = tl.full(digit_S.shape, 1, counts_ptr.dtype.element_ty)
    step_S = at_S // STEP
    tl.atomic_add(counts_ptr + (K + step_S) * B + digit_S, one_S, mask=inside_S, sem="relaxed")
    tl.atomic_add(counts_ptr + step_S // steps * B + digit_S, one_S, mask=inside_S, sem="relaxed")


@jit()
def earlier(same_SS, S: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each of S keys: how many before it are the same, of `same` (S, S).

    Over the first dimension, along which elements lie in one thread: over the other one threads would have to meet.
    """
    lane_S = tl.arange(0, S)
    return tl.sum((same_SS & (lane_S[:, None] < lane_S[None, :])).to(tl.int32), 0)


@jit()
def counted(counts_ptr, step, steps, K: tl.constexpr, B: tl.constexpr, F: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each bucket (B,): all of its keys, and those before a step. `steps` make a chunk."""
    chunk = step // steps
    chunk_K = tl.arange(0, K)
    bucket_B = tl.arange(0, B)
    lane_F = tl.arange(0, F)
    counts_KB = tl.load(counts_ptr + chunk_K[:, None] * B + bucket_B[None, :])
    before_B = tl.sum(tl.where((chunk_K < chunk)[:, None], counts_KB, 0), 0)
    for first in range(chunk * steps, step, F):
        at_FB = counts_ptr + tl.cast(K + first, tl.int64) * B + lane_F[:, None] * B + bucket_B[None, :]
        counts_FB = tl.load(at_FB, mask=(lane_F < step - first)[:, None], other=0)
        before_B += tl.sum(counts_FB, 0)
    return tl.sum(counts_KB, 0), before_B


@jit(do_not_specialize=["count", "limit", "steps", "fills", "value"])
def _count(  # type: ignore[no-untyped-def]
    keys_ptr, counts_ptr, fill_ptr, needed_ptr, count, limit, steps, fills, value,
    OVERLAP: tl.constexpr, K: tl.constexpr, B: tl.constexpr, STEP: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    if needed_ptr is not None:  # noqa: SIM102  (Triton decides this one when it compiles)
        if tl.load(needed_ptr) == 0:
            return
    start = tl.program_id(0).to(tl.int64) * S
    at_S = start + tl.arange(0, S)
    inside_S = at_S < count
    key_S = clamped(keys_ptr, at_S, inside_S, limit, counts_ptr.dtype.element_ty)
    add(counts_ptr, at_S, digit(key_S, 0, B), inside_S, steps, K, B, STEP)
    if fill_ptr is not None:
        for first in range(start, fills, tl.num_programs(0).to(tl.int64) * S):
            to_S = first + tl.arange(0, S)
            tl.store(fill_ptr + to_S, tl.zeros((S,), fill_ptr.dtype.element_ty) + value, mask=to_S < fills)
