"""Which experts tokens choose, with which weights, and the gradient of the gate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.moe import MoEConfig, Router, Routing, reference


def routed(routing: Routing) -> dict[str, torch.Tensor]:
    """The experts of a token in the order of their numbers, and all scores."""
    return {"chosen experts": routing.ids.sort(-1).values, "scores": routing.scores}


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_router(perfguard: Any, score: Any) -> None:
    """1,024 tokens, 64 experts, 6 a token."""
    config = MoEConfig(dim=128, hidden=32, experts=64, top_k=6, score=score)
    router = Router(config, device=perfguard.device, dtype=torch.bfloat16)
    with torch.no_grad():
        router.weight.normal_(std=0.1)

    class Routed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = router

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return routed(self.gate(x))

    x = torch.randn(1024, config.dim, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    perfguard(Routed(), x, reference=lambda x: routed(reference.route(router, x)), timed=False)
