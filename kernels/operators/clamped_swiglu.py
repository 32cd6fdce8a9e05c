"""The clamped SwiGLU of gpt-oss in one pass either way: gate and up interleaved in one tensor.

    g = min(gu[:, 0::2], L),  u = clamp(gu[:, 1::2], -L, L),  s = sigmoid(alpha * g)
    out = (u + 1) * g * s
    dg  = grad * (u + 1) * s * (1 + alpha * g * (1 - s))   where gate <= L, else exactly 0
    du  = grad * g * s                                     where abs(up) <= L, else exactly 0

fp32 inside, one rounding at the store; limit and alpha are fp32. NaN is not clamped: it goes through to the output and
to the gradients. Saved for backward: gu. Source: openai/gpt-oss `model.py`, `swiglu(alpha=1.702, limit=7.0)`;
as one kernel in its Triton `swiglu`, forward only.

Shape suffixes: R rows of a tile, C columns of the output's tile, P = 2 * C, the tile of gu.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import require_floats
from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import cdiv, operator, saving
from kernels.operators.launch import layout_of, strides, tiled
from kernels.rounding import rounded


def reference(gu: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """The truth, differentiable: gu (M, 2 * N) -> (M, N) in its dtype."""
    gate, up = gu[:, 0::2].float(), gu[:, 1::2].float()
    # `clamp` would stop the gradient of NaN; `where` lets it through.
    gate = torch.where(gate > limit, limit, gate)
    up = torch.where(up > limit, limit, torch.where(up < -limit, -limit, up))
    return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gu.dtype)


def clamped_swiglu(gu: Tensor, alpha: float = 1.702, limit: float = 7.0, *, candidate: int | None = None) -> Tensor:
    """gu (M, 2 * N) bf16, fp16 or fp32, any strides, even columns gate, odd ones up -> (M, N) contiguous.

    `limit` is above 0 (inf does not clamp). `candidate` picks an entry of the configuration table; all give the same
    bits.
    """
    require_floats(gu, "gu", ndim=2)
    if gu.shape[1] % 2:
        raise ValueError(f"gu: has {gu.shape[1]} columns; may have an even number, gate and up in turn")
    if not limit > 0:
        raise ValueError(f"limit: is {limit}; may be above 0, or math.inf for none")
    if not -math.inf < alpha < math.inf:
        raise ValueError(f"alpha: is {alpha}; may be a finite number")
    return _clamped_swiglu(gu, alpha, limit, candidate)


@operator("clamped_swiglu")
def _clamped_swiglu(gu: Tensor, alpha: float, limit: float, candidate: int | None) -> Tensor:
    if path_of(_forward, gu.device) == "eager":
        return reference(gu, alpha, limit).contiguous()
    out = _output(gu, alpha, limit, candidate)
    _launch(_forward, [gu], out, out.numel(), alpha, limit, candidate)
    return out


@_clamped_swiglu.register_fake
def _output(gu: Tensor, alpha: float, limit: float, candidate: int | None) -> Tensor:
    return gu.new_empty((gu.shape[0], gu.shape[1] // 2))


@operator("clamped_swiglu_backward")
def _clamped_swiglu_backward(grad: Tensor, gu: Tensor, alpha: float, limit: float, candidate: int | None) -> Tensor:
    """grad (M, N) in the dtype of gu, any strides -> the gradient of gu (M, 2 * N), contiguous."""
    dgu = _gradient(grad, gu, alpha, limit, candidate)
    if path_of(_backward, gu.device) == "eager":
        gate, up, upstream = gu[:, 0::2].float(), gu[:, 1::2].float(), grad.float()
        passes_g, passes_u = ~(gate > limit), ~(up.abs() > limit)
        gate = torch.where(gate > limit, limit, gate)
        up = torch.where(up > limit, limit, torch.where(up < -limit, -limit, up))
        s = torch.sigmoid(alpha * gate)
        dgu[:, 0::2] = torch.where(passes_g, upstream * (up + 1) * s * (1 + alpha * gate * (1 - s)), 0)
        dgu[:, 1::2] = torch.where(passes_u, upstream * gate * s, 0)
        return dgu
    _launch(_backward, [gu, grad], dgu, grad.numel(), alpha, limit, candidate)
    return dgu


@_clamped_swiglu_backward.register_fake
def _gradient(grad: Tensor, gu: Tensor, alpha: float, limit: float, candidate: int | None) -> Tensor:
    return gu.new_empty(gu.shape)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return _clamped_swiglu_backward(grad, *ctx.saved_tensors, *ctx.rest), None, None, None


_clamped_swiglu.register_autograd(_differentiate, setup_context=saving(0, rest=1))


def _launch(
    kernel: Any, inputs: list[Tensor], out: Tensor, pairs: int, alpha: float, limit: float, candidate: int | None
) -> None:
    if pairs == 0:
        return
    flat = all(tensor.is_contiguous() for tensor in inputs)
    operands = [tensor.view(1, -1) for tensor in inputs] if flat else inputs
    rows, width = operands[0].shape[0], operands[0].shape[1] // 2
    layout = layout_of(*operands)
    config, launch = tiled(kernel, arch_of(out.device), 0 if flat else width, layout, flat, candidate)
    programs = cdiv(rows, config.rows) * cdiv(width, config.columns)
    launch(out.device, programs, *operands, out, rows, width, *strides(*operands), float(alpha), float(limit))


@jit()
def _pairs(gu_ptr, rows, width, gu_row, gu_column, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """gate, up (R, C) fp32 from one load of both; row (R, 1), column (1, C) and mask of the output's tile; column
    (1, P) and mask of gu's."""
    P: tl.constexpr = 2 * C
    blocks = tl.cdiv(width, C)
    program = tl.program_id(0)
    row_R = ((program // blocks).to(tl.int64) * R + tl.arange(0, R))[:, None]
    first = (program % blocks).to(tl.int64) * C
    column_C = (first + tl.arange(0, C))[None, :]
    column_P = (2 * first + tl.arange(0, P))[None, :]
    inside_RP = (row_R < rows) & (column_P < 2 * width)
    gu_RP = tl.load(gu_ptr + row_R * gu_row + column_P * gu_column, mask=inside_RP, other=0.0).to(tl.float32)
    gate_RC, up_RC = tl.split(tl.reshape(gu_RP, (R, C, 2)))
    return gate_RC, up_RC, row_R, column_C, (row_R < rows) & (column_C < width), column_P, inside_RP


@jit(do_not_specialize=["rows", "alpha", "limit"])
def _forward(  # type: ignore[no-untyped-def]
    gu_ptr, out_ptr, rows, width, gu_row, gu_column, alpha, limit,
    BY_HAND: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    gate, up, row, column, inside, _, _ = _pairs(gu_ptr, rows, width, gu_row, gu_column, R, C)
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    out_RC = (up + 1.0) * gate * tl.sigmoid(alpha * gate)
    tl.store(out_ptr + row * width + column, rounded(out_RC, out_ptr.dtype.element_ty, BY_HAND), mask=inside)


@jit(do_not_specialize=["rows", "alpha", "limit"])
def _backward(  # type: ignore[no-untyped-def]
    gu_ptr, grad_ptr, dgu_ptr, rows, width, gu_row, gu_column, grad_row, grad_column, alpha, limit,
    BY_HAND: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    gate, up, row, column, inside, column_P, inside_RP = _pairs(gu_ptr, rows, width, gu_row, gu_column, R, C)
    grad_RC = tl.load(grad_ptr + row * grad_row + column * grad_column, mask=inside, other=0.0).to(tl.float32)
    stops_g, stops_u = gate > limit, tl.abs(up) > limit
    gate = tl.where(stops_g, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    s_RC = tl.sigmoid(alpha * gate)
    dg_RC = tl.where(stops_g, 0.0, grad_RC * (up + 1.0) * s_RC * (1.0 + alpha * gate * (1.0 - s_RC)))
    du_RC = tl.where(stops_u, 0.0, grad_RC * gate * s_RC)
    dgu_RP = tl.reshape(tl.join(dg_RC, du_RC), (R, 2 * C))
    at = row * (2 * width) + column_P
    tl.store(dgu_ptr + at, rounded(dgu_RP, dgu_ptr.dtype.element_ty, BY_HAND), mask=inside_RP)
