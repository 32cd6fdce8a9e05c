"""The MoE layer: router, dispatch, experts, combine, shared experts.

    out[t] = Σ_k weight[t, k] · expert_{ids[t, k]}(x[t])  +  shared(x[t])

Every way of running is the same layer: `precision` "bf16" or "fp8" says what the experts' matmuls count in, also where
x and weights are float32 (gradients of experts then have an SQNR of about 45 dB). `loop` runs experts one by one
in x's own dtype, which is the oracle in float64. Expert choice is the router's alone, and the same in all of them.

Follows torchtitan's `MoE` (models/moe); kernels.md section 3 says where upstream's versions differ and which of
them this is.

Shape suffixes: T tokens, D model width, E experts, K experts a token, M = T · K rows.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from kernels.moe.balance import count_tokens
from kernels.moe.config import MoEConfig
from kernels.moe.dispatch import Dispatch, collect, plan, spread
from kernels.moe.exchange import ExpertGroup, on_their_ranks
from kernels.moe.experts import SharedExperts, SwiGLUExperts, draw_normal
from kernels.moe.gpt_oss import ClampedExperts
from kernels.moe.precision import WideBuffers
from kernels.moe.recompute import experts_and_combine
from kernels.moe.router import Router

_STD = 0.02
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


class MoE(WideBuffers):
    """x (T, D) -> (T, D) in x's dtype.

    Without `loop` nothing is read on the host; with it the counts are, once; with `group` who sends how many rows is.

    Buffers:
        expert_bias        (E,) float32, saved with the model: moves the choice, never the weights.
        tokens_per_expert  (E,) float32, not saved: tokens since the last `balance.update_expert_bias`, in training
                           mode only, once a step also under activation checkpointing.
        Both stay float32 where the layer is cast to less.

    Attributes:
        loop: experts one by one, in x's own dtype.
        recompute: the bf16 experts save x and the two products before silu, and count the rest again in the backward
            pass (`recompute.py`); False: every step saves what autograd needs of it. So it does with `group`, and where
            `experts` has hooks of its own, `fully_shard`'s among them: these belong to calls, and there is none.
        group: the ranks that experts lie on; None: all experts are here. `parallel.experts.shard_experts` sets it.
    """

    expert_bias: Tensor
    tokens_per_expert: Tensor

    def __init__(
        self,
        config: MoEConfig,
        *,
        precision: str = "bf16",
        shared_precision: str = "bf16",
        loop: bool = False,
        recompute: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.loop = loop
        self.recompute = recompute
        self.group: ExpertGroup | None = None
        self.router = Router(config, device=device, dtype=dtype)
        experts = ClampedExperts if config.clamped else SwiGLUExperts
        self.experts: ClampedExperts | SwiGLUExperts = experts(config, precision=precision, device=device, dtype=dtype)
        self.shared = (
            SharedExperts(config, precision=shared_precision, device=device, dtype=dtype) if config.shared else None
        )
        zeros_E = torch.zeros(config.experts, device=device, dtype=torch.float32)
        self.register_buffer("expert_bias", zeros_E)
        self.register_buffer("tokens_per_expert", zeros_E.clone(), persistent=False)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self, layer: int = 0) -> None:
        """N(0, 0.02²), cut at 3 σ; gate, w2 and w3 with σ 0.02 / √(2 (layer + 1)); biases 0.

        Of gpt-oss's interleaved matmul the odd rows are w3.
        """
        deep = _STD / math.sqrt(2 * (layer + 1))
        for name, parameter in self.named_parameters():
            leaf = name.rpartition(".")[2]
            if leaf.endswith("bias"):
                parameter.zero_()
            elif leaf == "gate_up":
                draw_normal(parameter[:, ::2], _STD)
                draw_normal(parameter[:, 1::2], deep)
            else:
                draw_normal(parameter, _STD if leaf == "w1" else deep)
        self.expert_bias.zero_()
        self.tokens_per_expert.zero_()

    def forward(self, x_TD: Tensor) -> Tensor:
        weights_TK, dispatch = self.route(x_TD)
        out_TD = self._routed(x_TD, weights_TK, dispatch)
        if self.shared is None:
            return out_TD
        return out_TD + self.shared(x_TD, loop=self.loop)

    def route(self, x_TD: Tensor) -> tuple[Tensor, Dispatch]:
        """The weights (T, K) of each token's experts, and where its rows go; counted in training mode."""
        self._check(x_TD)
        routing = self.router(x_TD, self.expert_bias)
        dispatch = plan(routing.ids, self.config.experts)
        if self.training:
            with torch.no_grad():
                count_tokens(self.tokens_per_expert, dispatch.counts)
        return routing.weights, dispatch

    def _routed(self, x_TD: Tensor, weights_TK: Tensor, dispatch: Dispatch) -> Tensor:
        """What the routed experts say of each token, by weight."""
        before = self.config.weight_before
        if self.recomputes:
            assert isinstance(self.experts, SwiGLUExperts)
            return experts_and_combine(x_TD, weights_TK, self.experts, dispatch, weight_before=before)
        rows_MD = spread(x_TD, weights_TK if before else None, dispatch)
        experts = partial(self.experts, loop=self.loop)
        if self.group is None:
            y_MD = experts(rows_MD, dispatch)
        else:
            y_MD = on_their_ranks(experts, rows_MD, dispatch, self.group)
        return collect(y_MD, None if before else weights_TK, dispatch)

    @property
    def recomputes(self) -> bool:
        """Whether experts and combine run as one, with a backward pass of their own."""
        if self.loop or not self.recompute or self.group is not None or self.experts.is_hooked:
            return False
        return isinstance(self.experts, SwiGLUExperts) and self.experts.contracts_rows

    def _check(self, x: Tensor) -> None:
        if x.ndim != 2:
            raise ValueError(
                f"x: has {x.ndim} dimensions, shape {tuple(x.shape)}; give (tokens, {self.config.dim}): "
                "x.flatten(0, -2) makes one row a token"
            )
        if x.shape[1] != self.config.dim:
            raise ValueError(f"x: is {x.shape[1]} wide; give rows of {self.config.dim}, the layer's width")
        if x.dtype not in _FLOATS:
            raise ValueError(f"x: is {x.dtype}; cast it to one of {', '.join(str(dtype) for dtype in _FLOATS)}")
