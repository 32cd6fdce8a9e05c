"""The models whose MoE layers are built and guarded here, and the shapes that are guarded: records as in
`kernels.fp8.shapes`, with `shape.layer(device)` the layer with its routing.

Shape suffixes: T tokens, D model width, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from kernels.fp8.shapes import Device
from kernels.moe.config import MoEConfig
from kernels.moe.layer import MoE


def _qwen3(dim: int, experts: int, hidden: int) -> MoEConfig:
    return MoEConfig(dim=dim, hidden=hidden, experts=experts, top_k=8, normalise=True)


def _gpt_oss(dim: int, experts: int) -> MoEConfig:
    return MoEConfig(dim=dim, hidden=2880, experts=experts, top_k=4, normalise=True, gate_bias=True, clamped=True)


def _llama4(dim: int, experts: int, hidden: int) -> MoEConfig:
    return MoEConfig(dim=dim, hidden=hidden, experts=experts, top_k=1, shared=1, score="sigmoid", weight_before=True)


MODELS: dict[str, MoEConfig] = {
    "dsv3-debug": MoEConfig(dim=256, hidden=256, experts=8, top_k=3, shared=2),
    # deepseek-v3's router, at a size that a CPU checks: experts of the best groups alone.
    "dsv3-debug-groups": MoEConfig(
        dim=256, hidden=64, experts=16, top_k=3, shared=1, score="sigmoid", groups=4, kept_groups=2, normalise=True,
        scale=2.5,
    ),
    "deepseek-16b": MoEConfig(dim=2048, hidden=1408, experts=64, top_k=6, shared=2),
    "deepseek-236b": MoEConfig(
        dim=5120, hidden=1536, experts=160, top_k=6, shared=2, groups=8, kept_groups=3, scale=16.0
    ),
    "deepseek-v3": MoEConfig(
        dim=7168, hidden=2048, experts=256, top_k=8, shared=1, score="sigmoid", groups=8, kept_groups=4, normalise=True,
        scale=2.5,
    ),
    "qwen3-debug": _qwen3(256, 64, 768),
    "qwen3-30b-a3b": _qwen3(2048, 128, 768),
    "qwen3-235b-a22b": _qwen3(4096, 128, 1536),
    "gpt-oss-debug": _gpt_oss(256, 8),
    "gpt-oss-20b": _gpt_oss(2880, 32),
    "gpt-oss-120b": _gpt_oss(2880, 128),
    "llama4-debug": _llama4(256, 8, 512),
    "llama4-16e": _llama4(5120, 16, 8192),
    "llama4-128e": _llama4(5120, 128, 8192),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------
# Shapes that are guarded.

Routing = Literal["balanced", "learned", "hot"]
Load = Literal["learned", "hot", "half"]
LOADS: tuple[Load, ...] = get_args(Load)

_FAR = 1e3  # far above any difference of scores: the choice hangs on it alone


@torch.no_grad()
def set_load(layer: MoE, load: Load) -> None:
    """Which experts get tokens: as the scores say; the same `top_k` all of them; the lower half of the experts, the
    others none. By `expert_bias` alone, so that inputs and weights stay as they are."""
    experts = layer.config.experts
    bias_E = layer.expert_bias.zero_()
    if load == "hot":
        bias_E.copy_(torch.arange(experts, 0, -1) * _FAR)
    elif load == "half":
        bias_E[max(layer.config.top_k, experts // 2) :] = -_FAR


@dataclass(frozen=True)
class LayerShape:
    """One MoE layer on so many tokens.

    Attributes:
        routing: "balanced": round the experts; "learned": as the scores say, uneven; "hot": `expert_bias` sends
            every token to the same `top_k` experts, and the others stay empty.
        hidden: narrower experts than the model's, where a CPU has to check them in float64.
    """

    model: str
    tokens: int
    routing: Routing = "balanced"
    hidden: int | None = None

    @property
    def config(self) -> MoEConfig:
        moe = MODELS[self.model]
        return replace(moe, balanced=self.routing == "balanced", hidden=self.hidden or moe.hidden)

    def layer(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> MoE:
        layer = MoE(self.config, device=device, dtype=dtype)
        if self.routing == "hot":
            set_load(layer, "hot")
        return layer

    def inputs(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(self.tokens, self.config.dim, device=device, dtype=dtype)

    @property
    def rows_an_expert(self) -> float:
        """Rows of an expert, on average over all."""
        return self.tokens * self.config.top_k / self.config.experts

    @property
    def flop(self) -> int:
        """Of one forward pass: the experts' three matmuls, shared ones included, and the gate. Backward is twice."""
        config = self.config
        rows = self.tokens * (config.top_k + config.shared)
        return 2 * rows * config.dim * config.hidden * 3 + 2 * self.tokens * config.dim * config.experts

    def __str__(self) -> str:
        narrow = "" if self.hidden is None else f"-f{self.hidden}"
        return f"{self.model}{narrow}-t{self.tokens}-{self.routing}"


# Timed on a GPU: the layer shapes of the contract.
LAYERS = (
    LayerShape("qwen3-30b-a3b", 8192),  # many small experts
    LayerShape("qwen3-30b-a3b", 8192, "hot"),  # 8 experts hold all, 120 are empty
    LayerShape("deepseek-16b", 8192),  # shared experts
    LayerShape("deepseek-16b", 8192, "hot"),
    LayerShape("gpt-oss-20b", 4096),  # biases, clamped, a width that is no multiple of 128
    LayerShape("llama4-16e", 16384),  # top 1, weight before, large experts
    LayerShape("qwen3-30b-a3b", 1),  # decode: weights alone
    LayerShape("qwen3-30b-a3b", 8),
    LayerShape("qwen3-30b-a3b", 64),
)

# Checked on a CPU, where a debug layer takes milliseconds.
LAYERS_DEBUG = (
    LayerShape("dsv3-debug", 96, "learned"),  # uneven groups
    LayerShape("dsv3-debug", 96, "hot"),  # 3 experts hold all, 5 are empty
    LayerShape("dsv3-debug-groups", 40, "learned"),  # experts outside of the best groups may not be chosen
    LayerShape("qwen3-debug", 24, "learned", hidden=48),  # 64 experts: a few rows in each, none in some
    LayerShape("gpt-oss-debug", 24, "learned", hidden=360),
    LayerShape("llama4-debug", 64, "learned"),
    LayerShape("llama4-debug", 1, "learned"),  # one token
)
