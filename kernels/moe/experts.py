"""SwiGLU experts on rows that lie expert by expert, and the shared expert on all tokens.

    y = (silu(x · w1ᵀ) · (x · w3ᵀ)) · w2ᵀ,  bf16 inside, cast back to x's dtype

Follows torchtitan's `GroupedExperts` and `FeedForward` (models/moe): the same names and shapes of weights.

Shape suffixes: M rows, D model width, F expert width, E experts, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.moe.config import MoEConfig
from kernels.moe.dispatch import Dispatch
from kernels.moe.matmul import CONTRACT_ROWS, matmul_of
from kernels.moe.precision import no_autocast
from kernels.operators import silu_mul

COMPUTE = torch.bfloat16  # of the matmuls, whatever the dtype of x and of the weights


def uninitialised(*shape: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))


def draw_normal(tensor: Tensor, std: float) -> None:
    """N(0, std²), cut at 3 σ; nothing where there are no values: of meta tensors and fake ones."""
    if tensor.untyped_storage().device.type != "meta":
        nn.init.trunc_normal_(tensor, std=std, a=-3 * std, b=3 * std)


class GroupedMatmuls(nn.Module):
    """Experts whose matmuls all go through `grouped_mm`: name a `precision`, or override it in a class or an object.

    Attributes:
        overrides: whether `grouped_mm` is another's.
        placed: whether weights are DTensors, of which each rank has a part; `parallel` sets it.
    """

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.precision = precision
        self.placed = False
        self.overrides = type(self).grouped_mm is not GroupedMatmuls.grouped_mm

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "grouped_mm":  # told here, where it happens: the compiler cannot compare methods
            self.overrides = True

    @property
    def precision(self) -> str:
        """A name of `matmul.MATMULS`; may be set at any time."""
        return self._precision

    @precision.setter
    def precision(self, value: str) -> None:
        matmul_of(value)
        self._precision = value

    @property
    def contracts_rows(self) -> bool:
        """Whether `grouped_mm` also is (K, R) x (R, N) -> (E, K, N): experts may then run their own backward pass."""
        return self._precision in CONTRACT_ROWS and not self.overrides

    @property
    def is_hooked(self) -> bool:
        """Whether the module has hooks, which run at each of its calls."""
        return bool(self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks)

    def here(self, weight: Tensor) -> Tensor:
        """What this rank has of a weight."""
        return weight.to_local() if self.placed else weight  # type: ignore[attr-defined, no-any-return]

    def grouped_mm(self, a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        """a (R, K), b (E, K, N), offs (E,) int32 -> (R, N), differentiable."""
        return matmul_of(self._precision)(a, b, offs)

    def swiglu(self, x_MD: Tensor, w1_EFD: Tensor, w2_EDF: Tensor, w3_EFD: Tensor, offs_E: Tensor) -> Tensor:
        """The formula above by `grouped_mm`: x (M, D) in the order of groups -> (M, D) in x's dtype."""
        with no_autocast(x_MD.device):
            x = x_MD.to(COMPUTE)
            w1_EFD, w2_EDF, w3_EFD = (weight.to(COMPUTE) for weight in (w1_EFD, w2_EDF, w3_EFD))
            gate_MF = self.grouped_mm(x, w1_EFD.transpose(1, 2), offs_E)
            up_MF = self.grouped_mm(x, w3_EFD.transpose(1, 2), offs_E)
            hidden_MF = silu_mul(gate_MF, up_MF)
            return self.grouped_mm(hidden_MF, w2_EDF.transpose(1, 2), offs_E).to(x_MD.dtype)


class SwiGLUExperts(GroupedMatmuls):
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
        self.w1 = uninitialised(experts, hidden, dim, device=device, dtype=dtype)
        self.w2 = uninitialised(experts, dim, hidden, device=device, dtype=dtype)
        self.w3 = uninitialised(experts, hidden, dim, device=device, dtype=dtype)

    def forward(self, rows_MD: Tensor, dispatch: Dispatch, loop: bool = False) -> Tensor:
        """Reads nothing of the device; with `loop` as `self.loop`, behind the hooks of the module."""
        if loop:
            return self.loop(rows_MD, dispatch)
        return self.swiglu(rows_MD, self.here(self.w1), self.here(self.w2), self.here(self.w3), dispatch.offs)

    def loop(self, rows_MD: Tensor, dispatch: Dispatch) -> Tensor:
        """The same in x's own dtype, expert by expert: one host read, of the counts. Runs in float32 and float64."""
        chunks = rows_MD.split(dispatch.counts.tolist())
        weights = (self.here(weight).to(rows_MD.dtype).unbind() for weight in (self.w1, self.w2, self.w3))
        return torch.cat([swiglu(x, w1, w2, w3) for x, w1, w2, w3 in zip(chunks, *weights, strict=True)])


def swiglu(x: Tensor, w1_FD: Tensor, w2_DF: Tensor, w3_FD: Tensor) -> Tensor:
    """One expert on its rows (m, D), in plain torch operators and x's dtype; m may be 0."""
    with no_autocast(x.device):
        return F.linear(F.silu(F.linear(x, w1_FD)) * F.linear(x, w3_FD), w2_DF)


class SharedExperts(GroupedMatmuls):
    """One SwiGLU of width F · shared on all tokens, x (T, D) -> (T, D).

    "bf16" runs on ordinary matmuls; another precision takes the same function with one group.
    """

    def __init__(
        self,
        config: MoEConfig,
        *,
        precision: str = "bf16",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(precision)
        hidden, dim = config.hidden * config.shared, config.dim
        self.w1 = uninitialised(hidden, dim, device=device, dtype=dtype)
        self.w2 = uninitialised(dim, hidden, device=device, dtype=dtype)
        self.w3 = uninitialised(hidden, dim, device=device, dtype=dtype)

    def grouped_mm(self, a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
        return a @ b[0] if self.precision == "bf16" else super().grouped_mm(a, b, offs)

    def forward(self, x_TD: Tensor, loop: bool = False) -> Tensor:
        """`loop`: as `self.loop`, behind the hooks of the module."""
        if loop:
            return self.loop(x_TD)
        w1_1FD, w2_1DF, w3_1FD = (self.here(weight).unsqueeze(0) for weight in (self.w1, self.w2, self.w3))
        offs = torch.full((1,), x_TD.shape[0], dtype=torch.int32, device=x_TD.device)
        return self.swiglu(x_TD, w1_1FD, w2_1DF, w3_1FD, offs)

    def loop(self, x_TD: Tensor) -> Tensor:
        """The same in x's own dtype."""
        return swiglu(x_TD, *(self.here(weight).to(x_TD.dtype) for weight in (self.w1, self.w2, self.w3)))
