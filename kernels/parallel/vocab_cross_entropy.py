"""Cross entropy of logits whose vocabulary is split over ranks: no rank ever has a whole row.

    top = max over ranks of max x_j,  others = sum over ranks of sum of exp(x_j - top) over j != t,  x_t from its owner
    loss_i = log1p(others) where x_t is the maximum, else top - x_t + log(others + exp(x_t - top))
    gradient_j = exp(x_j - top) / total / n,  gradient_t = -(others / total) / n

Three numbers a row travel, in two collectives: maxima, then sums. Rank r has the columns from `start` on. What is
saved are the logits and two numbers a row; the gradient is made in the backward pass, in one read of the logits. As in
Megatron-LM's `vocab_parallel_cross_entropy` and torchtitan's loss parallel; formulas are those of
`kernels/operators/cross_entropy.py`, where it is told why 1 - p of a target is others / total.

Shape suffixes: N rows, V columns of this rank, D by L columns at a time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from kernels.arguments import (
    as_rows,
    refuse_second_derivative,
    require_floats,
    require_integers,
    require_length,
    require_ndim,
)
from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, operator, refuse_tangents, refuse_transforms
from kernels.rounding import rounded

REDUCTIONS = ("mean", "sum", "none")


def reference(logits: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """The truth on one process, which has whole rows, differentiable: torch's cross entropy in float32, or in float64
    as the logits are; 0 if no row is kept."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    losses = F.cross_entropy(wide, target.long(), ignore_index=ignore_index, reduction="none")
    count = (target != ignore_index).sum().clamp_min(1) if reduction == "mean" else 1
    return losses if reduction == "none" else losses.sum() / count


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    start: int | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """The loss of logits (N, V) or (..., V), this rank's columns, bf16, fp16 or fp32, any strides, and target (N,) or
    (...) int64 or int32, numbers of the whole vocabulary, the same on all ranks: fp32, a scalar, or as target for the
    reduction "none".

    All ranks of the group return the same loss and call together, backward too, where nothing travels: each has the
    gradient of its own columns. Ignored rows have no loss and no gradient; if all are, the loss is 0. A target that no
    rank has gives NaN, as do rows with NaN or +Inf.

    Args:
        group: the ranks that the vocabulary lies on; None: this process has all of it.
        start: of the whole vocabulary, the number of this rank's first column; by default all ranks have V.
    """
    refuse_tangents("vocab_parallel_cross_entropy", logits)
    refuse_transforms("vocab_parallel_cross_entropy")
    require_floats(logits, "logits")
    given, (logits, target) = target, as_rows(logits, "logits", target)
    require_ndim(logits, "logits", 2)
    require_integers(target, "target", logits, "logits")
    require_length(target, "target", logits.shape[0], "row of logits")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: is {reduction!r}; may be {', '.join(map(repr, REDUCTIONS))}")
    if start is None:
        start = 0 if group is None else group.rank() * logits.shape[1]
    loss: Tensor = _Loss.apply(logits, target, group, start, ignore_index, reduction)
    return loss.view(given.shape) if reduction == "none" else loss


def path(device: torch.device | str) -> str:
    """What a call on this device runs now (`kernels.jit`)."""
    return path_of(_count, device)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        group: dist.ProcessGroup | None,
        start: int,
        ignore_index: int,
        reduction: str,
    ) -> Tensor:
        parts = count_row_parts(logits, target, start, ignore_index)
        top = parts[0]
        if group is not None:
            top = top.clone()
            dist.all_reduce(top, dist.ReduceOp.MAX, group)
            # Of a row of masked logits -Inf - -Inf would be NaN.
            parts[1] *= torch.where(top == -torch.inf, 1.0, (parts[0] - top).exp())
            dist.all_reduce(parts[1:], dist.ReduceOp.SUM, group)
        _, others, x_target, owners = parts
        below = top - x_target
        total = others + (-below).exp()
        losses = torch.where(below == 0, others.log1p(), below + total.log())
        kept = target != ignore_index
        losses = torch.where(kept, torch.where(owners == 1, losses, torch.nan), 0.0)
        count = kept.sum().clamp_min(1) if reduction == "mean" else 1
        factor = torch.where(kept & (owners != 1), torch.nan, kept / count)
        ctx.save_for_backward(logits, target, torch.stack((top, others, total)), factor)
        ctx.start = start
        return losses if reduction == "none" else losses.sum() / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("vocab_parallel_cross_entropy", "that has no formula", "one process's cross_entropy")
        logits, target, counted, factor = ctx.saved_tensors
        factor = torch.where(factor == 0, 0.0, factor * grad)
        return count_gradient(logits, target, counted, factor, ctx.start), None, None, None, None, None


# ---- what one rank counts --------------------------------------------------------------------------------------------


@operator("vocab_row_parts")
def count_row_parts(logits: Tensor, target: Tensor, start: int, ignore_index: int) -> Tensor:
    """(4, N) fp32: of each row the maximum, the sum of exp(x - maximum) but for the target's, the target's logit and
    1, or 0 and 0 where another rank has it. Rows that are ignored are not read and have zeros."""
    parts = _parts(logits, target, start, ignore_index)
    rows, columns = logits.shape
    if columns == 0 or path(logits.device) == "eager":
        x, own_NV = logits.float(), _is_target(logits, target, start)
        parts[0] = x.amax(1) if columns else -torch.inf
        base_N1 = torch.where(parts[0] == -torch.inf, 0.0, parts[0])[:, None]
        parts[1] = (x - base_N1).exp().masked_fill(own_NV, 0.0).sum(1)
        parts[2] = x.masked_fill(~own_NV, 0.0).sum(1)
        parts[3] = own_NV.sum(1)
        parts.masked_fill_(target == ignore_index, 0.0)
    elif rows:
        launch, steps = _counting(_count, arch_of(logits.device)), (*logits.stride(), *target.stride())
        launch(logits.device, rows, logits, target, parts, columns, start, ignore_index, *steps)
    return parts


@count_row_parts.register_fake
def _parts(logits: Tensor, target: Tensor, start: int, ignore_index: int) -> Tensor:
    return logits.new_empty((4, logits.shape[0]), dtype=torch.float32)


def _is_target(logits: Tensor, target: Tensor, start: int) -> Tensor:
    return torch.arange(start, start + logits.shape[1], device=target.device) == target[:, None]


@operator("vocab_gradient")
def count_gradient(logits: Tensor, target: Tensor, counted: Tensor, factor: Tensor, start: int) -> Tensor:
    """Of logits (N, V): (p - 1 at the target) * factor (N,), p = exp(x - top) / total; counted (3, N) are top, others
    and total. A row whose factor is 0 is not read, and has zeros."""
    gradient = _gradient(logits, target, counted, factor, start)
    rows, columns = logits.shape
    if path(logits.device) == "eager":
        top_N1, others_N1, total_N1 = counted[..., None]
        p = (logits.float() - top_N1).exp() / total_N1
        p = torch.where(_is_target(logits, target, start), -(others_N1 / total_N1), p)
        gradient.copy_((p * factor[:, None]).masked_fill(factor[:, None] == 0, 0.0))
    elif gradient.numel():
        launch = _counting(_differentiate, arch_of(logits.device))
        inputs = logits, target, counted.contiguous(), factor.contiguous(), gradient
        launch(logits.device, rows, *inputs, columns, start, *logits.stride(), *target.stride())
    return gradient


@count_gradient.register_fake
def _gradient(logits: Tensor, target: Tensor, counted: Tensor, factor: Tensor, start: int) -> Tensor:
    return logits.new_empty(logits.shape)


@cache
def _counting(kernel: Any, arch: str) -> Launch:
    """Not swept yet: 16 bytes of 16-bit logits a thread, twice."""
    lanes = 64 if arch == "cpu" else 2048
    return Launch(kernel, D=2, L=lanes, BY_HAND=arch == "cpu", num_warps=8)


@jit(do_not_specialize=["start", "ignore_index"])
def _count(  # type: ignore[no-untyped-def]
    logits_ptr, target_ptr, parts_ptr, columns, start, ignore_index, row_stride, column_stride, target_stride,
    D: tl.constexpr, L: tl.constexpr, BY_HAND: tl.constexpr,
):  # fmt: skip
    """One row a program. Each lane keeps a maximum and a sum of its own, so that no block waits for all warps."""
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0).to(tl.int64)
    target = tl.load(target_ptr + row * target_stride)
    parts_ptr += row
    if target == ignore_index:  # whatever the logits are, they are not read
        for part in tl.static_range(4):
            tl.store(parts_ptr + part * rows, 0.0)
    else:
        own = target.to(tl.int64) - start
        inside = (own >= 0) & (own < columns)
        logits_ptr += row * row_stride
        x_target = tl.load(logits_ptr + tl.where(inside, own, 0) * column_stride, mask=inside, other=0.0).to(tl.float32)
        lane_DL = tl.arange(0, D)[:, None] * L + tl.arange(0, L)[None, :]
        top_L = tl.full((L,), float("-inf"), tl.float32)
        others_L = tl.zeros((L,), tl.float32)
        for first in range(0, columns, D * L):
            column_DL = first + lane_DL
            at_DL = logits_ptr + column_DL.to(tl.int64) * column_stride
            x_DL = tl.load(at_DL, mask=column_DL < columns, other=float("-inf")).to(tl.float32)
            # A maximum that passes NaN over would hide it from the sum too.
            new_L = tl.maximum(top_L, tl.max(x_DL, 0))
            base_L = tl.where(new_L == float("-inf"), 0.0, new_L)
            e_DL = tl.where(column_DL == own, 0.0, tl.exp(x_DL - base_L[None, :]))
            others_L = others_L * tl.exp(top_L - base_L) + tl.sum(e_DL, 0)
            top_L = new_L
        top = tl.max(top_L, 0)
        base = tl.where(top == float("-inf"), 0.0, top)
        tl.store(parts_ptr, top)
        tl.store(parts_ptr + rows, tl.sum(others_L * tl.exp(top_L - base), 0))
        tl.store(parts_ptr + 2 * rows, x_target)
        tl.store(parts_ptr + 3 * rows, inside.to(tl.float32))


@jit(do_not_specialize=["start"])
def _differentiate(  # type: ignore[no-untyped-def]
    logits_ptr, target_ptr, counted_ptr, factor_ptr, gradient_ptr, columns, start,
    row_stride, column_stride, target_stride, D: tl.constexpr, L: tl.constexpr, BY_HAND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    rows = tl.num_programs(0).to(tl.int64)
    factor = tl.load(factor_ptr + row)
    top = tl.load(counted_ptr + row)
    others = tl.load(counted_ptr + rows + row)
    total = tl.load(counted_ptr + 2 * rows + row)
    own = tl.load(target_ptr + row * target_stride).to(tl.int64) - start
    of_target = -tl.div_rn(others, total)
    inverse = tl.div_rn(1.0, total)
    read = tl.where(factor != 0.0, columns, 0)
    lane_DL = tl.arange(0, D)[:, None] * L + tl.arange(0, L)[None, :]
    for first in range(0, columns, D * L):
        column_DL = first + lane_DL
        at_DL = logits_ptr + row * row_stride + column_DL.to(tl.int64) * column_stride
        x_DL = tl.load(at_DL, mask=column_DL < read, other=float("-inf")).to(tl.float32)
        p_DL = tl.where(column_DL == own, of_target, tl.exp(x_DL - top) * inverse)
        gradient_DL = tl.where(factor != 0.0, p_DL * factor, 0.0)
        to_DL = gradient_ptr + row * columns + column_DL
        tl.store(to_DL, rounded(gradient_DL, gradient_ptr.dtype.element_ty, BY_HAND), mask=column_DL < columns)
