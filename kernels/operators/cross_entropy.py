"""Cross entropy of logits and the gradient of the logits in one pass: the gradient is what is saved.

Row i with target t, kept unless t == ignore_index; n = max(1, kept rows) for the mean, 1 for the sum:

    e_j = exp(x_j - max),  others = sum of e_j over j != t,  total = others + e_t
    loss_i = log(total) + max - x_t = log1p(others) where x_t is the maximum
    gradient_j = e_j / total / n,  gradient_t = -(others / total) / n

1 - p of the target is others / total and not 1 - p: storing p / n rounded and taking 1 / n off afterwards cancels as p
nears 1 (2.8 times too large at p = 0.999, often of the wrong sign; Liger's `cross_entropy.py` as of 0.8.5). All is in
fp32, with one rounding at the store. The row sum is a sum over blocks of sums, so small terms are not lost beside 1.
The incoming gradient is applied in fp32, in place where the graph is freed with it, and not at all if it is 1.

What is saved is one tensor of the size of the logits. `inplace=True` saves that as well, by writing the gradient over
the logits. Origin of the idea: Liger's fused cross entropy, and Cut Cross-Entropy for the block-wise sum.

fp16: entries under 6e-8 become 0, which with the mean over many rows is most of them. Take reduction="sum" and divide
the scaled loss by the rows: then the loss scale comes to the stored gradient before 1 / n does.

Shape suffixes: N rows, V vocabulary, L lanes, D depth; what has none is (D, L, 8) in a kernel.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, cdiv, operator, pick
from kernels.operators.arguments import require_floats, require_indices, require_integers, require_length
from kernels.operators.configs import ScaleConfig, cross_entropy_candidates, scale_candidates
from kernels.operators.launch import matrices
from kernels.operators.totals import kept_rows, reduced, total_loss
from kernels.rounding import rounded

REDUCTIONS = ("mean", "sum")
LOG2_E = None if tl is None else tl.constexpr(1.4426950408889634)


def reference(logits: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """The truth, differentiable: torch's cross entropy of the logits in fp32."""
    loss = F.cross_entropy(logits.float(), target, ignore_index=ignore_index, reduction="sum")
    return loss / (target != ignore_index).sum().clamp_min(1) if reduction == "mean" else loss


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    inplace: bool = False,
    *,
    candidate: int | None = None,
) -> Tensor:
    """The loss of logits (N, V) bf16, fp16 or fp32, any strides, and target (N,) int64: an fp32 scalar.

    Ignored rows have no loss and no gradient; if all are, the loss is 0. A target that is neither in [0, V) nor
    `ignore_index` is an error on a CPU, and NaN in loss and row gradient on a GPU. Rows with NaN or +Inf give NaN.
    `inplace` overwrites the logits with the gradient where one is wanted, and raises their version, so that autograd
    refuses later use of the old values. Without a gradient to compute (no_grad) nothing is written. fp16: see above.
    `candidate` picks an entry of the configuration table.
    """
    require_floats(logits, "logits", ndim=2)
    require_integers(target, "target", logits, "logits")
    require_length(target, "target", logits.shape[0], "row of logits")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: is {reduction!r}; may be {' or '.join(map(repr, REDUCTIONS))}")
    kept = kept_rows(target, ignore_index) if reduction == "mean" else None
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return total_loss(_losses(logits, target, ignore_index, candidate), kept)
    if inplace:
        _require_own_memory(logits)
        gradient = logits.detach()  # the same memory and version counter
        losses = _gradient_(gradient, target, kept, ignore_index, candidate)
    else:
        losses, gradient = _gradient(logits.detach(), target, kept, ignore_index, candidate)
    return _reduce(logits, losses, kept, gradient)


def _require_own_memory(logits: Tensor) -> None:
    if any(stride == 0 and size > 1 for size, stride in zip(logits.shape, logits.stride(), strict=True)):
        raise ValueError("logits: elements share memory (a stride is 0), so inplace=True would write one over another")


# ---- losses and gradients of the rows ------------------------------------------------------------------------------


@operator("cross_entropy_losses")
def _losses(logits: Tensor, target: Tensor, ignore_index: int, candidate: int | None) -> Tensor:
    """losses (N,) fp32."""
    return _run(logits, target, None, ignore_index, None, candidate)


@_losses.register_fake
def _losses_output(logits: Tensor, target: Tensor, ignore_index: int, candidate: int | None) -> Tensor:
    return logits.new_empty(logits.shape[:1], dtype=torch.float32)


@operator("cross_entropy_gradient")
def _gradient(
    logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, candidate: int | None
) -> tuple[Tensor, Tensor]:
    """losses (N,) fp32; gradient (N, V) in the dtype of the logits, contiguous, divided by max(1, kept) if given."""
    gradient = logits.new_empty(logits.shape)
    return _run(logits, target, kept, ignore_index, gradient, candidate), gradient


@_gradient.register_fake
def _gradient_outputs(
    logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, candidate: int | None
) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape[:1], dtype=torch.float32), logits.new_empty(logits.shape)


@operator("cross_entropy_gradient_", mutates=("logits",))
def _gradient_(logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, candidate: int | None) -> Tensor:
    """losses (N,) fp32; the gradient takes the place of the logits."""
    return _run(logits, target, kept, ignore_index, logits, candidate)


@_gradient_.register_fake
def _gradient_output(
    logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, candidate: int | None
) -> Tensor:
    return logits.new_empty(logits.shape[:1], dtype=torch.float32)


def _run(
    logits: Tensor,
    target: Tensor,
    kept: Tensor | None,
    ignore_index: int,
    gradient: Tensor | None,
    candidate: int | None,
) -> Tensor:
    rows, vocabulary = logits.shape
    require_indices(target, "target", vocabulary, besides=ignore_index)
    if path_of(_rows, logits.device) == "eager":
        return _eager(logits, target, kept, ignore_index, gradient)
    losses = logits.new_empty(rows, dtype=torch.float32)
    if rows == 0:
        return losses
    steps = *logits.stride(), target.stride(0), *(logits if gradient is None else gradient).stride()
    launch = _rows_launch(
        arch_of(logits.device), kept is not None, gradient is not None, steps[1] == 1, steps[4] == 1, candidate
    )
    launch(logits.device, rows, logits, target, kept, losses, gradient, vocabulary, ignore_index, *steps)
    return losses


@cache
def _rows_launch(
    arch: str, mean: bool, gradient: bool, unit: bool, unit_gradient: bool, candidate: int | None
) -> Launch:
    config = pick(cross_entropy_candidates(arch), candidate)
    return Launch(
        _rows, MEAN=mean, GRADIENT=gradient, UNIT=unit, UNIT_GRADIENT=unit_gradient, BY_HAND=arch == "cpu",
        D=config.depth, L=config.lanes, num_warps=config.warps,
    )  # fmt: skip


def _eager(logits: Tensor, target: Tensor, kept: Tensor | None, ignore_index: int, gradient: Tensor | None) -> Tensor:
    """The formula above in torch's own operators; a target out of range is NaN."""
    rows, vocabulary = logits.shape
    if logits.numel() == 0:
        return logits.new_zeros(rows, dtype=torch.float32)
    x_NV = logits.float()
    ignored_N, known_N = target == ignore_index, (target >= 0) & (target < vocabulary)
    at_N1 = target.clamp(0, vocabulary - 1)[:, None]
    max_N1 = x_NV.amax(1, keepdim=True)
    shift_N1 = torch.where(max_N1 == -torch.inf, 0, max_N1)
    e_NV = (x_NV - shift_N1).exp_()
    e_N1 = e_NV.gather(1, at_N1)
    others_N1 = e_NV.scatter(1, at_N1, 0).sum(1, keepdim=True)
    total_N1 = others_N1 + e_N1
    x_N1 = x_NV.gather(1, at_N1)
    loss_N1 = torch.where(x_N1 == max_N1, torch.log1p(others_N1 / e_N1), max_N1 - x_N1 + total_N1.log())
    scale = torch.ones((), device=logits.device) if kept is None else kept.clamp_min(1).float().reciprocal()
    scale_N1 = torch.where(known_N, scale, torch.nan)[:, None]
    if gradient is not None:
        e_NV.mul_(scale_N1 / total_N1).scatter_(1, at_N1, -(others_N1 / total_N1) * scale_N1)
        gradient.copy_(e_NV.masked_fill_(ignored_N[:, None], 0))
    return torch.where(known_N, loss_N1[:, 0], torch.nan).masked_fill_(ignored_N, 0)


# ---- the scalar, and the way back ----------------------------------------------------------------------------------


@operator("cross_entropy_reduce")
def _reduce(logits: Tensor, losses: Tensor, kept: Tensor | None, gradient: Tensor) -> Tensor:
    """losses (N,) -> their sum or mean, of which `gradient` (N, V) is the gradient in the logits."""
    return reduced(losses, kept)


@_reduce.register_fake
def _reduce_output(logits: Tensor, losses: Tensor, kept: Tensor | None, gradient: Tensor) -> Tensor:
    return losses.new_empty(())


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[3])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (gradient,) = ctx.saved_tensors
    if _graph_is_kept():  # another backward may come: the saved gradient stays as it is
        return _scaled(gradient, grad, None), None, None, None
    _scale_(gradient, grad, None)
    return gradient, None, None, None


_reduce.register_autograd(_differentiate, setup_context=_save)


def _graph_is_kept() -> bool:
    """Whether this backward runs with retain_graph or create_graph; also where PyTorch does not tell."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())


@operator("cross_entropy_scaled")
def _scaled(gradient: Tensor, factor: Tensor, candidate: int | None) -> Tensor:
    """gradient * factor in fp32, rounded once, contiguous."""
    scaled = _scaled_output(gradient, factor, candidate)
    _run_scale(gradient, factor, scaled, candidate)
    return scaled


@_scaled.register_fake
def _scaled_output(gradient: Tensor, factor: Tensor, candidate: int | None) -> Tensor:
    return gradient.new_empty(gradient.shape)


@operator("cross_entropy_scale_", mutates=("gradient",))
def _scale_(gradient: Tensor, factor: Tensor, candidate: int | None) -> None:
    """gradient *= factor; the device finds out by itself whether there is anything to do."""
    _run_scale(gradient, factor, gradient, candidate)


@_scale_.register_fake
def _scale_nothing(gradient: Tensor, factor: Tensor, candidate: int | None) -> None:
    return None


def _run_scale(gradient: Tensor, factor: Tensor, out: Tensor, candidate: int | None) -> None:
    if gradient.numel() == 0:
        return
    if path_of(_scale, gradient.device) == "eager":
        out.copy_(gradient.float() * factor.float())
        return
    config, launch = _scale_launch(arch_of(gradient.device), out is gradient, candidate)
    source, result = matrices(gradient, out)
    rows, width = source.shape
    programs = min(rows * cdiv(width, config.columns), config.programs)
    launch(gradient.device, programs, source, factor, result, rows, width, *source.stride(), *result.stride())


@cache
def _scale_launch(arch: str, inplace: bool, candidate: int | None) -> tuple[ScaleConfig, Launch]:
    config = pick(scale_candidates(arch), candidate)
    sizes = {"C": config.columns, "num_warps": config.warps}
    return config, Launch(_scale, INPLACE=inplace, BY_HAND=arch == "cpu", **sizes)


# ---- kernels -------------------------------------------------------------------------------------------------------


@jit(do_not_specialize=["ignore_index"])
def _rows(  # type: ignore[no-untyped-def]
    logits_ptr, target_ptr, kept_ptr, losses_ptr, gradient_ptr, vocabulary, ignore_index,
    logits_row, logits_column, target_stride, gradient_row, gradient_column,
    MEAN: tl.constexpr, GRADIENT: tl.constexpr, UNIT: tl.constexpr, UNIT_GRADIENT: tl.constexpr,
    BY_HAND: tl.constexpr, D: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """One row a program, D * L * 8 columns at a time: 8 neighbours a lane, D times, so that D loads are under way.

    The gradient may lie where the logits do: what is read is read by then.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row * target_stride)
    logits_ptr += row * logits_row
    if GRADIENT:
        gradient_ptr += row * gradient_row
        DTYPE: tl.constexpr = gradient_ptr.dtype.element_ty
    lane = (tl.arange(0, D)[:, None, None] * L + tl.arange(0, L)[None, :, None]) * 8 + tl.arange(0, 8)[None, None, :]
    scale = 1.0
    if MEAN:
        scale = tl.div_rn(1.0, tl.maximum(tl.load(kept_ptr), 1).to(tl.float32))
    if target == ignore_index:  # whatever the logits are, they are not read
        tl.store(losses_ptr + row, 0.0)
        if GRADIENT:
            for first in range(0, vocabulary, D * L * 8):
                column = first + lane
                to = column if UNIT_GRADIENT else column.to(tl.int64) * gradient_column
                tl.store(gradient_ptr + to, tl.zeros((D, L, 8), DTYPE), mask=column < vocabulary)
    else:
        known = (target >= 0) & (target < vocabulary)
        nan_or_1 = tl.where(known, 1.0, float("nan"))
        chosen = tl.where(known, target, 0).to(tl.int32)  # 64 bits would cost as much as the exponentials
        x_target = tl.load(logits_ptr + chosen.to(tl.int64) * logits_column, mask=known, other=0.0).to(tl.float32)

        # Each lane keeps a maximum and a sum of its own, so that no block waits for all warps to meet.
        top_L = tl.full((L,), float("-inf"), tl.float32)
        others_L = tl.zeros((L,), tl.float32)
        ahead = _columns(logits_ptr, lane, vocabulary, logits_column, UNIT, "evict_last")
        for first in range(0, vocabulary, D * L * 8):
            column = first + lane
            x = ahead.to(tl.float32)
            ahead = _columns(logits_ptr, column + D * L * 8, vocabulary, logits_column, UNIT, "evict_last")
            new_L = tl.maximum(top_L, tl.max(tl.max(x, 2), 0))
            base_L = tl.where(new_L == float("-inf"), 0.0, new_L) * LOG2_E  # -inf - -inf would be NaN
            e = tl.exp2(tl.fma(x, LOG2_E, -base_L[None, :, None]))
            if (chosen >= first) & (chosen < first + D * L * 8):
                e = tl.where(column == chosen, 0.0, e)
            others_L = others_L * tl.exp2(top_L * LOG2_E - base_L) + tl.sum(tl.sum(e, 2), 0)
            top_L = new_L

        top = tl.max(top_L, 0)
        shift = tl.where(top == float("-inf"), 0.0, top)
        base = shift * LOG2_E
        others = tl.sum(others_L * tl.exp2(top_L * LOG2_E - base), 0)
        e_target = tl.exp2(tl.fma(x_target, LOG2_E, -base))
        total = others + e_target
        # All sums are off by one and the same factor, as base is rounded: it is that of the maximum itself.
        against_top = tl.div_rn(total, tl.exp2(tl.fma(shift, LOG2_E, -base)))
        loss = tl.where(x_target == top, _log1p(tl.div_rn(others, e_target)), (top - x_target) + tl.log(against_top))
        tl.store(losses_ptr + row, loss * nan_or_1)
        if GRADIENT:
            scale *= nan_or_1
            factor = tl.div_rn(scale, total)
            at_target = -tl.div_rn(others, total) * scale
            if DTYPE.primitive_bitwidth == 16:  # the factor goes into the exponent: that is exact enough for 16 bits
                base -= tl.log2(factor)
            last = (tl.cdiv(vocabulary, D * L * 8) - 1) * (D * L * 8)
            ahead = _columns(logits_ptr, last + lane, vocabulary, logits_column, UNIT, "evict_first")
            for before in range(0, vocabulary, D * L * 8):  # backwards: what was read last is still near
                first = last - before
                column = first + lane
                x = ahead.to(tl.float32)
                ahead = _columns(logits_ptr, column - D * L * 8, vocabulary, logits_column, UNIT, "evict_first")
                gradient = tl.exp2(tl.fma(x, LOG2_E, -base))
                if DTYPE.primitive_bitwidth != 16:
                    gradient *= factor
                if (chosen >= first) & (chosen < first + D * L * 8):
                    gradient = tl.where(column == chosen, at_target, gradient)
                to = column if UNIT_GRADIENT else column.to(tl.int64) * gradient_column
                result = rounded(gradient, DTYPE, BY_HAND)
                tl.store(gradient_ptr + to, result, mask=column < vocabulary, eviction_policy="evict_first")


@jit()
def _columns(logits_ptr, column, vocabulary, stride, UNIT: tl.constexpr, POLICY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Logits of a row; -inf, and no access, where there is no such column."""
    at = column if UNIT else column.to(tl.int64) * stride
    inside = (column >= 0) & (column < vocabulary)
    return tl.load(logits_ptr + at, mask=inside, other=float("-inf"), eviction_policy=POLICY)


@jit()
def _log1p(y):  # type: ignore[no-untyped-def]
    """log(1 + y) of y >= 0, exact to rounding also for small y (Goldberg 1991, theorem 4)."""
    u = 1.0 + y
    return tl.where(u == 1.0, y, tl.log(u) * tl.div_rn(y, u - 1.0))


@jit(do_not_specialize=["rows"])
def _scale(  # type: ignore[no-untyped-def]
    source_ptr, factor_ptr, result_ptr, rows, width, source_row, source_column, result_row, result_column,
    INPLACE: tl.constexpr, BY_HAND: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Every so-manieth block of C columns a program; none if in place and the factor is 1."""
    factor = tl.load(factor_ptr).to(tl.float32)
    across = tl.cdiv(width, C).to(tl.int64)
    blocks = across * rows
    if INPLACE:
        blocks = tl.where(factor == 1.0, 0, blocks)
    for block in range(tl.program_id(0).to(tl.int64), blocks, tl.num_programs(0)):
        row = block // across
        column_C = block % across * C + tl.arange(0, C)
        inside_C = column_C < width
        value_C = tl.load(source_ptr + row * source_row + column_C * source_column, mask=inside_C, other=0.0)
        value_C = rounded(value_C.to(tl.float32) * factor, result_ptr.dtype.element_ty, BY_HAND)
        tl.store(result_ptr + row * result_row + column_C * result_column, value_C, mask=inside_C)
