"""Cross entropy of a linear layer's output whose logits never exist together, and the gradients of the layer.

Rows go in chunks: a chunk's logits are computed, their gradient takes their place (`cross_entropy.py`), and what the
layer's gradients need of it is added up, before the next chunk's logits take the memory. So the gradients are there
after the forward pass, and they are what is saved:

    logits = x W^T + b,  dx = g W,  dW = sum over chunks of g^T x,  db = sum of g,  g = gradient of the logits

dW and db are summed in fp32 and rounded once. With the reduction "none" nobody knows the rows' incoming gradients yet:
the inputs are saved, and the backward pass computes the logits once more.

Memory beside the results is one chunk of logits, and dW in fp32. A chunk has half as many rows as the layer's input has
columns, or 256, so its bf16 logits take half of what dW rounded to bf16 does, which is there when they are not: less
would save nothing, and each chunk reads and writes dW. 8192 x 4096 to 128256 on an H100, forward and backward: chunks
of 256, 1024 and 2048 rows took 96.6, 43.8 and 37.8 ms and 3070 MiB each, eager torch 39.0 ms and 6012 MiB.

Origin of the idea: mgmalek's efficient_cross_entropy, and Liger's fused linear cross entropy. The names are those of
torch.nn.functional.linear_cross_entropy.

Shape suffixes: N rows, K input columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.nn import functional as F

from kernels.arguments import (
    as_rows,
    in_autocast_dtype,
    refuse_second_derivative,
    require_device,
    require_floats,
    require_length,
    require_ndim,
    require_positive,
)
from kernels.launch import operator, refuse_tangents, saving, without_autocast
from kernels.operators.cross_entropy import WITHOUT_ONE, arrived, own, prepared, results, summed
from kernels.operators.cross_entropy import reference as cross_entropy_reference
from kernels.operators.cross_entropy_rows import OPTIONS, Options, gradient_, losses_of
from kernels.operators.scaling import scale_
from kernels.operators.totals import reduced

LEAST_ROWS = 256  # of a chunk


def reference(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None, **options: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """The truth, differentiable: all logits in the dtype of the input, and `cross_entropy.reference` of them."""
    return cross_entropy_reference(F.linear(input, linear_weight, linear_bias), target, **options)


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    lse_square_scale: float = 0.0,
    return_z_loss: bool = False,
    chunk_rows: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`cross_entropy` of the logits `input @ linear_weight.T + linear_bias`, in the memory of a part of them.

    Args:
        input: (N, K) or (..., K) bf16, fp16 or fp32.
        linear_weight: (V, K) in the dtype of the input.
        target: (N,) or (...) int64 or int32.
        linear_bias: (V,) in the dtype of the input.
        weight, ignore_index, reduction, label_smoothing, softcap, lse_square_scale, return_z_loss: as in
            `cross_entropy`.
        chunk_rows: whose logits exist at a time; None: K / 2, at least 256.

    Returns:
        the loss in fp32, a scalar, or as target for the reduction "none"; with `return_z_loss` also the z-loss. Under
        autocast the layer is computed in its dtype, as torch's is.
        Differentiable in input, linear_weight and linear_bias; of those that need none no gradient is computed.
    """
    refuse_tangents("linear_cross_entropy", input, linear_weight, linear_bias, weight)
    require_floats(input, "input")
    input, linear_weight, linear_bias = map(in_autocast_dtype, (input, linear_weight, linear_bias))
    given = target
    input, target = as_rows(input, "input", target)
    require_ndim(input, "input", 2)
    for tensor, name, ndim in ((linear_weight, "linear_weight", 2), (linear_bias, "linear_bias", 1)):
        if tensor is not None or ndim == 2:
            require_floats(tensor, name, ndim=ndim)
            require_device(tensor, name, input, "input")
            if tensor.dtype != input.dtype:
                raise ValueError(f"{name}: is {tensor.dtype}; may be {input.dtype}, as input is")
    classes, width = linear_weight.shape
    if width != input.shape[1]:
        raise ValueError(f"linear_weight: has {width} columns; may have {input.shape[1]}, as input has")
    if linear_bias is not None:
        require_length(linear_bias, "linear_bias", classes, "row of linear_weight")
    if chunk_rows is None:
        chunk_rows = max(LEAST_ROWS, width // 2)
    require_positive(chunk_rows, "chunk_rows")
    kept, options = prepared(
        input, "input", classes, target, ignore_index, reduction,
        weight, label_smoothing, softcap, lse_square_scale, return_z_loss,
    )  # fmt: skip
    shape, layer = given.shape, (input, linear_weight, linear_bias)
    wanted = [torch.is_grad_enabled() and each is not None and each.requires_grad for each in layer]
    fixed = [None if each is None else each.detach() for each in layer]
    if any(wanted) and reduction == "none":
        losses = _each(*layer, target, ignore_index, chunk_rows, *options)
        return results(own(losses, options), losses.detach(), kept, reduction, options, shape)
    losses, *gradients = _in_chunks(*fixed, target, None, kept, wanted, ignore_index, chunk_rows, *options)
    if not any(wanted):
        return results(summed(losses, kept, reduction, options), losses, kept, reduction, options, shape)
    found = iter(gradients)
    loss = _reduce(*layer, own(losses, options), kept, *(next(found) if each else None for each in wanted))
    return results(loss, losses, kept, reduction, options, shape)


# ---- chunks --------------------------------------------------------------------------------------------------------


def _in_chunks(*given: Any) -> list[Tensor]:
    """Chunk by chunk before whoever counts operators and tensors; one operator to a compiler, whatever the rows."""
    if torch.compiler.is_compiling() or is_fake(
        given[0]
    ):  # torch 2.11 traces a backward pass, and says no to the first
        return _operator(*given)  # type: ignore[no-any-return]
    with torch.no_grad(), without_autocast():
        return _run(*given)


_LAYER = "Tensor input, Tensor linear_weight, Tensor? linear_bias, Tensor target"


def _run(
    input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None, target: Tensor, factor: Tensor | None,
    kept: Tensor | None, wanted: Sequence[bool], ignore_index: int, chunk_rows: int, *options: Any,
) -> list[Tensor]:  # fmt: skip
    """Losses, (N,) or (2, N) fp32, and those `wanted` of the gradients of input, weight and bias.

    `factor` (N,): incoming gradients of the rows.
    """
    of_input, of_weight, of_bias = wanted
    dx_NK = input.new_empty(input.shape) if of_input else None
    dw_VK = input.new_zeros(linear_weight.shape, dtype=torch.float32) if of_weight else None
    db_V = input.new_zeros(linear_weight.shape[0], dtype=torch.float32) if of_bias else None
    losses = []
    for first in range(0, max(input.shape[0], 1), chunk_rows):
        x, targets = input[first : first + chunk_rows], target[first : first + chunk_rows]
        logits = F.linear(x, linear_weight, linear_bias)
        if not any(wanted):
            losses.append(losses_of(logits, targets, kept, ignore_index, None, *options))
            continue
        losses.append(gradient_(logits, targets, kept, ignore_index, None, *options))
        if factor is not None:
            scale_(logits, factor[first : first + chunk_rows], None)
        if dx_NK is not None:
            torch.mm(logits, linear_weight, out=dx_NK[first : first + chunk_rows])
        if dw_VK is not None:
            _add_product(dw_VK, logits.t(), x)
        if db_V is not None:
            db_V += logits.sum(0, dtype=torch.float32)
        del logits  # before the next chunk's
    gradients = (each.to(input.dtype) for each in (dx_NK, dw_VK, db_V) if each is not None)
    return [torch.cat(losses, -1), *gradients]


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b in fp32, of whatever dtype a and b are."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    elif a.device.type == "cuda" and torch.version.hip is None:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:  # torch has no such product: that of the chunk is rounded
        total += a @ b


_operator = operator(
    "linear_cross_entropy",
    schema=f"({_LAYER}, Tensor? factor, Tensor? kept, bool[] wanted, SymInt ignore_index, SymInt chunk_rows, {OPTIONS})"
    " -> Tensor[]",
)(_run)


@_operator.register_fake
def _outputs(*given: Any) -> list[Tensor]:
    input, linear_weight, _, _, _, _, wanted, _, _, *options = given
    rows = input.shape[:1]
    losses = input.new_empty((2, *rows) if Options(*options).z_losses else rows, dtype=torch.float32)
    shapes = (input.shape, linear_weight.shape, linear_weight.shape[:1])
    return [losses, *(input.new_empty(shape) for shape, is_wanted in zip(shapes, wanted, strict=True) if is_wanted)]


# ---- the loss, and the way back ------------------------------------------------------------------------------------


@operator("linear_cross_entropy_reduce")
def _reduce(
    input: Tensor,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    losses: Tensor,
    kept: Tensor | None,
    dx: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
) -> Tensor:
    """losses (N,) -> their sum or mean, whose gradients in the layer's tensors are dx, dw and db."""
    return reduced(losses, kept)


@_reduce.register_fake
def _reduce_output(input: Tensor, *given: Any) -> Tensor:
    return input.new_empty((), dtype=torch.float32)


def _refuse_second_derivative() -> None:
    refuse_second_derivative("linear_cross_entropy", WITHOUT_ONE, "torch.nn.functional.cross_entropy of a layer")


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    _refuse_second_derivative()
    wanted = zip(ctx.saved_tensors, ctx.needs_input_grad[:3], strict=True)
    return *(arrived(gradient, grad) if needed else None for gradient, needed in wanted), *[None] * 5


_reduce.register_autograd(_differentiate, setup_context=saving(5, 6, 7, rest=8))


@operator(
    "linear_cross_entropy_each", schema=f"({_LAYER}, SymInt ignore_index, SymInt chunk_rows, {OPTIONS}) -> Tensor"
)
def _each(*given: Any) -> Tensor:
    """The rows' losses, (N,) or (2, N); a gradient in the second row, the z-losses, is not passed on."""
    return _run(*given[:4], None, None, [False] * 3, *given[4:])[0]


@_each.register_fake
def _each_output(*given: Any) -> Tensor:
    return _outputs(*given[:4], None, None, [False] * 3, *given[4:])[0]


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4], inputs[6])
    ctx.how, ctx.options = inputs[4:6], inputs[7:]


def _differentiate_each(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    _refuse_second_derivative()
    *inputs, weight = ctx.saved_tensors
    ratio, *options = ctx.options
    factor = grad[0] if options[-1] else grad
    wanted = list(ctx.needs_input_grad[:3])
    _, *gradients = _in_chunks(*inputs, factor, None, wanted, *ctx.how, weight, ratio, *options)
    found = iter(gradients)
    return *(next(found) if needed else None for needed in wanted), *[None] * 9


_each.register_autograd(_differentiate_each, setup_context=_save_inputs)
