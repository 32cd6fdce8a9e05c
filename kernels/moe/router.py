"""The router: which experts a token goes to, and with which weights.

The gate is counted in float32, also under autocast, because bf16 logits move the chosen set of some tokens in a
hundred (3.7 % at 4096 x 2048 and 128 experts). Equal scores go to the expert of the lower number, so that every
device and every way of running chooses alike. Whoever sets torch's float32 matmul precision below "highest" gives
this up: the gate then runs in TF32.

Follows torchtitan's `TokenChoiceTopKRouter` (models/moe), and DeepSeek-V3 (arXiv 2412.19437, 2.1.2) for the bias
that only chooses and for limited groups.

Shape suffixes: T tokens, D model width, E experts, K experts a token, G groups of experts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.moe.config import MoEConfig
from kernels.moe.precision import no_autocast, wide

_SUM_FLOOR = 1e-20  # keeps a token whose weights are all 0 from dividing by 0


class Routing(NamedTuple):
    """What the router says.

    weights  (T, K)  float32 (float64 where x is), contiguous; differentiable
    ids      (T, K)  int64, contiguous, best first; distinct in a row
    scores   (T, E)  float32, before the bias; differentiable
    """

    weights: Tensor
    ids: Tensor
    scores: Tensor


class Router(nn.Module):
    """x (T, D) and expert_bias (E,) or None -> `Routing`."""

    def __init__(
        self, config: MoEConfig, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.experts, config.dim, device=device, dtype=dtype))
        bias = nn.Parameter(torch.empty(config.experts, device=device, dtype=dtype)) if config.gate_bias else None
        self.bias = bias

    def forward(self, x_TD: Tensor, expert_bias_E: Tensor | None = None) -> Routing:
        config = self.config
        with no_autocast(x_TD.device):
            logits_TE = gate(x_TD, self.weight, self.bias)
            scores_TE = logits_TE.sigmoid() if config.score == "sigmoid" else logits_TE.softmax(dim=-1)
            if config.balanced:
                ids_TK = balanced_ids(x_TD.shape[0], config, x_TD.device)
            else:
                ids_TK = choose(scores_TE.detach(), expert_bias_E, config)
            return Routing(weights_of(scores_TE, ids_TK, config), ids_TK, scores_TE)


def gate(x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None) -> Tensor:
    """x · weightᵀ + bias in float32 (float64 where x is), (T, E). Saves x and weight as they are, no wide copy."""
    logits_TE: Tensor = _Gate.apply(x_TD, weight_ED, bias_E)
    return logits_TE


class _Gate(torch.autograd.Function):
    """F.linear of widened operands, which would keep x (T, D) in float32 for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_ED: Tensor, bias_E: Tensor | None) -> Tensor:
        dtype = wide(x_TD.dtype)
        ctx.save_for_backward(x_TD, weight_ED)
        ctx.bias_dtype = None if bias_E is None else bias_E.dtype
        return F.linear(x_TD.to(dtype), weight_ED.to(dtype), None if bias_E is None else bias_E.to(dtype))

    @staticmethod
    def backward(ctx: Any, grad_TE: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_TD, weight_ED = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        with no_autocast(x_TD.device):  # the engine may run inside the user's autocast
            if ctx.needs_input_grad[0]:
                grad_x = (grad_TE @ weight_ED.to(grad_TE.dtype)).to(x_TD.dtype)
            if ctx.needs_input_grad[1]:
                grad_weight = (grad_TE.t() @ x_TD.to(grad_TE.dtype)).to(weight_ED.dtype)
            if ctx.needs_input_grad[2]:
                grad_bias = grad_TE.sum(dim=0).to(ctx.bias_dtype)
        return grad_x, grad_weight, grad_bias


def choose(scores_TE: Tensor, expert_bias_E: Tensor | None, config: MoEConfig) -> Tensor:
    """The experts of each token, (T, K) int64: the best by scores + expert_bias, within the best groups."""
    biased_TE = scores_TE if expert_bias_E is None else scores_TE + expert_bias_E
    if config.groups > 1:
        biased_TE = _limit_groups(biased_TE, config)
    return _best(biased_TE, config.top_k)


def _limit_groups(biased_TE: Tensor, config: MoEConfig) -> Tensor:
    """−inf outside of each token's best groups; a group scores the sum of its two best experts."""
    grouped_TGN = biased_TE.view(biased_TE.shape[0], config.groups, config.experts // config.groups)
    score_TG = grouped_TGN.topk(2, dim=-1).values.sum(dim=-1)
    kept = _best(score_TG, config.kept_groups)
    dropped_TG = torch.ones_like(score_TG, dtype=torch.bool).scatter(1, kept, False)
    return grouped_TGN.masked_fill(dropped_TG.unsqueeze(-1), -torch.inf).view(biased_TE.shape)


def _best(values: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest in each row, the lower index first among equals: topk leaves that open.

    A copy, since a view of the sorted whole would keep all of it alive until the backward pass.
    """
    indices = values.sort(dim=-1, descending=True, stable=True).indices
    return indices[:, :count].clone(memory_format=torch.contiguous_format)


def balanced_ids(tokens: int, config: MoEConfig, device: torch.device) -> Tensor:
    """(t · top_k + j) mod E for token t and choice j: every expert gets its share, to one row."""
    return (torch.arange(tokens * config.top_k, device=device) % config.experts).view(tokens, config.top_k)


def weights_of(scores_TE: Tensor, ids_TK: Tensor, config: MoEConfig) -> Tensor:
    """The weights of the chosen experts: their scores, without the bias."""
    weights_TK = scores_TE.gather(1, ids_TK)
    if config.normalise:
        weights_TK = weights_TK / (weights_TK.sum(dim=-1, keepdim=True) + _SUM_FLOOR)
    return weights_TK if config.scale == 1.0 else weights_TK * config.scale
