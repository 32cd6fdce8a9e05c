"""An MoE layer and its parts, bf16, forward and backward; on a CPU in torch operators. Counts and bytes, no times."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from kernels.moe import MoE, MoEConfig, plan, reference, spread
from kernels.moe.experts import SharedExperts

CONFIG = MoEConfig(dim=64, hidden=48, experts=8, top_k=2, shared=1, normalise=True, balanced=True)
# Wide enough that what is made too many of is above a GPU's floor of 1 MiB.
WIDE = MoEConfig(dim=256, hidden=192, experts=16, top_k=4, shared=1, normalise=True, balanced=True)


def config(perfguard: Any) -> MoEConfig:
    return CONFIG if perfguard.device.type == "cpu" else WIDE


def tokens(perfguard: Any, count: int, width: int) -> torch.Tensor:
    count = count if perfguard.device.type == "cpu" else 16 * count
    return torch.randn(count, width, device=perfguard.device, dtype=torch.bfloat16)


@pytest.mark.parametrize("count", [32, 64])
def test_layer(perfguard: Any, count: int) -> None:
    """Balanced: eight rows an expert or more, so that errors of gradients average out."""
    layer = MoE(config(perfguard), device=perfguard.device, dtype=torch.bfloat16).eval()
    x = tokens(perfguard, count, layer.config.dim).requires_grad_()
    perfguard(layer, x, reference=functools.partial(reference.moe, layer), timed=False)


def test_spread(perfguard: Any) -> None:
    """Tokens to their rows alone: knows nothing of routers and experts."""
    each = config(perfguard)
    x = tokens(perfguard, 32, each.dim).requires_grad_()
    ids = torch.rand(len(x), each.experts, device=x.device).argsort(dim=1)[:, : each.top_k].contiguous()
    dispatch = plan(ids, each.experts)
    perfguard(
        lambda x: spread(x, None, dispatch),
        x,
        reference=lambda x: x[dispatch.token],
        timed=False,
    )


def test_shared(perfguard: Any) -> None:
    """The shared expert alone: ordinary matmuls, and no dispatch."""
    each = config(perfguard)
    shared = SharedExperts(each, device=perfguard.device, dtype=torch.bfloat16)
    for weight in shared.parameters():
        torch.nn.init.normal_(weight, std=0.05)
    x = tokens(perfguard, 32, each.dim).requires_grad_()

    def truth(x: torch.Tensor) -> torch.Tensor:
        w1, w2, w3 = (weight.to(x.dtype) for weight in (shared.w1, shared.w2, shared.w3))
        hidden = torch.nn.functional.silu(x @ w1.t()) * (x @ w3.t())
        return hidden @ w2.t()

    perfguard(shared, x, reference=truth, timed=False)
