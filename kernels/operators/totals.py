"""How many targets count, what they weigh, and the loss of all of them: by one program each, where torch takes six
launches.

One number a row is nothing beside the row's logits, so that one program is enough for it.

Shape suffixes: N rows, L lanes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, operator

_LANES = 1024


@operator("cross_entropy_kept")
def kept_rows(target: Tensor, ignore_index: int) -> Tensor:
    """target (N,) int64 or int32 -> how many are not `ignore_index`, an int64 scalar."""
    if path_of(_kept, target.device) == "eager":
        return (target != ignore_index).sum()
    kept = _kept_output(target, ignore_index)
    _summing(_kept)(target.device, 1, target, kept, target.shape[0], target.stride(0), ignore_index)
    return kept


@kept_rows.register_fake
def _kept_output(target: Tensor, ignore_index: int) -> Tensor:
    return target.new_empty((), dtype=torch.int64)


@operator("cross_entropy_ratio")
def weight_ratio(target: Tensor, weight: Tensor, kept: Tensor, ignore_index: int) -> Tensor:
    """target (N,) int64 or int32, weight (V,), kept -> kept rows by the sum of their targets' weights, an fp32 scalar.

    It turns a mean over rows into the weighted mean. Without a kept row it is NaN, and no row is multiplied by it.
    """
    classes = weight.shape[0]
    if path_of(_ratio, target.device) == "eager":
        known_N = (target != ignore_index) & (target >= 0) & (target < classes)
        weight_N = torch.where(known_N, weight.float()[target.clamp(0, classes - 1)], 0) if classes else weight.float()
        return kept / weight_N.sum()
    ratio = _ratio_output(target, weight, kept, ignore_index)
    steps = target.stride(0), weight.stride(0)
    launch = _summing(_ratio)
    launch(target.device, 1, target, weight, kept, ratio, target.shape[0], classes, *steps, ignore_index)
    return ratio


@weight_ratio.register_fake
def _ratio_output(target: Tensor, weight: Tensor, kept: Tensor, ignore_index: int) -> Tensor:
    return target.new_empty((), dtype=torch.float32)


@operator("cross_entropy_total")
def total_loss(losses: Tensor, kept: Tensor | None) -> Tensor:
    """losses (N,) fp32, contiguous -> their sum, divided by max(1, kept) if given: an fp32 scalar."""
    return reduced(losses, kept)


@total_loss.register_fake
def _total_output(losses: Tensor, kept: Tensor | None) -> Tensor:
    return losses.new_empty(())


@cache
def _summing(kernel: Any) -> Launch:
    return Launch(kernel, L=_LANES, num_warps=8)


def reduced(losses: Tensor, kept: Tensor | None) -> Tensor:
    """`total_loss`, for what is an operator itself."""
    if path_of(_total, losses.device) == "eager":
        return losses.sum() if kept is None else losses.sum() / kept.clamp_min(1)
    total = _total_output(losses, kept)
    _summing(_total)(losses.device, 1, losses, kept, total, losses.shape[0])
    return total


@jit(do_not_specialize=["rows", "ignore_index"])
def _kept(target_ptr, kept_ptr, rows, stride, ignore_index, L: tl.constexpr):  # type: ignore[no-untyped-def]
    kept_L = tl.zeros((L,), tl.int64)
    for first in range(0, rows, L):
        row_L = (first + tl.arange(0, L)).to(tl.int64)
        target_L = tl.load(target_ptr + row_L * stride, mask=row_L < rows, other=0)
        kept_L += (target_L != ignore_index) & (row_L < rows)
    tl.store(kept_ptr, tl.sum(kept_L, 0))


@jit(do_not_specialize=["rows", "classes", "ignore_index"])
def _ratio(  # type: ignore[no-untyped-def]
    target_ptr, weight_ptr, kept_ptr, ratio_ptr, rows, classes, target_stride, weight_stride, ignore_index,
    L: tl.constexpr,
):  # fmt: skip
    sum_L = tl.zeros((L,), tl.float32)
    for first in range(0, rows, L):
        row_L = (first + tl.arange(0, L)).to(tl.int64)
        target_L = tl.load(target_ptr + row_L * target_stride, mask=row_L < rows, other=-1)
        known_L = (row_L < rows) & (target_L != ignore_index) & (target_L >= 0) & (target_L < classes)
        sum_L += tl.load(weight_ptr + target_L * weight_stride, mask=known_L, other=0.0).to(tl.float32)
    tl.store(ratio_ptr, tl.div_rn(tl.load(kept_ptr).to(tl.float32), tl.sum(sum_L, 0)))


@jit(do_not_specialize=["rows"])
def _total(losses_ptr, kept_ptr, total_ptr, rows, L: tl.constexpr):  # type: ignore[no-untyped-def]
    sum_L = tl.zeros((L,), tl.float32)
    for first in range(0, rows, L):
        row_L = first + tl.arange(0, L)
        sum_L += tl.load(losses_ptr + row_L, mask=row_L < rows, other=0.0)
    total = tl.sum(sum_L, 0)
    if kept_ptr is not None:
        total = tl.div_rn(total, tl.maximum(tl.load(kept_ptr), 1).to(tl.float32))
    tl.store(total_ptr, total)
