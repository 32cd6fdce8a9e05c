"""From tokens to rows in the order of experts, and back. No float atomics, no host read, the same bits each time.

`spread` and `collect` are each other's backward pass: the first copies a token to its rows, the second sums a token's
rows, in float32 (float64 where the layer runs in it) and in the order of the token's choices. Sums go through the
inverse permutation, so that nothing is ever added from two places at once.

Follows torchtitan's `TokenReorderer` and `_combine` (models/moe), whose scatter_add it replaces.

Shape suffixes: T tokens, D model width, E experts, K experts a token, M = T · K rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.moe.precision import no_autocast, wide


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

    Saves indices, and with weights x and weights.
    """
    rows_MD: Tensor = _Spread.apply(x_TD, weights_TK, dispatch.token, dispatch.order, dispatch.inverse)
    return rows_MD


def collect(rows_MD: Tensor, weights_TK: Tensor | None, dispatch: Dispatch) -> Tensor:
    """out (T, D) in rows' dtype: Σ_k weight · row in float32 in the order of k, one cast. Without weights: Σ_k row.

    Saves indices, and with weights rows and weights.
    """
    out_TD: Tensor = _Collect.apply(rows_MD, weights_TK, dispatch.token, dispatch.order, dispatch.inverse)
    return out_TD


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weights_TK: Tensor | None, token: Tensor, order: Tensor, inv: Tensor) -> Tensor:
        # Without weights x itself is not needed again, and may be freed.
        ctx.save_for_backward(None if weights_TK is None else x_TD, weights_TK, token, order, inv)
        return gather_rows(x_TD, weights_TK, token, order)

    @staticmethod
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weights_TK, _, _, inverse_TK = ctx.saved_tensors
        grad_x = sum_rows(grad_MD, weights_TK, inverse_TK) if ctx.needs_input_grad[0] else None
        grad_weights = None
        if ctx.needs_input_grad[1]:
            grad_weights = dot_rows(x_TD, grad_MD, inverse_TK).to(weights_TK.dtype)
        return grad_x, grad_weights, None, None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows_MD: Tensor, weights_TK: Tensor | None, token: Tensor, order: Tensor, inv: Tensor
    ) -> Tensor:
        ctx.save_for_backward(None if weights_TK is None else rows_MD, weights_TK, token, order, inv)
        return sum_rows(rows_MD, weights_TK, inv)

    @staticmethod
    def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
        rows_MD, weights_TK, token_M, order_M, inverse_TK = ctx.saved_tensors
        grad_rows = gather_rows(grad_TD, weights_TK, token_M, order_M) if ctx.needs_input_grad[0] else None
        grad_weights = None
        if ctx.needs_input_grad[1]:
            grad_weights = dot_rows(grad_TD, rows_MD, inverse_TK).to(weights_TK.dtype)
        return grad_rows, grad_weights, None, None, None


def gather_rows(x_TD: Tensor, weights_TK: Tensor | None, token_M: Tensor, order_M: Tensor) -> Tensor:
    """row m = x[token] · weight, (M, D) in x's dtype; no autograd."""
    rows_MD = x_TD.index_select(0, token_M)
    if weights_TK is None:
        return rows_MD
    # In place it multiplies in float32 and rounds once, too, but never holds (M, D) in float32.
    return rows_MD.mul_(weights_TK.flatten().index_select(0, order_M).unsqueeze(-1))


def sum_rows(
    rows_MD: Tensor, weights_TK: Tensor | None, inverse_TK: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """out[t] = Σ_k weight[t, k] · rows[inverse[t, k]], (T, D) in `dtype` or rows' own; no autograd."""
    tokens, top_k = inverse_TK.shape
    dtype = dtype or rows_MD.dtype
    if top_k == 1 and weights_TK is None:
        return rows_MD.index_select(0, inverse_TK[:, 0]).to(dtype)
    sum_TD = rows_MD.new_zeros((tokens, rows_MD.shape[1]), dtype=wide(dtype))
    for choice in range(top_k):  # one choice at a time: the (T, K, D) product is never whole in float32
        part_TD = rows_MD.index_select(0, inverse_TK[:, choice])
        if weights_TK is None:
            sum_TD = sum_TD.add_(part_TD)
        else:
            sum_TD = sum_TD.addcmul_(part_TD.to(sum_TD.dtype), weights_TK[:, choice, None].to(sum_TD.dtype))
    return sum_TD.to(dtype)


def dot_rows(x_TD: Tensor, rows_MD: Tensor, inverse_TK: Tensor) -> Tensor:
    """dot[t, k] = <x[t], rows[inverse[t, k]]>, (T, K) in float32 (float64); no autograd."""
    dtype = wide(x_TD.dtype)
    x_TD = x_TD.to(dtype)
    with no_autocast(x_TD.device):
        dots = [
            (x_TD * rows_MD.index_select(0, inverse_TK[:, choice])).sum(dim=-1) for choice in range(inverse_TK.shape[1])
        ]
        return torch.stack(dots, dim=1)
