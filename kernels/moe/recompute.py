"""Bf16 experts and combine with a backward pass of their own, which keeps two tensors of M rows instead of six.

Autograd keeps rows (M, D), gate, up and hidden (M, F), and the experts' outputs y (M, D), which the gradient of the
routing weights asks for. Here x (T, D) stands for rows, which are gathered again; hidden is counted again; and y is
not needed at all, since for row m of token t with weight w, and q = w2ᵀ · grad_out[t],

    <grad_out[t], y[m]> = <q, hidden[m]>,   grad_hidden[m] = w · q,   grad_w2 = Σ_m grad_out[t] ⊗ (w · hidden[m])

Forward is bit-equal to the plain way. What is saved: x, weights, indices and weights by reference, gate and up.

All of it is the chain rule, with w2ᵀ moved to the other side of the product.

Shape suffixes: T tokens, D model width, F expert width, E experts, K experts a token, M = T · K rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.arguments import refuse_second_derivative
from kernels.moe.dispatch import Dispatch
from kernels.moe.experts import COMPUTE, SwiGLUExperts
from kernels.moe.matmul import matmul_of
from kernels.moe.precision import no_autocast
from kernels.moe.rows import spread_rows, sum_rows, sum_rows_and_dot
from kernels.moe.weighted_gate import weighted_gate_backward
from kernels.operators import silu_mul


def experts_and_combine(
    x_TD: Tensor, weights_TK: Tensor, experts: SwiGLUExperts, dispatch: Dispatch, *, weight_before: bool
) -> Tensor:
    """Σ_k weight · expert(x) (`weight_before`: Σ_k expert(weight · x)), (T, D) in x's dtype.

    The matmul of `experts` has to contract rows as well (`GroupedMatmuls.contracts_rows`).
    """
    out_TD: Tensor = _ExpertsAndCombine.apply(
        x_TD,
        weights_TK,
        experts.here(experts.w1),
        experts.here(experts.w2),
        experts.here(experts.w3),
        dispatch.inverse,
        dispatch.offs,
        experts.precision,
        weight_before,
    )
    return out_TD


class _ExpertsAndCombine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TD: Tensor,
        weights_TK: Tensor,
        w1_EFD: Tensor,
        w2_EDF: Tensor,
        w3_EFD: Tensor,
        inverse_TK: Tensor,
        offs_E: Tensor,
        precision: str,
        weight_before: bool,
    ) -> Tensor:
        multiply = matmul_of(precision)
        with no_autocast(x_TD.device):
            rows_MD = spread_rows(x_TD, weights_TK if weight_before else None, inverse_TK, COMPUTE)
            gate_MF = multiply(rows_MD, w1_EFD.to(COMPUTE).transpose(1, 2), offs_E)
            up_MF = multiply(rows_MD, w3_EFD.to(COMPUTE).transpose(1, 2), offs_E)
            del rows_MD
            y_MD = multiply(silu_mul(gate_MF, up_MF), w2_EDF.to(COMPUTE).transpose(1, 2), offs_E)
            out_TD = sum_rows(y_MD, None if weight_before else weights_TK, inverse_TK, x_TD.dtype)
        ctx.save_for_backward(x_TD, weights_TK, w1_EFD, w2_EDF, w3_EFD, inverse_TK, offs_E, gate_MF, up_MF)
        ctx.precision, ctx.weight_before = precision, weight_before
        return out_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("MoE", "what it counts again has no graph", "torch's own operators")
        x_TD, weights_TK, w1_EFD, w2_EDF, w3_EFD, inverse_TK, offs_E, gate_MF, up_MF = ctx.saved_tensors
        needs_x, needs_weights, needs_w1, needs_w2, needs_w3 = ctx.needs_input_grad[:5]
        multiply, before = matmul_of(ctx.precision), ctx.weight_before
        grad_x = grad_weights = grad_w1 = grad_w2 = grad_w3 = None
        with no_autocast(x_TD.device):
            incoming_MD = spread_rows(grad_TD, None, inverse_TK, COMPUTE)
            q_MF = multiply(incoming_MD, w2_EDF.to(COMPUTE), offs_E)
            if before:
                hidden_MF = silu_mul(gate_MF, up_MF)
                grad_gate_MF, grad_up_MF = torch.ops.perfguard_kernels.silu_mul_backward(q_MF, gate_MF, up_MF, None)
            else:
                hidden_MF, grad_gate_MF, grad_up_MF, dots_TK = weighted_gate_backward(
                    q_MF, gate_MF, up_MF, weights_TK, inverse_TK
                )
                grad_weights = dots_TK.to(weights_TK.dtype)
            del q_MF
            if needs_w2:
                grad_w2 = multiply(incoming_MD.t(), hidden_MF, offs_E).to(w2_EDF.dtype)
            del incoming_MD, hidden_MF
            # Before the other gradients of weights, so that these are not held while two tensors (M, D) are.
            if needs_x or (needs_weights and before):
                by_gate_MD = multiply(grad_gate_MF, w1_EFD.to(COMPUTE), offs_E)
                by_up_MD = multiply(grad_up_MF, w3_EFD.to(COMPUTE), offs_E)
                if before:
                    grad_x, dots_TK = sum_rows_and_dot(by_gate_MD, weights_TK, inverse_TK, x_TD, plus_MD=by_up_MD)
                    grad_weights = dots_TK.to(weights_TK.dtype)
                else:
                    grad_x = sum_rows(by_gate_MD, None, inverse_TK, x_TD.dtype, plus_MD=by_up_MD)
                del by_gate_MD, by_up_MD
            if needs_w1 or needs_w3:
                rows_MD = spread_rows(x_TD, weights_TK if before else None, inverse_TK, COMPUTE)
                if needs_w1:
                    grad_w1 = multiply(grad_gate_MF.t(), rows_MD, offs_E).to(w1_EFD.dtype)
                if needs_w3:
                    grad_w3 = multiply(grad_up_MF.t(), rows_MD, offs_E).to(w3_EFD.dtype)
        return grad_x, grad_weights, grad_w1, grad_w2, grad_w3, *(None,) * 4
