"""Cross entropy of logits and the gradient of the logits in one pass: the gradient is what is saved.

Row i with target t, kept unless t == ignore_index; n = max(1, kept rows) for the mean, 1 without one:

    e_j = exp(x_j - max),  others = sum of e_j over j != t,  total = others + e_t
    loss_i = log(total) + max - x_t = log1p(others) where x_t is the maximum
    gradient_j = e_j / total / n,  gradient_t = -(others / total) / n

With class weights w, label smoothing s, z-loss z and a cap c (torch's definitions, and Liger's of the last two):

    x_j = c tanh(logit_j / c),  lse = log(total) + max,  r = n / sum of w_t over kept rows for the mean, else 1
    loss_i = r (1 - s) w_t (lse - x_t) + r s / V sum of w_j (lse - x_j) + z lse^2,  divided by n as above
    gradient_j = (a p_j - r s / V w_j) / n,  p_j = e_j / total,  a = r (1 - s) w_t + r s / V sum of w_j + 2 z lse
    gradient_t = (r s / V (sum of w_j - w_t) + 2 z lse - a others / total) / n
    each times 1 - (x_j / c)^2

1 - p of the target is others / total and not 1 - p: storing p / n rounded and taking 1 / n off afterwards cancels as p
nears 1 (2.8 times too large at p = 0.999, often of the wrong sign). All is in fp32, with one rounding at the store.
The row sum is a sum over blocks of sums, so small terms are not lost beside 1.
The incoming gradient is applied in fp32, in place where the graph is freed with it, and not at all if it is 1.

What is saved is one tensor of the size of the logits. `inplace=True` saves that as well, by writing the gradient over
the logits. Origin of the idea: Liger's fused cross entropy, and Cut Cross-Entropy for the block-wise sum.

fp16: entries under 6e-8 become 0, which with the mean over many rows is most of them. Take reduction="sum" and divide
the scaled loss by the rows: then the loss scale comes to the stored gradient before 1 / n does.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.arguments import (
    as_rows,
    refuse_second_derivative,
    require_device,
    require_floats,
    require_integers,
    require_length,
    require_ndim,
)
from kernels.launch import operator, refuse_tangents, saving
from kernels.operators.cross_entropy_rows import Options, gradient_, gradient_of, losses_of
from kernels.operators.scaling import scale_, scaled
from kernels.operators.totals import kept_rows, reduced, total_loss, weight_ratio

REDUCTIONS = ("mean", "sum", "none")
WITHOUT_ONE = "that of the forward pass is kept, without one of its own"


def reference(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    lse_square_scale: float = 0.0,
    return_z_loss: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The truth, differentiable: torch's cross entropy of the logits in fp32, and what torch has no option for."""
    shape = target.shape
    x, target = logits.flatten(0, -2).float(), target.flatten().long()
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)
    weight = None if weight is None else weight.to(x.dtype)
    how: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    kept = target != ignore_index
    count = kept.sum().clamp_min(1) if reduction == "mean" else 1
    if reduction == "none":
        loss = F.cross_entropy(x, target, weight, reduction="none", **how)
    else:
        loss = F.cross_entropy(x, target, weight, reduction="sum", **how)
        of_kept = count if weight is None or reduction == "sum" else weight[target.where(kept, 0)].where(kept, 0).sum()
        loss = loss / torch.where(kept.any(), of_kept, 1)
    loss = loss.view(shape) if reduction == "none" else loss
    if lse_square_scale == 0 and not return_z_loss:
        return loss
    z_loss = (lse_square_scale * x.logsumexp(1).square()).where(kept, 0)
    z_loss = z_loss.view(shape) if reduction == "none" else z_loss.sum() / count
    return (loss + z_loss, z_loss.detach()) if return_z_loss else loss + z_loss


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    inplace: bool = False,
    *,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    lse_square_scale: float = 0.0,
    return_z_loss: bool = False,
    candidate: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The loss of logits (N, V) or (..., V) bf16, fp16 or fp32, any strides, and target (N,) or (...) int64 or int32:
    fp32, a scalar, or as target for the reduction "none".

    Ignored rows have no loss and no gradient; if all are, the loss is 0. A target that is neither in [0, V) nor
    `ignore_index` is an error on a CPU, and NaN in loss and row gradient on a GPU. Rows with NaN or +Inf give NaN;
    so may the kernel where a row's largest is beyond +-2^30, of whose multiples of log2(e) fp32 has one in 128.
    `inplace` overwrites the logits with the gradient where one is wanted, and raises their version, so that autograd
    refuses later use of the old values. Without a gradient to compute (no_grad) nothing is written. Compiled in
    place, logits have to be made in the same graph: torch's compiler cannot overwrite an input that has a gradient
    (BackendCompilerFailed, "Node getitem_3 was invalid"). fp16: see above.

    Args:
        weight: of the classes (V,), bf16, fp16 or fp32, without a gradient. As in torch a mean is by the targets'
            weights, and by their sum alone: if that of the kept rows is 0, the loss is NaN.
        label_smoothing: 0 to 1, as in torch: so much of each loss is that of all classes alike. A masked logit, -Inf,
            then makes the loss infinite.
        softcap: above 0; logits are softcap * tanh(logit / softcap).
        lse_square_scale: times the square of log(sum of exp(logits)), the z-loss (PaLM, section 5), is added to each
            row's loss. A mean of it is over kept rows, whatever they weigh.
        return_z_loss: return (loss, z_loss); the second, a part of the first, is for logs and has no gradient.
        candidate: an entry of the configuration table, for tests and sweeps.
    """
    refuse_tangents("cross_entropy", logits, weight)
    require_floats(logits, "logits")
    given = logits, target
    logits, target = as_rows(logits, "logits", target)
    require_ndim(logits, "logits", 2)
    kept, options = prepared(
        logits, "logits", logits.shape[1], target, ignore_index, reduction,
        weight, label_smoothing, softcap, lse_square_scale, return_z_loss,
    )  # fmt: skip
    shape = given[1].shape
    if not (torch.is_grad_enabled() and logits.requires_grad):
        losses = losses_of(logits, target, kept, ignore_index, candidate, *options)
        return results(summed(losses, kept, reduction, options), losses, kept, reduction, options, shape)
    if inplace:
        if not owns_memory(logits):
            raise ValueError(
                "logits: elements share memory, so inplace=True would write one over another; leave it out"
            )
        if logits is not given[0] and not logits._is_view():
            raise ValueError(
                "logits: dimensions before the last do not lie in memory as one, so inplace=True would write a copy; "
                "leave it out"
            )
        gradient = logits.detach()  # the same memory and version counter
        losses = gradient_(gradient, target, kept, ignore_index, candidate, *options)
    else:
        losses, gradient = gradient_of(logits.detach(), target, kept, ignore_index, candidate, *options)
    loss = _reduce(logits, own(losses, options), kept, gradient, reduction == "none")
    return results(loss, losses, kept, reduction, options, shape)


def prepared(
    like: Tensor,
    like_name: str,
    classes: int,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    weight: Tensor | None,
    label_smoothing: float,
    softcap: float | None,
    lse_square_scale: float,
    return_z_loss: bool,
) -> tuple[Tensor | None, Options]:
    """Arguments that are right: kept rows, for the mean, and options as the operators take them."""
    require_integers(target, "target", like, like_name)
    require_length(target, "target", like.shape[0], f"row of {like_name}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: is {reduction!r}; may be {', '.join(map(repr, REDUCTIONS))}")
    if weight is not None:
        require_floats(weight, "weight", ndim=1)
        require_length(weight, "weight", classes, "class")
        require_device(weight, "weight", like, like_name)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing: is {label_smoothing}; may be 0 to 1")
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap: is {softcap}; may be above 0 and finite, or None")
    kept = kept_rows(target, ignore_index) if reduction == "mean" else None
    weight = None if weight is None else weight.detach()
    ratio = None if weight is None or kept is None else weight_ratio(target, weight, kept, ignore_index)
    cap = None if softcap is None else float(softcap)
    return kept, Options(weight, ratio, float(label_smoothing), cap, float(lse_square_scale), return_z_loss)


def own(losses: Tensor, options: Options) -> Tensor:
    """The rows' losses (N,)."""
    return losses[0] if options.z_losses else losses


def summed(losses: Tensor, kept: Tensor | None, reduction: str, options: Options) -> Tensor:
    """The loss, where no gradient is asked for."""
    losses = own(losses, options)
    return losses if reduction == "none" else total_loss(losses, kept)


def results(
    loss: Tensor, losses: Tensor, kept: Tensor | None, reduction: str, options: Options, shape: torch.Size
) -> Tensor | tuple[Tensor, Tensor]:
    """The loss, with the z-loss if it is asked for; those of rows in the shape of the targets."""
    loss = loss.view(shape) if reduction == "none" else loss
    if not options.z_losses:
        return loss
    return loss, losses[1].view(shape) if reduction == "none" else total_loss(losses[1], kept)


def owns_memory(logits: Tensor) -> bool:
    """Whether no two elements lie in one place: what has the smaller stride ends before the next of it begins."""
    (outer, inner), (step, small) = logits.shape, logits.stride()
    if step < small:
        outer, inner, step, small = inner, outer, small, step
    return (small > 0 or inner < 2) and (step > (inner - 1) * small or outer < 2)


# ---- the scalar, and the way back ----------------------------------------------------------------------------------


@operator("cross_entropy_reduce")
def _reduce(logits: Tensor, losses: Tensor, kept: Tensor | None, gradient: Tensor, each: bool = False) -> Tensor:
    """losses (N,) -> their sum or mean, or `each` by itself, of which `gradient` (N, V) is the gradient in the
    logits."""
    return losses.clone() if each else reduced(losses, kept)


@_reduce.register_fake
def _reduce_output(logits: Tensor, losses: Tensor, kept: Tensor | None, gradient: Tensor, each: bool = False) -> Tensor:
    return losses.new_empty(losses.shape if each else ())


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    refuse_second_derivative("cross_entropy", WITHOUT_ONE, "torch.nn.functional.cross_entropy")
    return arrived(ctx.saved_tensors[0], grad), None, None, None, None


_reduce.register_autograd(_differentiate, setup_context=saving(3, rest=5))


def arrived(gradient: Tensor, factor: Tensor) -> Tensor:
    """The saved gradient times the incoming one: in place, unless another backward may come for it."""
    if _graph_is_kept():
        return scaled(gradient, factor, None)
    scale_(gradient, factor, None)
    return gradient


def _graph_is_kept() -> bool:
    """Whether this backward runs with retain_graph or create_graph; also where PyTorch does not tell."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return True if ask is None else bool(ask())
