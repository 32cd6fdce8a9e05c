"""The backward pass of w · w2ᵀ · (silu(g) · u) from q = w2ᵀ · grad on, in one pass over the rows.

    hidden = g · s · u,    s = 1 / (1 + exp(-g))
    dot    = <q, hidden>                                 the gradient of w
    dg     = w · q · u · s · (1 + g · (1 - s)),    du = w · q · g · s,    weighted = w · hidden

float32 inside, one rounding at each store. hidden itself is counted again and never stored. The formulas are those of
`kernels.operators.silu_mul`, with the row's weight.

Shape suffixes: T tokens, K experts a token, M = T · K rows, F expert width, R rows of a program, C columns.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.hardware import arch_of
from kernels.jit import jit, path_of, tl
from kernels.launch import Launch, cdiv, operator, pick
from kernels.moe.configs import gate_candidates
from kernels.operators.configs import TileConfig
from kernels.operators.launch import strides
from kernels.operators.silu_mul import gradients
from kernels.operators.silu_mul import reference as gated
from kernels.rounding import rounded


def weighted_gate_backward(
    q_MF: Tensor,
    gate_MF: Tensor,
    up_MF: Tensor,
    weights_TK: Tensor,
    inverse_TK: Tensor,
    *,
    candidate: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, gate, up (M, F) of one dtype, any strides; weights (T, K), inverse (T, K) int64, choice -> row.

    Returns weighted (M, F), dg (M, F), du (M, F) in q's dtype, dots (T, K) float32, all contiguous; no autograd.
    """
    return _weighted_gate_backward(q_MF, gate_MF, up_MF, weights_TK, inverse_TK, candidate)  # type: ignore[no-any-return]


@operator("moe_weighted_gate_backward")
def _weighted_gate_backward(
    q: Tensor, gate: Tensor, up: Tensor, weights: Tensor, inverse: Tensor, candidate: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outputs = weighted, dg, du, dots = _outputs(q, gate, up, weights, inverse)
    if path_of(_backward, q.device) == "eager":
        row = inverse.flatten()
        weight = torch.empty_like(row, dtype=torch.float32).index_copy_(0, row, weights.flatten().float())[:, None]
        upstream, hidden = q.float(), gated(gate.float(), up.float())
        dots.copy_((upstream * hidden).sum(dim=-1).index_select(0, row).view(dots.shape))
        for out, gradient in zip((dg, du), gradients(upstream * weight, gate, up), strict=True):
            out.copy_(gradient)
        weighted.copy_(hidden * weight)
        return outputs
    rows, width = q.shape
    if q.numel() == 0:
        dots.zero_()
        return outputs
    config, launch = _plan(arch_of(q.device), width, candidate)
    operands = q, gate, up, weights.contiguous(), inverse.contiguous(), *outputs
    launch(q.device, cdiv(rows, config.rows), *operands, rows, width, *strides(q, gate, up))
    return outputs


@cache
def _plan(arch: str, width: int, candidate: int | None) -> tuple[TileConfig, Launch]:
    config = pick(gate_candidates(arch, width), candidate)
    return config, Launch(_backward, BY_HAND=arch == "cpu", R=config.rows, C=config.columns, num_warps=config.warps)


@_weighted_gate_backward.register_fake
def _outputs(q: Tensor, gate: Tensor, up: Tensor, weights: Tensor, inverse: Tensor, *_: Any) -> tuple[Tensor, ...]:
    weighted, dg, du = (q.new_empty(q.shape) for _ in range(3))
    return weighted, dg, du, q.new_empty(inverse.shape, dtype=torch.float32)


@jit(do_not_specialize=["rows"])
def _backward(  # type: ignore[no-untyped-def]
    q_ptr, gate_ptr, up_ptr, weights_ptr, inverse_ptr, weighted_ptr, dg_ptr, du_ptr, dots_ptr, rows, width,
    q_row, q_column, gate_row, gate_column, up_row, up_column,
    BY_HAND: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """R choices with their rows."""
    OUT: tl.constexpr = weighted_ptr.dtype.element_ty
    choice_R = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    real_R = choice_R < rows
    row_R1 = tl.load(inverse_ptr + choice_R, mask=real_R, other=0)[:, None]
    weight_R1 = tl.load(weights_ptr + choice_R, mask=real_R, other=0.0).to(tl.float32)[:, None]
    product_RC = tl.zeros((R, C), tl.float32)
    for first in range(0, width, C):
        column_1C = (first + tl.arange(0, C).to(tl.int64))[None, :]
        inside_RC = real_R[:, None] & (column_1C < width)
        q_RC = tl.load(q_ptr + row_R1 * q_row + column_1C * q_column, mask=inside_RC, other=0.0).to(tl.float32)
        g_RC = tl.load(gate_ptr + row_R1 * gate_row + column_1C * gate_column, mask=inside_RC, other=0.0)
        u_RC = tl.load(up_ptr + row_R1 * up_row + column_1C * up_column, mask=inside_RC, other=0.0).to(tl.float32)
        g_RC = g_RC.to(tl.float32)
        s_RC = tl.sigmoid(g_RC)
        hidden_RC = g_RC * s_RC * u_RC
        product_RC += q_RC * hidden_RC
        q_RC *= weight_R1
        to_RC = row_R1 * width + column_1C
        dg_RC = q_RC * u_RC * s_RC * (1.0 + g_RC * (1.0 - s_RC))
        tl.store(dg_ptr + to_RC, rounded(dg_RC, OUT, BY_HAND), mask=inside_RC)
        tl.store(du_ptr + to_RC, rounded(q_RC * g_RC * s_RC, OUT, BY_HAND), mask=inside_RC)
        tl.store(weighted_ptr + to_RC, rounded(hidden_RC * weight_R1, OUT, BY_HAND), mask=inside_RC)
    tl.store(dots_ptr + choice_R, tl.sum(product_RC, 1), mask=real_R)
