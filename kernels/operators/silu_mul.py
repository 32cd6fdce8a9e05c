"""silu(g) * u, the gate of a SwiGLU expert, in one pass either way.

    out = g * s * u,    s = 1 / (1 + exp(-g))
    dg  = grad * u * s * (1 + g * (1 - s)),    du = grad * g * s

fp32 inside, one rounding at the store. Saved for backward: g and u, and nothing of their size besides; eager saves
silu(g) too. Source: SwiGLU (Shazeer 2020); fused like this in Liger's `swiglu.py` and torchtitan's experts.

Shape suffixes: R rows of a tile, C columns of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.arguments import require_floats, require_same
from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import cdiv, operator
from kernels.operators.launch import layout_of, matrices, strides, tiled
from kernels.operators.tiles import tile
from kernels.rounding import rounded


def reference(g: Tensor, u: Tensor) -> Tensor:
    """The truth, differentiable: g and u of one shape, the result in their dtype."""
    return (F.silu(g.float()) * u.float()).to(g.dtype)


def gradients(grad: Tensor, g: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """dg and du in fp32, by torch's operators."""
    gate, up, upstream = g.float(), u.float(), grad.float()
    s = torch.sigmoid(gate)
    return upstream * up * s * (1 + gate * (1 - s)), upstream * gate * s


def silu_mul(g: Tensor, u: Tensor, *, candidate: int | None = None) -> Tensor:
    """g, u (...) bf16, fp16 or fp32, of one shape, dtype and device, any strides -> silu(g) * u, contiguous.

    `candidate` picks an entry of the configuration table, for tests and sweeps; all give the same bits.
    """
    require_floats(g, "g")
    require_floats(u, "u")
    require_same(u, "u", g, "g")
    return _silu_mul(g, u, candidate)


@operator("silu_mul")
def _silu_mul(g: Tensor, u: Tensor, candidate: int | None) -> Tensor:
    if path_of(_forward, g.device) == "eager":
        return reference(g, u).contiguous()
    out = _output(g, u, candidate)
    _launch(_forward, [g, u], [out], candidate)
    return out


@_silu_mul.register_fake
def _output(g: Tensor, u: Tensor, candidate: int | None) -> Tensor:
    return g.new_empty(g.shape)


@operator("silu_mul_backward")
def _silu_mul_backward(grad: Tensor, g: Tensor, u: Tensor, candidate: int | None) -> tuple[Tensor, Tensor]:
    """grad (...) in the dtype of g, any strides -> dg, du contiguous."""
    dg, du = _gradients(grad, g, u, candidate)
    if path_of(_backward, g.device) == "eager":
        of_g, of_u = gradients(grad, g, u)
        return dg.copy_(of_g), du.copy_(of_u)
    _launch(_backward, [grad, g, u], [dg, du], candidate)
    return dg, du


@_silu_mul_backward.register_fake
def _gradients(grad: Tensor, g: Tensor, u: Tensor, candidate: int | None) -> tuple[Tensor, Tensor]:
    return g.new_empty(g.shape), g.new_empty(g.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    g, u, ctx.candidate = inputs
    ctx.save_for_backward(g, u)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_silu_mul_backward(grad, *ctx.saved_tensors, ctx.candidate), None


_silu_mul.register_autograd(_differentiate, setup_context=_save)


def _launch(kernel: Any, inputs: list[Tensor], outputs: list[Tensor], candidate: int | None) -> None:
    if inputs[0].numel() == 0:
        return
    device = inputs[0].device
    if all(tensor.is_contiguous() for tensor in inputs):  # one row that holds everything, so that no tile ends early
        width = inputs[0].numel()
        config, launch = tiled(kernel, arch_of(device), 0, "unit", True, candidate)
        launch(device, cdiv(width, config.columns), *inputs, *outputs, 1, width, *(width, 1) * len(inputs))
        return
    operands = matrices(*inputs)
    rows, width = operands[0].shape
    config, launch = tiled(kernel, arch_of(device), width, layout_of(*operands), False, candidate)
    programs = cdiv(rows, config.rows) * cdiv(width, config.columns)
    launch(device, programs, *operands, *outputs, rows, width, *strides(*operands))


@jit(do_not_specialize=["rows"])
def _forward(  # type: ignore[no-untyped-def]
    g_ptr, u_ptr, out_ptr, rows, width, g_row, g_column, u_row, u_column,
    BY_HAND: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row, column, inside = tile(rows, width, R, C)
    g_RC = tl.load(g_ptr + row * g_row + column * g_column, mask=inside, other=0.0).to(tl.float32)
    u_RC = tl.load(u_ptr + row * u_row + column * u_column, mask=inside, other=0.0).to(tl.float32)
    out_RC = g_RC * tl.sigmoid(g_RC) * u_RC
    tl.store(out_ptr + row * width + column, rounded(out_RC, out_ptr.dtype.element_ty, BY_HAND), mask=inside)


@jit(do_not_specialize=["rows"])
def _backward(  # type: ignore[no-untyped-def]
    grad_ptr, g_ptr, u_ptr, dg_ptr, du_ptr, rows, width, grad_row, grad_column, g_row, g_column, u_row, u_column,
    BY_HAND: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    row, column, inside = tile(rows, width, R, C)
    grad_RC = tl.load(grad_ptr + row * grad_row + column * grad_column, mask=inside, other=0.0).to(tl.float32)
    g_RC = tl.load(g_ptr + row * g_row + column * g_column, mask=inside, other=0.0).to(tl.float32)
    u_RC = tl.load(u_ptr + row * u_row + column * u_column, mask=inside, other=0.0).to(tl.float32)
    s_RC = tl.sigmoid(g_RC)
    dg_RC = grad_RC * u_RC * s_RC * (1.0 + g_RC * (1.0 - s_RC))
    du_RC = grad_RC * g_RC * s_RC
    at = row * width + column
    tl.store(dg_ptr + at, rounded(dg_RC, dg_ptr.dtype.element_ty, BY_HAND), mask=inside)
    tl.store(du_ptr + at, rounded(du_RC, du_ptr.dtype.element_ty, BY_HAND), mask=inside)
