"""Small MoE layers of every kind, and the dense oracle: every expert on every token, in float64.

The oracle shares no step with the layer: no sort, no gather, no groups of rows. What a token did not choose has
weight 0.

Shape suffixes: T tokens, D model width, E experts, K experts a token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.moe import ClampedExperts, MoE, MoEConfig

CONFIGS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax-norm": {"normalise": True},
    "sigmoid": {"score": "sigmoid", "scale": 2.5, "normalise": True},
    "groups": {"score": "sigmoid", "groups": 4, "kept_groups": 2, "normalise": True, "scale": 2.5},
    "shared": {"shared": 2, "scale": 16.0},
    "weight-before": {"score": "sigmoid", "top_k": 1, "shared": 1, "weight_before": True},
    "weight-before-top2": {"top_k": 2, "weight_before": True},
    "gpt-oss": {"clamped": True, "gate_bias": True, "normalise": True, "limit": 0.5},
    "one-expert": {"experts": 1, "top_k": 1},
    "all-experts": {"experts": 4, "top_k": 4},
}


def config(name: str = "softmax", **changes: Any) -> MoEConfig:
    return MoEConfig(**{"dim": 32, "hidden": 48, "experts": 8, "top_k": 3, **CONFIGS[name], **changes})


def build(config: MoEConfig, dtype: torch.dtype = torch.bfloat16, **options: Any) -> MoE:
    """A layer whose weights are large enough that activations are of order 1, biases included."""
    layer = MoE(config, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(
                torch.randn(parameter.shape) * (0.5 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5)
            )
    return layer


def tokens(count: int, dtype: torch.dtype = torch.bfloat16, dim: int = 32) -> Tensor:
    return torch.randn(count, dim).to(dtype).requires_grad_()


def as_double(layer: MoE) -> MoE:
    """The same layer on the loop path in float64, counters apart."""
    double = MoE(layer.config, dtype=torch.float64, loop=True).train(layer.training)
    double.load_state_dict(layer.state_dict())
    return double


def gradients(layer: MoE, output: Tensor, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """By name; a gradient that is missing is an error."""
    names = ["x", *(name for name, _ in layer.named_parameters())]
    found = torch.autograd.grad(output, [x, *layer.parameters()], grad.to(output.dtype))
    return dict(zip(names, found, strict=True))


def dense(layer: MoE, x_TD: Tensor, ids_TK: Tensor) -> Tensor:
    """The layer's output by definition, for this choice of experts; differentiable in x and the layer's weights."""
    config, router = layer.config, layer.router
    logits_TE = x_TD @ router.weight.t() + (0 if router.bias is None else router.bias)
    scores_TE = logits_TE.sigmoid() if config.score == "sigmoid" else logits_TE.softmax(-1)
    chosen_TE = (torch.arange(config.experts) == ids_TK.unsqueeze(-1)).any(dim=1)
    weights_TE = scores_TE * chosen_TE
    if config.normalise:
        weights_TE = weights_TE / weights_TE.sum(-1, keepdim=True)
    weights_TE = weights_TE * config.scale
    out_TD = torch.zeros_like(x_TD)
    for expert in range(config.experts):
        weight_T1, chosen_T1 = weights_TE[:, expert, None], chosen_TE[:, expert, None]
        if config.weight_before:
            out_TD = out_TD + one_expert(layer, expert, x_TD * weight_T1) * chosen_T1
        else:
            out_TD = out_TD + one_expert(layer, expert, x_TD) * weight_T1
    if layer.shared is None:
        return out_TD
    return out_TD + swiglu(x_TD, layer.shared.w1, layer.shared.w2, layer.shared.w3)


def one_expert(layer: MoE, expert: int, x: Tensor) -> Tensor:
    experts = layer.experts
    if not isinstance(experts, ClampedExperts):
        return swiglu(x, experts.w1[expert], experts.w2[expert], experts.w3[expert])
    gate_up = x @ experts.gate_up[expert].t() + experts.gate_up_bias[expert]
    gate = gate_up[:, 0::2].clamp(max=experts.limit)
    up = gate_up[:, 1::2].clamp(-experts.limit, experts.limit)
    hidden = (up + 1) * gate * torch.sigmoid(experts.alpha * gate)
    return hidden @ experts.down[expert].t() + experts.down_bias[expert]


def swiglu(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    gate = x @ w1.t()
    return (gate * torch.sigmoid(gate) * (x @ w3.t())) @ w2.t()


def rmse(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).square().mean().sqrt())
