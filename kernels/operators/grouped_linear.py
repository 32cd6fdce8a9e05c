"""A linear layer a group of rows, whose weight gradients may be put off.

    y[m] = x[m] @ weight[g].T for the rows m of group g,  dx[m] = dy[m] @ weight[g],  dweight[g] = dy_g.T @ x_g

Matrix products are those of `kernels.grouped`. Saved for backward: x, the weight by reference, offs. Origin: the expert
linears of Megatron and torchtitan, deferred as in DualPipe.

Shape suffixes: R rows, G groups, I input width, O output width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.arguments import in_autocast_dtype, refuse_second_derivative, require_positive
from kernels.grouped import grouped_mm
from kernels.grouped.reference import grouped_mm as grouped_mm_by_loop
from kernels.operators.weight_grad_store import WeightGradStore, accumulate


def reference(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """The truth, differentiable: a loop over groups. x (R, I), weight (G, O, I), offs (G,) int32 -> (R, O)."""
    return grouped_mm_by_loop(x, weight.mT, offs)


class GroupedLinear(torch.nn.Module):
    """weight (G, O, I); x (R, I), offs (G,) int32 -> (R, O).

    Rows past offs[-1] are zero in the output and in the gradient of x, and harm nothing, NaN or not. A group without
    rows has a weight gradient of zero, as has every group of no rows at all.

    With a `store` that is enabled during backward, the weight gradient is queued there and comes to `weight.grad` at
    its `pop`, bit for bit what autograd would have added, when pops come in the order of the backwards. Hooks on the
    weight need the gradient in the backward pass: with an enabled store they are refused. A store is for eager mode.
    """

    def __init__(
        self,
        groups: int,
        in_features: int,
        out_features: int,
        *,
        store: WeightGradStore | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for value, name in ((groups, "groups"), (in_features, "in_features"), (out_features, "out_features")):
            require_positive(value, name)
        self.store = store
        self.weight = torch.nn.Parameter(torch.empty(groups, out_features, in_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1 / sqrt(in_features), as `torch.nn.Linear` begins."""
        bound = 1 / math.sqrt(self.weight.shape[2])
        torch.nn.init.uniform_(self.weight, -bound, bound)

    def extra_repr(self) -> str:
        groups, outputs, inputs = self.weight.shape
        return f"groups={groups}, in_features={inputs}, out_features={outputs}, deferred={self.store is not None}"

    def forward(self, x: Tensor, offs: Tensor) -> Tensor:
        x, weight = in_autocast_dtype(x), in_autocast_dtype(self.weight)
        if self.store is None:
            return grouped_mm(x, weight.mT, offs)
        return _multiply_deferrably(x, self.weight, weight.detach(), offs, self.store)


@torch.compiler.disable(reason="a WeightGradStore keeps Python closures: it works in eager mode only")
def _multiply_deferrably(x: Tensor, weight: Tensor, taken: Tensor, offs: Tensor, store: WeightGradStore) -> Tensor:
    product: Tensor = _Deferrable.apply(x, weight, taken, offs, store)
    return product


class _Deferrable(torch.autograd.Function):
    """`grouped_mm(x, taken.mT, offs)`, with a backward that asks the store; `taken` is the weight in the dtype of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, taken: Tensor, offs: Tensor, store: WeightGradStore) -> Tensor:
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x or needs_weight else None, offs)
        ctx.store = store
        return grouped_mm(x, taken.mT, offs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:  # type: ignore[override]
        refuse_second_derivative("GroupedLinear", "what a store puts off has no graph", "a layer without a store")
        x, weight, offs = ctx.saved_tensors
        dx = grouped_mm(grad, weight.to(grad.dtype), offs) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return dx, None, None, None, None
        if not ctx.store.enabled:
            return dx, grouped_mm(grad.t(), x, offs).to(weight.dtype), None, None, None
        _require_plain_leaf(weight)
        ctx.store.put(_WeightGradient(weight, grad, x, offs), holds=(grad, x))
        return dx, None, None, None, None


def _require_plain_leaf(weight: Tensor) -> None:
    if not weight.is_leaf:
        raise RuntimeError(
            "weight: is computed from something else, which would not get its gradient; defer leaves only"
        )
    if weight._backward_hooks or weight._post_accumulate_grad_hooks:
        raise RuntimeError(
            "weight: has gradient hooks, which run in the backward pass, before a deferred gradient is there; "
            "remove them, or leave the store disabled"
        )


@dataclass(frozen=True)
class _WeightGradient:
    """Adds dy.T @ x by group to `weight.grad`; refuses if what it holds was written since."""

    weight: Tensor
    grad: Tensor
    x: Tensor
    offs: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self._versions())

    def _versions(self) -> tuple[int, ...]:
        return tuple(tensor._version for tensor in (self.grad, self.x, self.offs))

    def __call__(self) -> None:
        if self._versions() != self.versions:  # type: ignore[attr-defined]
            raise RuntimeError(
                "store: the layer's input, output gradient or offs was modified in place between backward and pop(); "
                "pop first, or give the layer a copy"
            )
        accumulate(self.weight, grouped_mm(self.grad.t(), self.x, self.offs).to(self.weight.dtype))
