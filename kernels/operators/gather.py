"""x[index] into memory of few sizes; backward a deterministic sum.

    out[i] = x[index[i]],    dx[r] = sum of grad[i] over i with index[i] == r, in fp32, always in the same order

Each is the other's backward pass, so both are differentiable any number of times.
The result is the first n rows of a buffer of ceil(n / pad_to) * pad_to, so that an allocator that sees another n each
step hands out the same blocks; nobody can reach the rows behind through the result. Saved for backward: the index, not
x, which may be freed (a guarantee here; eager indexing happens to do the same). Origin: the padded expand and unshuffle
gathers of DualPipe-style training, as in torchtitan's and Megatron's MoE dispatch.

Shape suffixes: R rows of x, H width, N rows of the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.arguments import require_floats, require_indices, require_integers, require_positive
from kernels.launch import operator, saving
from kernels.operators.lists import sum_by_index
from kernels.operators.rows import fetch_rows


def reference(x: Tensor, index: Tensor, pad_to: int = 1024) -> Tensor:
    """The truth, differentiable: in fp32, so that the gradient is summed there and rounded once."""
    return x.float()[index].to(x.dtype)


def padded_index_gather(x: Tensor, index: Tensor, pad_to: int = 1024, *, candidate: int | None = None) -> Tensor:
    """x (R, H) bf16, fp16 or fp32, any strides; index (n,) int64 or int32 in [0, R) -> (n, H), rows contiguous.

    An index out of range (a negative one is) is an error on a CPU; on a GPU its row is NaN and has no gradient.
    `candidate` picks an entry of the configuration table; forward all give the same bits.
    """
    require_floats(x, "x", ndim=2)
    require_integers(index, "index", x, "x")
    require_positive(pad_to, "pad_to")
    return _gather(x, index, pad_to, candidate)


@operator("padded_index_gather")
def _gather(x: Tensor, index: Tensor, pad_to: int, candidate: int | None) -> Tensor:
    require_indices(index, "index", x.shape[0])
    out = _output(x, index, pad_to, candidate)
    fetch_rows(x, index.contiguous(), out, torch.nan, candidate, reused=True)
    return out


@_gather.register_fake
def _output(x: Tensor, index: Tensor, pad_to: int, candidate: int | None) -> Tensor:
    count = index.shape[0]
    padded = (count + pad_to - 1) // pad_to * pad_to
    return x.new_empty((padded, x.shape[1]))[:count]


@operator("padded_index_gather_backward")
def sum_rows_by(grad: Tensor, index: Tensor, rows: int, candidate: int | None) -> Tensor:
    """grad (n, H) any strides, index (n,) -> (rows, H) contiguous."""
    dx = _gradient(grad, index, rows, candidate)
    sum_by_index(grad, index, dx, candidate)
    return dx


@sum_rows_by.register_fake
def _gradient(grad: Tensor, index: Tensor, rows: int, candidate: int | None) -> Tensor:
    return grad.new_empty((rows, grad.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, index, _, ctx.candidate = inputs
    ctx.rows = x.shape[0]
    ctx.save_for_backward(index)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return sum_rows_by(grad, *ctx.saved_tensors, ctx.rows, ctx.candidate), None, None, None


_gather.register_autograd(_differentiate, setup_context=_save)


def _differentiate_sum(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _gather(grad, *ctx.saved_tensors, 1, *ctx.rest), None, None, None


sum_rows_by.register_autograd(_differentiate_sum, setup_context=saving(1, rest=3))
