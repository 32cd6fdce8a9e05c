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

from kernels.moe.dispatch import Dispatch, dot_rows, gather_rows, sum_rows
from kernels.moe.experts import COMPUTE, SwiGLUExperts
from kernels.moe.matmul import matmul_of
from kernels.moe.precision import no_autocast
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
        experts.w1,
        experts.w2,
        experts.w3,
        dispatch.token,
        dispatch.order,
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
        token_M: Tensor,
        order_M: Tensor,
        inverse_TK: Tensor,
        offs_E: Tensor,
        precision: str,
        weight_before: bool,
    ) -> Tensor:
        multiply = matmul_of(precision).multiply
        with no_autocast(x_TD.device):
            rows_MD = gather_rows(x_TD, weights_TK if weight_before else None, token_M, order_M).to(COMPUTE)
            gate_MF = multiply(rows_MD, w1_EFD.to(COMPUTE).transpose(1, 2), offs_E)
            up_MF = multiply(rows_MD, w3_EFD.to(COMPUTE).transpose(1, 2), offs_E)
            del rows_MD
            y_MD = multiply(silu_mul(gate_MF, up_MF), w2_EDF.to(COMPUTE).transpose(1, 2), offs_E)
            out_TD = sum_rows(y_MD, None if weight_before else weights_TK, inverse_TK, x_TD.dtype)
        ctx.save_for_backward(
            x_TD, weights_TK, w1_EFD, w2_EDF, w3_EFD, token_M, order_M, inverse_TK, offs_E, gate_MF, up_MF
        )
        ctx.precision, ctx.weight_before = precision, weight_before
        return out_TD

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weights_TK, w1_EFD, w2_EDF, w3_EFD, token_M, order_M, inverse_TK, offs_E, gate_MF, up_MF = (
            ctx.saved_tensors
        )
        needs_x, needs_weights, needs_w1, needs_w2, needs_w3 = ctx.needs_input_grad[:5]
        multiply, before = matmul_of(ctx.precision).multiply, ctx.weight_before
        grad_x = grad_weights = grad_w1 = grad_w2 = grad_w3 = None
        with no_autocast(x_TD.device):
            incoming_MD = gather_rows(grad_TD.to(COMPUTE), None, token_M, order_M)
            q_MF = multiply(incoming_MD, w2_EDF.to(COMPUTE), offs_E)
            hidden_MF = silu_mul(gate_MF, up_MF)
            if not before:
                if needs_weights:
                    grad_weights = _dot(q_MF, hidden_MF, inverse_TK).to(weights_TK.dtype)
                weights_M1 = weights_TK.flatten().index_select(0, order_M).unsqueeze(-1)
                q_MF.mul_(weights_M1)
                hidden_MF.mul_(weights_M1)
            if needs_w2:
                grad_w2 = multiply(incoming_MD.t(), hidden_MF, offs_E).to(w2_EDF.dtype)
            del incoming_MD, hidden_MF
            grad_gate_MF, grad_up_MF = torch.ops.perfguard_kernels.silu_mul_backward(q_MF, gate_MF, up_MF, None)
            del q_MF
            if needs_w1 or needs_w3:
                rows_MD = gather_rows(x_TD, weights_TK if before else None, token_M, order_M).to(COMPUTE)
                if needs_w1:
                    grad_w1 = multiply(grad_gate_MF.t(), rows_MD, offs_E).to(w1_EFD.dtype)
                if needs_w3:
                    grad_w3 = multiply(grad_up_MF.t(), rows_MD, offs_E).to(w3_EFD.dtype)
                del rows_MD
            if needs_x or (needs_weights and before):
                grad_MD = multiply(grad_gate_MF, w1_EFD.to(COMPUTE), offs_E)
                grad_MD += multiply(grad_up_MF, w3_EFD.to(COMPUTE), offs_E)
                if needs_weights and before:
                    grad_weights = dot_rows(x_TD, grad_MD, inverse_TK).to(weights_TK.dtype)
                if needs_x:
                    grad_x = sum_rows(grad_MD, weights_TK if before else None, inverse_TK, x_TD.dtype)
        return grad_x, grad_weights, grad_w1, grad_w2, grad_w3, *(None,) * 6


def _dot(a_MF: Tensor, b_MF: Tensor, inverse_TK: Tensor) -> Tensor:
    """<a[m], b[m]> of each row, as (T, K) in float32; in parts, so that the product is never whole in float32."""
    parts = max(1, inverse_TK.shape[1])
    dots_M = torch.cat([(a.float() * b).sum(dim=-1) for a, b in zip(a_MF.chunk(parts), b_MF.chunk(parts), strict=True)])
    return dots_M[inverse_TK]
