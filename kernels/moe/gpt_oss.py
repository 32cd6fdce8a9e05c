"""gpt-oss's experts: gate and up interleaved in one matmul, biases, clamped SwiGLU.

    gu = x · gate_upᵀ + gate_up_bias,  h = clamped_swiglu(gu),  y = h · downᵀ + down_bias

The even outputs of `gate_up` are the gate, the odd ones the up projection. Follows gpt-oss's `model.py` and its
form in torchtitan (models/gpt_oss).

Shape suffixes: M rows, D model width, F expert width, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.moe.config import MoEConfig
from kernels.moe.dispatch import Dispatch
from kernels.moe.experts import COMPUTE, GroupedMatmuls, uninitialised
from kernels.moe.precision import no_autocast
from kernels.operators import clamped_swiglu, indexed_bias_add


class ClampedExperts(GroupedMatmuls):
    """rows (M, D) in the order of experts, and their `Dispatch` -> (M, D)."""

    def __init__(
        self,
        config: MoEConfig,
        *,
        precision: str = "bf16",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(precision)
        experts, hidden, dim = config.experts, config.hidden, config.dim
        self.alpha, self.limit = config.alpha, config.limit
        self.gate_up = uninitialised(experts, 2 * hidden, dim, device=device, dtype=dtype)
        self.gate_up_bias = uninitialised(experts, 2 * hidden, device=device, dtype=dtype)
        self.down = uninitialised(experts, dim, hidden, device=device, dtype=dtype)
        self.down_bias = uninitialised(experts, dim, device=device, dtype=dtype)

    def forward(self, rows_MD: Tensor, dispatch: Dispatch, loop: bool = False) -> Tensor:
        """Reads nothing of the device; with `loop` as `self.loop`, behind the hooks of the module."""
        if loop:
            return self.loop(rows_MD, dispatch)
        with no_autocast(rows_MD.device):
            where = dispatch.expert, dispatch.offs
            gu_M2F = self._linear(rows_MD.to(COMPUTE), self.gate_up, self.gate_up_bias, *where)
            hidden_MF = clamped_swiglu(gu_M2F, self.alpha, self.limit)
            return self._linear(hidden_MF, self.down, self.down_bias, *where).to(rows_MD.dtype)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor, expert_M: Tensor, offs_E: Tensor) -> Tensor:
        product = self.grouped_mm(x, self.here(weight).to(COMPUTE).transpose(1, 2), offs_E)
        return indexed_bias_add(product, self.here(bias).to(COMPUTE), expert_M, offs_E)

    def loop(self, rows_MD: Tensor, dispatch: Dispatch) -> Tensor:
        """The same in x's own dtype, expert by expert: one host read, of the counts. Runs in float32 and float64."""
        chunks = rows_MD.split(dispatch.counts.tolist())
        parameters = (self.gate_up, self.gate_up_bias, self.down, self.down_bias)
        weights = (self.here(parameter).to(rows_MD.dtype).unbind() for parameter in parameters)
        return torch.cat([self._one(x, *each) for x, *each in zip(chunks, *weights, strict=True)])

    def _one(self, x: Tensor, gate_up: Tensor, gate_up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
        with no_autocast(x.device):
            gu = F.linear(x, gate_up, gate_up_bias)
            gate, up = gu[:, ::2].clamp(max=self.limit), gu[:, 1::2].clamp(-self.limit, self.limit)
            return F.linear((up + 1) * gate * torch.sigmoid(self.alpha * gate), down, down_bias)
