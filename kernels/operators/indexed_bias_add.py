"""A bias for each group of rows, with a bias gradient that is summed in fp32 and without atomics.

    out[m] = x[m] + bias[group_ids[m]],    dx = grad,    dbias[e] = sum of grad[m] over m in [offs[e - 1], offs[e])

fp32 inside, one rounding at the store and one at the end of a sum; eager indexing adds the gradient row by row in the
bias's own dtype, with atomics. Rows past offs[-1] get the bias of their clamped id and give no gradient. Saved for
backward: offs. Origin: the expert biases of openai/gpt-oss, as trained in torchtitan's gpt-oss experts.

Shape suffixes: M rows, H width, E experts, R rows of a tile, C columns of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.arguments import require_device, require_floats, require_integers, require_length
from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import cdiv, operator
from kernels.operators.launch import layout_of, strides, tiled
from kernels.operators.rows import sum_groups
from kernels.operators.tiles import tile
from kernels.rounding import rounded


def reference(x: Tensor, bias: Tensor, group_ids: Tensor, offs: Tensor) -> Tensor:
    """The truth, differentiable: in fp32, so that the gradient of bias is summed there and rounded once."""
    if bias.shape[0] == 0:
        return x.clone()
    bias_MH = bias.float()[group_ids.long().clamp(0, bias.shape[0] - 1)]
    counted = torch.arange(x.shape[0], device=x.device) < offs[-1]
    return (x.float() + torch.where(counted[:, None], bias_MH, bias_MH.detach())).to(x.dtype)


def indexed_bias_add(
    x: Tensor, bias: Tensor, group_ids: Tensor, offs: Tensor, *, candidate: int | None = None
) -> Tensor:
    """x (M, H), bias (E, H) bf16, fp16 or fp32, any strides -> (M, H) in the dtype of x, contiguous.

    group_ids (M,) and offs (E,) int32 or int64 say the same: to which group a row belongs, and where each group ends.
    Neither is read on the host, and both are clamped, ids to [0, E) and offs to [0, M]. With no group at all the
    result is a copy of x. `candidate` picks an entry of the configuration table; forward all give the same bits.
    """
    require_floats(x, "x", ndim=2)
    require_floats(bias, "bias", ndim=2)
    require_device(bias, "bias", x, "x")
    if bias.shape[1] != x.shape[1]:
        raise ValueError(f"bias: has {bias.shape[1]} columns; may have {x.shape[1]}, as x has")
    require_integers(group_ids, "group_ids", x, "x")
    require_length(group_ids, "group_ids", x.shape[0], "row of x")
    require_integers(offs, "offs", x, "x")
    require_length(offs, "offs", bias.shape[0], "row of bias")
    return _bias_add(x, bias, group_ids, offs, candidate)


@operator("indexed_bias_add")
def _bias_add(x: Tensor, bias: Tensor, group_ids: Tensor, offs: Tensor, candidate: int | None) -> Tensor:
    out = _output(x, bias, group_ids, offs, candidate)
    if out.numel() == 0 or bias.shape[0] == 0:
        return out.copy_(x)
    if path_of(_forward, x.device) == "eager":
        return out.copy_(reference(x, bias, group_ids, offs))
    rows, width = x.shape
    config, launch = tiled(_forward, arch_of(x.device), width, layout_of(x, bias), False, candidate)
    programs = cdiv(rows, config.rows) * cdiv(width, config.columns)
    steps = *strides(x, bias), group_ids.stride(0)
    launch(x.device, programs, x, bias, group_ids, out, rows, width, bias.shape[0], *steps)
    return out


@_bias_add.register_fake
def _output(x: Tensor, bias: Tensor, group_ids: Tensor, offs: Tensor, candidate: int | None) -> Tensor:
    return x.new_empty(x.shape)


@operator("indexed_bias_add_backward")
def _bias_gradient(grad: Tensor, offs: Tensor, dtype: torch.dtype, candidate: int | None) -> Tensor:
    """grad (M, H) any strides, offs (E,) -> (E, H) in `dtype`, contiguous."""
    out = _bias_gradient_output(grad, offs, dtype, candidate)
    sum_groups(grad, offs.contiguous(), out, candidate)
    return out


@_bias_gradient.register_fake
def _bias_gradient_output(grad: Tensor, offs: Tensor, dtype: torch.dtype, candidate: int | None) -> Tensor:
    return grad.new_empty((offs.shape[0], grad.shape[1]), dtype=dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, bias, _, offs, ctx.candidate = inputs
    ctx.dtype = bias.dtype
    ctx.save_for_backward(offs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
    (offs,) = ctx.saved_tensors
    dbias = _bias_gradient(grad, offs, ctx.dtype, ctx.candidate) if ctx.needs_input_grad[1] else None
    return grad, dbias, None, None, None


_bias_add.register_autograd(_differentiate, setup_context=_save)


@jit(do_not_specialize=["rows", "experts"])
def _forward(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, ids_ptr, out_ptr, rows, width, experts, x_row, x_column, bias_row, bias_column, ids_stride,
    BY_HAND: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row, column, inside = tile(rows, width, R, C)
    id_R1 = tl.load(ids_ptr + row * ids_stride, mask=row < rows, other=0).to(tl.int64)
    id_R1 = tl.minimum(tl.maximum(id_R1, 0), experts - 1)
    x_RC = tl.load(x_ptr + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    bias_RC = tl.load(bias_ptr + id_R1 * bias_row + column * bias_column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, rounded(x_RC + bias_RC, out_ptr.dtype.element_ty, BY_HAND), mask=inside)
