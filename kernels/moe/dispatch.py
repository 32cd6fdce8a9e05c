"""From tokens to rows in the order of experts, and back. No float atomics, no host read, the same bits each time.

`spread` and `collect` are each other's backward pass: the first copies a token to its rows, the second sums a token's
rows, in float32 (float64 where the layer runs in it) and in the order of the token's choices. Both go through the
inverse permutation, token by token, so that nothing is ever added from two places at once; each is one kernel, and
so is its backward pass (`rows.py`).

Follows torchtitan's `TokenReorderer` and `_combine` (models/moe), whose scatter_add it replaces.

Shape suffixes: T tokens, D model width, E experts, K experts a token, M = T · K rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.moe.rows import spread_rows, spread_rows_and_dot, sum_rows, sum_rows_and_dot


class Dispatch(NamedTuple):
    """Where rows come from and where they go.

    order    (M,)    int64, row -> position in the flattened ids; stable: rows of an expert lie in token order
    token    (M,)    int64, row -> token
    inverse  (T, K)  int64, choice -> row
    expert   (M,)    int64, row -> expert, non-decreasing
    counts   (E,)    int64, rows of each expert
    offs     (E,)    int32, running end of each expert's rows
    """

    order: Tensor
    token: Tensor
    inverse: Tensor
    expert: Tensor
    counts: Tensor
    offs: Tensor


def plan(ids_TK: Tensor, experts: int) -> Dispatch:
    """ids (T, K), distinct in each row and below `experts` -> `Dispatch`."""
    tokens, top_k = ids_TK.shape
    chosen_TE = torch.zeros(tokens, experts, dtype=torch.bool, device=ids_TK.device).scatter(1, ids_TK, True)
    counts_E = chosen_TE.sum(dim=0)
    # The running end needs 31 bits: torch's and our grouped matmuls take int32.
    offs_E = counts_E.cumsum(dim=0).to(torch.int32)
    expert_M, order_M = ids_TK.flatten().sort(stable=True)
    rows_M = torch.arange(order_M.numel(), device=ids_TK.device)
    inverse_M = torch.empty_like(order_M).scatter(0, order_M, rows_M)
    token_M = order_M.div(top_k, rounding_mode="floor")
    return Dispatch(order_M, token_M, inverse_M.view(tokens, top_k), expert_M, counts_E, offs_E)


def spread(x_TD: Tensor, weights_TK: Tensor | None, dispatch: Dispatch) -> Tensor:
    """rows (M, D) in x's dtype: each row its token, times its weight (in float32, one cast) where there is one.

    Saves where rows go, and with weights x and weights.
    """
    rows_MD: Tensor = _Spread.apply(x_TD, weights_TK, dispatch.inverse)
    return rows_MD


def collect(rows_MD: Tensor, weights_TK: Tensor | None, dispatch: Dispatch) -> Tensor:
    """out (T, D) in rows' dtype: Σ_k weight · row in float32 in the order of k, one cast. Without weights: Σ_k row.

    Saves where rows lie, and with weights rows and weights.
    """
    out_TD: Tensor = _Collect.apply(rows_MD, weights_TK, dispatch.inverse)
    return out_TD


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weights_TK: Tensor | None, inverse_TK: Tensor) -> Tensor:
        # Without weights x itself is not needed again, and may be freed.
        ctx.save_for_backward(None if weights_TK is None else x_TD, weights_TK, inverse_TK)
        return spread_rows(x_TD, weights_TK, inverse_TK)

    @staticmethod
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_TD, weights_TK, inverse_TK = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return sum_rows(grad_MD, weights_TK, inverse_TK), None, None
        grad_x, dots_TK = sum_rows_and_dot(grad_MD, weights_TK, inverse_TK, x_TD)
        return grad_x, dots_TK.to(weights_TK.dtype), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_MD: Tensor, weights_TK: Tensor | None, inverse_TK: Tensor) -> Tensor:
        ctx.save_for_backward(None if weights_TK is None else rows_MD, weights_TK, inverse_TK)
        return sum_rows(rows_MD, weights_TK, inverse_TK)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows_MD, weights_TK, inverse_TK = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return spread_rows(grad_TD, weights_TK, inverse_TK), None, None
        grad_rows, dots_TK = spread_rows_and_dot(grad_TD, weights_TK, inverse_TK, rows_MD)
        return grad_rows, dots_TK.to(weights_TK.dtype), None
