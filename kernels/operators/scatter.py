"""Rows sorted by expert, each expert's at a place of its own that a grouped GEMM wants to begin at.

    count[g] = rows with expert g,  ks[g] = count[g] rounded up to `alignment` (0 stays 0),  offs = running sum of ks
    out[rev[i]] = x[i], rows of one expert in the order of x; everything else in out is zero
    dx[i] = grad[rev[i]]

Saved for backward: rev. Places are found by counting (`counting`), and one kernel writes all of out, rows and zeros
alike. Origin: the permute-and-pad in front of
grouped GEMMs (torchtitan `generate_permute_indices`, Megatron's token permutation), here stable and with the tail zero.

Shape suffixes: M rows of x, H width, G groups, P rows of the result, S places of a program, B groups and the one after.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.arguments import require_floats, require_indices, require_integers, require_length, require_positive
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, cdiv, operator, power_of_two, saving
from kernels.operators.counting import (
    MOST_NARROW,
    STEP,
    clamped,
    count_keys,
    counted,
    earlier,
    rows_of_counts,
    sizes_of_count,
    steps_of_chunk,
    whole_numbers,
)
from kernels.operators.gather import sum_rows_by
from kernels.operators.rows import fetch_rows

MOST_GROUPS = 512  # whose counts a program holds in registers; more are sorted by torch


class Scattered(NamedTuple):
    """What `scatter_for_grouped_gemm` returns."""

    out: Tensor  # (P, H), dtype of x
    rev: Tensor  # (M,) int64: where each row of x went
    offs: Tensor  # (G,) int32: the inclusive running end of each group
    ks: list[int] | None  # rows of each group, padding included; None without host_counts
    ks_tensor: Tensor  # (G,) int32: the same on the device


def reference(
    x: Tensor, expert: Tensor, G: int, alignment: int = 128, row_multiple: int = 1, host_counts: bool = True
) -> Scattered:
    """The truth, differentiable in x: group by group, with host reads."""
    ks = [_up(int((expert == group).sum()), alignment) for group in range(G)]
    ks_tensor = torch.tensor(ks, dtype=torch.int32, device=x.device)
    offs = ks_tensor.cumsum(0, dtype=torch.int32)
    rev = torch.full_like(expert, -1, dtype=torch.int64)
    for group in range(G):
        members = (expert == group).nonzero()[:, 0]
        rev[members] = torch.arange(len(members), device=x.device) + sum(ks[:group])
    rows = _up(sum(ks) if host_counts else x.shape[0] + G * (alignment - 1), row_multiple)
    out = torch.zeros((rows, x.shape[1]), dtype=x.dtype, device=x.device).index_put((rev,), x)
    return Scattered(out, rev, offs, ks if host_counts else None, ks_tensor)


def scatter_for_grouped_gemm(
    x: Tensor,
    expert: Tensor,
    G: int,
    alignment: int = 128,
    row_multiple: int = 1,
    host_counts: bool = True,
    *,
    candidate: int | None = None,
) -> Scattered:
    """x (M, H) bf16, fp16 or fp32, any strides; expert (M,) int64 or int32 in [0, G) -> out, rev, offs, ks, ks_tensor.

    out has sum(ks) rows, rounded up to `row_multiple`, for which the host reads the counts. With `host_counts=False`
    it reads nothing, ks is None and out has M + G * (alignment - 1) rows, rounded up: as many as there could be.
    An expert out of range is an error on a CPU; on a GPU its row goes nowhere and has rev -1. That many rows are
    2^31 - 2^16 at most, as offs is int32.
    Differentiable in x. Nothing is kept between calls, so that threads may call it at once.
    """
    require_floats(x, "x", ndim=2)
    require_integers(expert, "expert", x, "x")
    require_length(expert, "expert", x.shape[0], "row of x")
    for value, name in ((G, "G"), (alignment, "alignment"), (row_multiple, "row_multiple")):
        require_positive(value, name)
    most = _up(x.shape[0] + G * (alignment - 1), row_multiple)
    if most > MOST_NARROW:
        raise ValueError(f"x: has {x.shape[0]} rows, which with padding may take {most}; may take {MOST_NARROW}")
    rev, offs, ks_tensor, source = places_of(expert, G, alignment, most)
    ks: list[int] | None = ks_tensor.tolist() if host_counts else None
    rows = most if ks is None else _up(sum(ks), row_multiple)
    return Scattered(_scatter(x, rev, source, rows, candidate), rev, offs, ks, ks_tensor)


def _up(count: int, multiple: int) -> int:
    return (count + multiple - 1) // multiple * multiple


@operator("scatter_places")
def places_of(expert: Tensor, groups: int, alignment: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """rev (M,) int64, offs (G,) int32, ks (G,) int32, source (rows,) int32: which row lies at each place, or -1.

    rows is at least M + G * (alignment - 1), as many as there could be.
    """
    require_indices(expert, "expert", groups)
    source = expert.new_empty(rows, dtype=whole_numbers(rows))
    return *place_rows(expert, groups, alignment, source), source


def place_rows(
    expert: Tensor, groups: int, alignment: int = 1, source: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """rev (M,) int64, offs (G,) int32, ks (G,) int32, by two launches and a fill; called inside of operators.

    `source` (rows,) is written if given, and a row whose expert is out of range then goes nowhere: its rev is -1.
    Without `source` such rows follow the last group, in order.
    """
    device, count = expert.device, expert.shape[0]
    if path_of(_place, device) == "eager" or groups >= MOST_GROUPS:
        return _places_by_sort(expert, groups, alignment, source)
    rev = expert.new_empty(count, dtype=torch.int64)
    offs, ks = (expert.new_empty(groups, dtype=torch.int32) for _ in range(2))
    buckets, steps = power_of_two(groups + 1, 16), steps_of_chunk(count)
    expert = expert.contiguous()
    counts = torch.zeros((rows_of_counts(count), buckets), dtype=whole_numbers(count), device=device)
    count_keys(expert, groups, counts, fill=source, value=-1)
    programs, sizes = cdiv(max(count, 1), STEP), (count, groups, alignment, steps)
    _placing(buckets)(device, programs, expert, counts, rev, offs, ks, source, *sizes)
    return rev, offs, ks


@cache
def _placing(buckets: int) -> Launch:
    return Launch(_place, **sizes_of_count(buckets))


@places_of.register_fake
def _places_outputs(expert: Tensor, groups: int, alignment: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    offs, ks = (expert.new_empty(groups, dtype=torch.int32) for _ in range(2))
    rev = expert.new_empty(expert.shape, dtype=torch.int64)
    return rev, offs, ks, expert.new_empty(rows, dtype=whole_numbers(rows))


def _places_by_sort(
    expert: Tensor, groups: int, alignment: int, source: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch's own operators; an expert out of range counts as one more group."""
    group_M = torch.where((expert >= 0) & (expert < groups), expert.long(), groups)
    sorted_M, order_M = torch.sort(group_M, stable=True)
    ends_G = torch.searchsorted(sorted_M, torch.arange(groups, device=expert.device), right=True)
    counts_G = torch.diff(ends_G, prepend=ends_G.new_zeros(1))
    ks_G = (counts_G + alignment - 1) // alignment * alignment
    offs_G = ks_G.cumsum(0)
    # A row moves up by the padding of all groups before its own.
    moves_G = torch.cat((offs_G - ks_G - (ends_G - counts_G), ends_G.new_zeros(1)))
    place_M = torch.arange(expert.shape[0], device=expert.device) + moves_G[sorted_M]
    if source is not None:
        rows, is_known_M = source.shape[0], sorted_M < groups
        # What goes nowhere goes to a place behind the last, which is not read.
        places = torch.full((rows + 1,), -1, dtype=source.dtype, device=expert.device)
        places[torch.where(is_known_M, place_M, rows)] = order_M.to(source.dtype)
        source.copy_(places[:rows])
        place_M = torch.where(is_known_M, place_M, -1)
    return torch.empty_like(place_M).scatter_(0, order_M, place_M), offs_G.int(), ks_G.int()


@operator("scatter_for_grouped_gemm")
def _scatter(x: Tensor, rev: Tensor, source: Tensor, rows: int, candidate: int | None) -> Tensor:
    """x (M, H), source (at least rows,) -> (rows, H) contiguous with out[i] = x[source[i]], zero where that is -1.

    rev (M,) is the way back.
    """
    out = _scatter_output(x, rev, source, rows, candidate)
    fetch_rows(x, source, out, 0.0, candidate)
    return out


@_scatter.register_fake
def _scatter_output(x: Tensor, rev: Tensor, source: Tensor, rows: int, candidate: int | None) -> Tensor:
    return x.new_empty((rows, x.shape[1]))


@operator("scatter_for_grouped_gemm_backward")
def _scatter_backward(grad: Tensor, rev: Tensor, candidate: int | None) -> Tensor:
    """grad (rows, H) any strides -> (M, H) contiguous; a row that went nowhere has a gradient of zero."""
    dx = _gradient(grad, rev, candidate)
    fetch_rows(grad, rev.contiguous(), dx, 0.0, candidate)
    return dx


@_scatter_backward.register_fake
def _gradient(grad: Tensor, rev: Tensor, candidate: int | None) -> Tensor:
    return grad.new_empty((rev.shape[0], grad.shape[1]))


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    return _scatter_backward(grad, *ctx.saved_tensors, *ctx.rest), None, None, None, None


_scatter.register_autograd(_differentiate, setup_context=saving(1, rest=4))


def _save_places(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, rev, _ = inputs
    ctx.rows = grad.shape[0]
    ctx.save_for_backward(rev)


def _differentiate_twice(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    """A sum of one row each: a row that went nowhere has no place to go back to."""
    return sum_rows_by(grad, *ctx.saved_tensors, ctx.rows, None), None, None


_scatter_backward.register_autograd(_differentiate_twice, setup_context=_save_places)


@jit(do_not_specialize=["count", "groups", "alignment", "steps"])
def _place(  # type: ignore[no-untyped-def]
    expert_ptr, counts_ptr, rev_ptr, offs_ptr, ks_ptr, source_ptr, count, groups, alignment, steps,
    K: tl.constexpr, B: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Where S rows of x go; in the first program where groups end."""
    at_S = tl.program_id(0) * S + tl.arange(0, S)
    inside_S = at_S < count
    key_S = clamped(expert_ptr, at_S, inside_S, groups, tl.int32)
    all_B, before_B = counted(counts_ptr, tl.program_id(0), steps, K, B, F)
    group_B = tl.arange(0, B)
    ks_B = tl.where(group_B < groups, (all_B + alignment - 1) // alignment * alignment, 0)
    ends_B = tl.cumsum(ks_B, 0)
    if tl.program_id(0) == 0:
        tl.store(ks_ptr + group_B, ks_B.to(tl.int32), mask=group_B < groups)
        tl.store(offs_ptr + group_B, ends_B.to(tl.int32), mask=group_B < groups)
    first_S = tl.gather(ends_B - ks_B + before_B, key_S, 0)
    to_S = first_S + earlier(key_S[:, None] == key_S[None, :], S)
    if source_ptr is not None:
        tl.store(source_ptr + to_S, at_S.to(source_ptr.dtype.element_ty), mask=inside_S & (key_S < groups))
        to_S = tl.where(key_S < groups, to_S, -1)
    tl.store(rev_ptr + at_S, to_S, mask=inside_S)
