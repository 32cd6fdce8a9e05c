"""How often each small number occurs, and how often before a place: what a stable sort by counting stands on.

Keys are cut into at most CHUNKS chunks, whose counts are one matrix (chunks, buckets), and a chunk into PIECES, each
of which one program of the next launch places: it adds up the chunks before its own, and counts what lies before its
own piece itself. So no program waits for another, equal keys keep their order, and nothing has to begin at zero. A
key out of [0, limit) counts as `limit`.

Shape suffixes: S keys at a time, T keys counted at a time, B buckets, F chunks added at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.jit import jit, tl
from kernels.operators.launch import cdiv

CHUNKS = 32
PIECES = 8
STEP = 128  # keys that one program places at a time; every pair of them is compared
WARPS = 4
_AT_ONCE = 1024  # keys that one program counts at a time
_COUNTS_AT_ONCE = 8192  # that one program adds, of all buckets
_AHEAD = 3  # of these, so many are on their way


def keys_of_piece(count: int) -> int:
    """How many keys one program places."""
    return cdiv(max(count, 1), CHUNKS * PIECES * STEP) * STEP


def pieces(count: int) -> int:
    """Programs that place so many keys."""
    return cdiv(max(count, 1), keys_of_piece(count))


def chunks(count: int) -> int:
    """Rows of the matrix of counts of so many keys."""
    return cdiv(pieces(count), PIECES)


def whole_numbers(most: int) -> torch.dtype:
    """The narrowest type for positions and counts up to `most`."""
    return torch.int32 if most < 2**31 - 1 else torch.int64


def count_keys(
    keys: Tensor,
    limit: int,
    counts: Tensor,
    fill: Tensor | None = None,
    valued: int = 0,
    value: int = 0,
    early: bool = False,
) -> None:
    """Write to counts (chunks, B), contiguous, how often each low digit of keys (n,), contiguous, occurs in a chunk.

    One launch. B is a power of two. On the way it writes `value` to the first `valued` places of `fill`, a contiguous
    vector, and 0 to the others. `early`: the next launch may begin while this one runs.
    """
    count = keys.shape[0]
    _count[(counts.shape[0],)](
        keys, counts, fill, count, limit, PIECES * keys_of_piece(count), 0 if fill is None else fill.numel(),
        valued, value, B=counts.shape[1], T=_AT_ONCE, AHEAD=_AHEAD, EARLY=early, num_warps=WARPS,
    )  # fmt: skip


def sizes_of_count(buckets: int) -> dict[str, int]:
    """The constants of a kernel that calls `counted`, `counted_here` and `earlier`."""
    sizes = {"Q": PIECES, "B": buckets, "F": min(CHUNKS, _COUNTS_AT_ONCE // buckets), "T": _AT_ONCE, "AHEAD": _AHEAD}
    return {**sizes, "S": STEP, "num_warps": WARPS}


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
def earlier(digit_S, S: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each of S keys: how many before it have the same digit.

    Numbered by digit, then place, these are those from the first number of its digit on up to its own: one comparison.
    Summed over the first dimension, along which elements lie in one thread.
    """
    lane_S = tl.arange(0, S)
    begin_S = digit_S * S
    after_SS = ((begin_S + lane_S)[:, None] - begin_S[None, :]).to(tl.uint32)
    return tl.sum((after_SS < lane_S[None, :].to(tl.uint32)).to(tl.int32), 0)


@jit()
def counted_here(  # type: ignore[no-untyped-def]
    keys_ptr, start, end, limit, shift, DTYPE: tl.constexpr, B: tl.constexpr, T: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Of each bucket (B,): its keys among those at places [start, end)."""
    counts_B = tl.zeros((B,), DTYPE)
    for first in tl.range(start, end, T, num_stages=AHEAD):
        at_T = first + tl.arange(0, T)
        inside_T = at_T < end
        key_T = clamped(keys_ptr, at_T, inside_T, limit, DTYPE)
        counts_B += tl.histogram(digit(key_T, shift, B), B, mask=inside_T).to(DTYPE)
    return counts_B


@jit()
def counted(counts_ptr, chunk, chunks, B: tl.constexpr, F: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each bucket (B,): all of its keys, and those in chunks before this one."""
    all_B = tl.zeros((B,), counts_ptr.dtype.element_ty)
    before_B = all_B
    for first in range(0, chunks, F):
        chunk_F = first + tl.arange(0, F)
        counts_FB = tl.load(
            counts_ptr + chunk_F[:, None] * B + tl.arange(0, B)[None, :], mask=(chunk_F < chunks)[:, None], other=0
        )
        all_B += tl.sum(counts_FB, 0)
        before_B += tl.sum(tl.where((chunk_F < chunk)[:, None], counts_FB, 0), 0)
    return all_B, before_B


@jit(do_not_specialize=["count", "limit", "chunk", "fills", "valued", "value"])
def _count(  # type: ignore[no-untyped-def]
    keys_ptr, counts_ptr, fill_ptr, count, limit, chunk, fills, valued, value,
    B: tl.constexpr, T: tl.constexpr, AHEAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    number = tl.program_id(0).to(tl.int64)
    DTYPE: tl.constexpr = counts_ptr.dtype.element_ty
    start = number * chunk
    counts_B = counted_here(keys_ptr, start, tl.minimum(start + chunk, count), limit, 0, DTYPE, B, T, AHEAD)
    tl.store(counts_ptr + number * B + tl.arange(0, B), counts_B)
    if fill_ptr is not None:
        for first in range(number * T, fills, tl.num_programs(0).to(tl.int64) * T):
            to_T = first + tl.arange(0, T)
            value_T = tl.where(to_T < valued, value, 0).to(fill_ptr.dtype.element_ty)
            tl.store(fill_ptr + to_T, value_T, mask=to_T < fills)
