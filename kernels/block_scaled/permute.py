"""Rows as they arrive from ranks, in the order of experts, each expert from a multiple of 16, 32 or 128 on; and back.

counts[r, e] rows came from rank r for expert e; they lie by rank, within a rank by expert. A grouped product wants
them by expert, and one whose contraction goes along rows wants every group to begin with a block of its scales. Rows
between groups are zero. With one rank nothing is permuted, and groups are padded alone.

One launch finds the places of all rows, with no read on the host, and one moves the rows; each way is the other's
backward pass, so that both are differentiable any number of times. After torchtitan's and torchao's permute-and-pad.

Shape suffixes: M rows as they came, P padded ones, K width, E experts, R ranks, B places a program, S segments.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.arguments import INTEGERS, require_device, require_floats, require_length, require_positive
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, cdiv, operator, power_of_two
from kernels.operators.rows import fetch_rows


class Padded(NamedTuple):
    """What `permute_and_pad` returns.

    Attributes:
        rows: (P, K) in x's dtype, P = M + E * (alignment - 1) up to a multiple of the alignment; zero between groups.
        offs: (E,) int32, where each group and what it is padded with end: what a grouped product takes.
        origin: (P,) int32, the row of x that lies there, or -1.
        place: (M,) int32, where the row of x lies, or -1 if it belongs to no expert.
    """

    rows: Tensor
    offs: Tensor
    origin: Tensor
    place: Tensor


def permute_and_pad(x: Tensor, counts: Tensor, alignment: int) -> Padded:
    """x (M, K) bf16, fp16 or fp32, any strides; counts (R, E) or (E,) int32 or int64, of which no number is negative
    and whose sum is at most M -> rows by expert, differentiable in x.

    Rows behind those that are counted belong to nobody: they are left out, and their gradient is zero. Counts that ask
    for more rows than there are, on a GPU, give zeros for what is missing and touch no foreign memory.
    """
    require_floats(x, "x", ndim=2)
    if not isinstance(counts, Tensor) or counts.ndim not in (1, 2) or counts.dtype not in INTEGERS:
        found = f"{counts.dtype}, shape {tuple(counts.shape)}" if isinstance(counts, Tensor) else type(counts).__name__
        raise ValueError(f"counts: is {found}; may be {', '.join(map(str, INTEGERS))}, of (R, E) or (E,)")
    counts = counts[None] if counts.ndim == 1 else counts
    require_device(counts, "counts", x, "x")
    require_positive(alignment, "alignment")
    offs, origin, place = _places(counts, x.shape[0], alignment)
    return Padded(_move(x, origin, place), offs, origin, place)


def unpermute(rows: Tensor, padded: Padded) -> Tensor:
    """rows (P, K), whatever a layer has made of `padded.rows` -> (M, K) in the order in which they came, zero for rows
    of nobody; differentiable."""
    require_floats(rows, "rows", ndim=2)
    require_length(rows, "rows", padded.origin.shape[0], "row of `padded`")
    require_device(rows, "rows", padded.place, "`padded`")
    return _move(rows, padded.place, padded.origin)  # type: ignore[no-any-return]


@operator("permute_rows")
def _move(x: Tensor, source: Tensor, back: Tensor) -> Tensor:
    """out[i] = x[source[i]], zero where that is -1; `back` is the inverse of `source`."""
    out = _moved(x, source, back)
    fetch_rows(x, source, out, 0.0, None)
    return out


@_move.register_fake
def _moved(x: Tensor, source: Tensor, back: Tensor) -> Tensor:
    return x.new_empty((source.shape[0], x.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    source, back = ctx.saved_tensors
    return _move(grad, back, source), None, None


_move.register_autograd(_differentiate, setup_context=_save)


@operator("permute_places")
def _places(counts: Tensor, rows: int, alignment: int) -> tuple[Tensor, Tensor, Tensor]:
    """(offs, origin, place) of `Padded`."""
    found = _tables(counts, rows, alignment)
    ranks, experts = counts.shape
    if 0 in counts.shape or path_of(_find_places, counts.device) == "eager":
        _find_eagerly(counts, alignment, *found)
        return found
    block, launch = _finding(power_of_two(experts), power_of_two(ranks))
    padded = found[1].shape[0]
    sizes = ranks, experts, rows, padded, alignment
    launch(counts.device, cdiv(max(padded, rows, 1), block), counts, *found, *sizes, *counts.stride())
    return found


@_places.register_fake
def _tables(counts: Tensor, rows: int, alignment: int) -> tuple[Tensor, Tensor, Tensor]:
    experts = counts.shape[1]
    padded = (rows + experts * (alignment - 1) + alignment - 1) // alignment * alignment
    sizes = experts, padded, rows
    return tuple(counts.new_empty((size,), dtype=torch.int32) for size in sizes)  # type: ignore[return-value]


def _find_eagerly(counts_RE: Tensor, alignment: int, offs: Tensor, origin: Tensor, place: Tensor) -> None:
    """The truth: rows sorted by expert, within an expert as they came, and behind each the gaps of those before it."""
    if bool((counts_RE < 0).any()):
        raise ValueError(f"counts: are {counts_RE.tolist()}; may be 0 or more")
    sizes_E, (ranks, experts) = counts_RE.sum(0), counts_RE.shape
    used, rows = int(sizes_E.sum()), place.shape[0]
    if used > rows:
        raise ValueError(f"counts: are {used} rows in all; may be {rows}, those of x")
    expert_M = torch.arange(experts, device=place.device).repeat(ranks).repeat_interleave(counts_RE.flatten())
    expert_M, row_M = expert_M.sort(stable=True)
    gaps_E = -sizes_E % alignment
    offs.copy_((sizes_E + gaps_E).cumsum(0))
    to_M = torch.arange(used, device=place.device) + (gaps_E.cumsum(0) - gaps_E)[expert_M]
    origin.fill_(-1)[to_M] = row_M.int()
    place.fill_(-1)[row_M] = to_M.int()


@cache
def _finding(experts: int, ranks: int) -> tuple[int, Launch]:
    """(places a program, `_find_places`) for tables of so many experts and ranks, powers of two."""
    block = max(1, min(128, 16384 // (experts * ranks)))
    return block, Launch(_find_places, E=experts, R=ranks, B=block, num_warps=4)


@jit(do_not_specialize=["rows", "padded", "ranks", "experts"])
def _find_places(  # type: ignore[no-untyped-def]
    counts_ptr, offs_ptr, origin_ptr, place_ptr, ranks, experts, rows, padded, alignment, counts_r, counts_e,
    E: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Each program finds from all counts where segments begin, on either side, and which one its places lie in."""
    expert_E = tl.arange(0, E)
    rank_R = tl.arange(0, R)
    there_ER = (expert_E < experts)[:, None] & (rank_R < ranks)[None, :]
    counts_at_ER = counts_ptr + rank_R.to(tl.int64)[None, :] * counts_r + expert_E.to(tl.int64)[:, None] * counts_e
    count_ER = tl.maximum(tl.load(counts_at_ER, mask=there_ER, other=0).to(tl.int32), 0)
    of_rank_R = tl.sum(count_ER, 0)
    from_ER = (tl.cumsum(of_rank_R, 0) - of_rank_R)[None, :] + tl.cumsum(count_ER, 0) - count_ER
    space_E = tl.cdiv(tl.sum(count_ER, 1), alignment) * alignment
    end_E = tl.cumsum(space_E, 0)
    to_ER = (end_E - space_E)[:, None] + tl.cumsum(count_ER, 1) - count_ER
    tl.store(offs_ptr + expert_E, end_E, mask=expert_E < tl.where(tl.program_id(0) == 0, experts, 0))

    count_S = tl.reshape(count_ER, (1, E * R))
    from_S = tl.reshape(from_ER, (1, E * R))
    to_S = tl.reshape(to_ER, (1, E * R))
    at_B = tl.program_id(0) * B + tl.arange(0, B)
    within_BS = at_B[:, None] - to_S
    found_BS = tl.where((within_BS >= 0) & (within_BS < count_S), from_S + within_BS + 1, 0)
    tl.store(origin_ptr + at_B, tl.sum(found_BS, 1) - 1, mask=at_B < padded)
    within_BS = at_B[:, None] - from_S
    found_BS = tl.where((within_BS >= 0) & (within_BS < count_S), to_S + within_BS + 1, 0)
    tl.store(place_ptr + at_B, tl.sum(found_BS, 1) - 1, mask=at_B < rows)
