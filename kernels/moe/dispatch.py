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

from kernels.launch import operator
from kernels.moe.rows import spread_rows, spread_rows_and_dot, sum_rows, sum_rows_and_dot
from kernels.operators.scatter import place_rows


class Dispatch(NamedTuple):
    """Where rows come from and where they go; stable: rows of an expert lie in the order of tokens and choices.

    inverse  (T, K)  int64, choice -> row
    counts   (E,)    int64, rows of each expert
    offs     (E,)    int32, running end of each expert's rows

    What follows from these is counted when it is asked for.
    """

    inverse: Tensor
    counts: Tensor
    offs: Tensor

    @property
    def order(self) -> Tensor:
        """(M,) int64, row -> position in the flattened ids."""
        place_M = torch.arange(self.inverse.numel(), device=self.inverse.device)
        return torch.empty_like(place_M).scatter(0, self.inverse.flatten(), place_M)

    @property
    def token(self) -> Tensor:
        """(M,) int64, row -> token."""
        return self.order.div(self.inverse.shape[1], rounding_mode="floor")

    @property
    def expert(self) -> Tensor:
        """(M,) int64, row -> expert, non-decreasing; E behind the last expert's rows."""
        row_M = torch.arange(self.inverse.numel(), dtype=self.offs.dtype, device=self.offs.device)
        return torch.searchsorted(self.offs, row_M, right=True)


def plan(ids_TK: Tensor, experts: int) -> Dispatch:
    """ids (T, K) int64 or int32 in [0, E), E = `experts` -> `Dispatch`.

    An expert may be there more than once in a row of ids: each time is a row of its own. A choice out of range has a
    row behind those of all experts, which grouped products give as zero.
    """
    return Dispatch(*_plan(ids_TK, experts))


@operator("moe_plan")
def _plan(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    inverse, offs, counts = place_rows(ids.flatten(), experts)
    return inverse.view(ids.shape), counts.long(), offs


@_plan.register_fake
def _plan_outputs(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    ends = ids.new_empty(experts, dtype=torch.int32)
    return ids.new_empty(ids.shape, dtype=torch.int64), torch.empty_like(ends, dtype=torch.int64), ends


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
