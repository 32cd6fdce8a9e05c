"""Balance without a loss: tokens are counted in forward, and a bias moves the choice before each optimiser step.

    δ = coeff · sign(mean − count),  δ −= mean(δ),  bias += δ,  counts = 0

Follows DeepSeek-V3 (arXiv 2412.19437, 2.1.2) and torchtitan's `_update_expert_bias` (components/optimizer).
Over several ranks the counts would have to be summed first; that is left to whoever spreads experts over ranks.

Shape suffixes: E experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kernels.launch import operator

COEFFICIENT = 1e-3


@operator("moe_count_tokens", mutates=("counter",))
def count_tokens(counter: Tensor, counts: Tensor) -> None:
    """counter (E,) float32 += counts (E,) int64, but not while a backward pass runs: what runs the forward then is
    activation checkpointing, which recomputes what was counted. An operator, so that a compiled graph asks too."""
    if torch._C._current_graph_task_id() == -1:
        counter.add_(counts)


@count_tokens.register_fake
def _(counter: Tensor, counts: Tensor) -> None:
    return None


@torch.no_grad()
def update_expert_bias(module: nn.Module, coefficient: float = COEFFICIENT) -> None:
    """Move `expert_bias` of every MoE layer in `module` towards its idle experts, and start counting anew."""
    for layer in module.modules():
        counts_E, bias_E = getattr(layer, "tokens_per_expert", None), getattr(layer, "expert_bias", None)
        if not isinstance(counts_E, Tensor) or not isinstance(bias_E, Tensor):
            continue
        delta_E = coefficient * torch.sign(counts_E.mean() - counts_E)
        bias_E.add_(delta_E - delta_E.mean())
        counts_E.zero_()


def update_before_step(
    optimizer: torch.optim.Optimizer, module: nn.Module, coefficient: float = COEFFICIENT
) -> RemovableHandle:
    """Call `update_expert_bias(module)` before each step of `optimizer`, until the handle is removed."""

    def update(*_: Any) -> None:
        update_expert_bias(module, coefficient)

    return optimizer.register_step_pre_hook(update)
