"""The layer in plain torch operators, differentiated by autograd: the eager truth, in float64 the oracle.

Takes the weights from a `MoE`, runs in x's own dtype (the gate in float32 at least), and reads counts on the host.
Shares nothing with the layer but its configuration: its dispatch and combine are torch's indexing.

Shape suffixes: T tokens, D model width, E experts, K experts a token, M = T · K rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.moe.config import MoEConfig
from kernels.moe.gpt_oss import ClampedExperts
from kernels.moe.layer import MoE
from kernels.moe.matmul import GroupedMatmul
from kernels.moe.precision import wide
from kernels.moe.router import Router, Routing


def moe(layer: MoE, x_TD: Tensor, multiply: GroupedMatmul | None = None) -> Tensor:
    """What `layer(x)` returns, (T, D).

    multiply: (a (R, K), b (E, K, N), offs (E,)) -> (R, N), for SwiGLU experts whose matmuls are others than x's dtype
    has: `fp8.reference.grouped_mm` is the truth of a layer in fp8.
    """
    config = layer.config
    weights_TK, ids_TK, _ = route(layer.router, x_TD, layer.expert_bias)
    position_M = ids_TK.flatten().argsort(stable=True)
    sizes = ids_TK.flatten().bincount(minlength=config.experts).tolist()
    rows_MD = x_TD[position_M // config.top_k]
    weights_M1 = weights_TK.flatten()[position_M].unsqueeze(-1)
    if config.weight_before:
        rows_MD = (rows_MD * weights_M1).to(x_TD.dtype)
    if multiply is None:
        y_MD = torch.cat([_expert(layer, number, x) for number, x in enumerate(rows_MD.split(sizes))])
    else:
        y_MD = _together(layer, rows_MD, sizes, multiply)
    if not config.weight_before:
        y_MD = y_MD * weights_M1
    # Stable again: back in the order of tokens and choices.
    y_TKD = y_MD[position_M.argsort(stable=True)].view(*ids_TK.shape, config.dim)
    out_TD = y_TKD.to(weights_TK.dtype).sum(dim=1).to(x_TD.dtype)
    if layer.shared is None:
        return out_TD
    return out_TD + swiglu(x_TD, layer.shared.w1, layer.shared.w2, layer.shared.w3)


def route(router: Router, x_TD: Tensor, expert_bias_E: Tensor | None = None) -> Routing:
    """What `router(x, expert_bias)` returns; among equal scores it chooses as it likes."""
    config = router.config
    dtype = wide(x_TD.dtype)
    bias_E = None if router.bias is None else router.bias.to(dtype)
    logits_TE = F.linear(x_TD.to(dtype), router.weight.to(dtype), bias_E)
    scores_TE = logits_TE.sigmoid() if config.score == "sigmoid" else logits_TE.softmax(dim=-1)
    biased_TE = scores_TE.detach() if expert_bias_E is None else scores_TE.detach() + expert_bias_E
    if config.groups > 1:
        biased_TE = _within_groups(biased_TE, config)
    ids_TK = biased_TE.topk(config.top_k, dim=-1).indices
    if config.balanced:
        rows = torch.arange(ids_TK.numel(), device=x_TD.device)
        ids_TK = rows.view(ids_TK.shape) % config.experts
    weights_TK = scores_TE.gather(1, ids_TK)
    if config.normalise:
        weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + 1e-20)
    return Routing(weights_TK * config.scale, ids_TK, scores_TE)


def _within_groups(biased_TE: Tensor, config: MoEConfig) -> Tensor:
    group_E = torch.arange(config.experts, device=biased_TE.device) // (config.experts // config.groups)
    score_TG = torch.stack(
        [biased_TE[:, group_E == group].topk(2).values.sum(dim=-1) for group in range(config.groups)], dim=1
    )
    kept_TG = score_TG.topk(config.kept_groups).indices
    allowed_TE = (kept_TG.unsqueeze(-1) == group_E).any(dim=1)
    return biased_TE.where(allowed_TE, -torch.inf)


def _expert(layer: MoE, number: int, x: Tensor) -> Tensor:
    experts = layer.experts
    if not isinstance(experts, ClampedExperts):
        return swiglu(x, experts.w1[number], experts.w2[number], experts.w3[number])
    weights = (experts.gate_up, experts.gate_up_bias, experts.down, experts.down_bias)
    gate_up, gate_up_bias, down, down_bias = (weight[number].to(x.dtype) for weight in weights)
    gate, up = F.linear(x, gate_up, gate_up_bias).unflatten(-1, (-1, 2)).unbind(-1)
    gate, up = gate.clamp(max=experts.limit), up.clamp(-experts.limit, experts.limit)
    return F.linear((up + 1) * gate * torch.sigmoid(experts.alpha * gate), down, down_bias)


def _together(layer: MoE, rows_MD: Tensor, sizes: list[int], multiply: GroupedMatmul) -> Tensor:
    experts = layer.experts
    if isinstance(experts, ClampedExperts):
        raise ValueError("multiply: is for SwiGLU experts; leave it out for clamped ones")
    offs_E = torch.tensor(sizes, device=rows_MD.device).cumsum(0).int()
    w1, w2, w3 = (weight.to(rows_MD.dtype).mT for weight in (experts.w1, experts.w2, experts.w3))
    hidden_MF = F.silu(multiply(rows_MD, w1, offs_E)) * multiply(rows_MD, w3, offs_E)
    return multiply(hidden_MF, w2, offs_E)


def swiglu(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """One expert, in x's dtype."""
    hidden = F.silu(F.linear(x, w1.to(x.dtype))) * F.linear(x, w3.to(x.dtype))
    return F.linear(hidden, w2.to(x.dtype))
