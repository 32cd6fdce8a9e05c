"""The shapes on which the grouped product is guarded: records as in `kernels.fp8.shapes`.

Shape suffixes: R rows, K inner width, N outer width, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.fp8.shapes import SPLITTERS, Device


@dataclass(frozen=True)
class ProductShape:
    """a (R, K), b (E, K, N) and offs (E,); `b` is the transposed view of a stored (E, N, K), as layers hold it."""

    experts: int
    rows: int
    inner: int
    outer: int
    split: str = "equal"

    def inputs(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
        """a and b require grad."""
        a_RK = torch.randn(self.rows, self.inner, device=device, dtype=dtype)
        stored_ENK = torch.randn(self.experts, self.outer, self.inner, device=device, dtype=dtype)
        offs_E = SPLITTERS[self.split](self.rows, self.experts).offs(device)
        return a_RK.requires_grad_(), stored_ENK.mT.requires_grad_(), offs_E

    @property
    def flop(self) -> int:
        """Of the forward product, all rows in use; backward takes twice as many."""
        return 2 * self.rows * self.inner * self.outer

    @property
    def bytes(self) -> int:
        """Of a forward product in 16 bits: each operand read once, the output written once."""
        weights = self.experts * self.inner * self.outer
        return 2 * (self.rows * (self.inner + self.outer) + weights)

    @property
    def backward_bytes(self) -> int:
        """The output's gradient and both operands read once, both gradients written once."""
        weights = self.experts * self.inner * self.outer
        return 2 * (self.rows * (2 * self.inner + self.outer) + 2 * weights)

    def __str__(self) -> str:
        ending = "" if self.split == "equal" else f"-{self.split}"
        return f"{self.experts}x{self.rows}x{self.inner}x{self.outer}{ending}"


# Bold shapes of the contract, timed always: A is llama4 16E, B is DeepSeek 16B.
A, B = ProductShape(16, 16640, 5120, 8192), ProductShape(64, 32768, 2048, 1408)
REAL = (
    A,
    B,
    ProductShape(128, 32768, 2048, 768),  # Qwen3 30B-A3B: many groups of few rows
    ProductShape(64, 32768, 2048, 1408, "random"),  # tails in every group
    ProductShape(16, 16640, 5120, 8192, "hot"),  # one group holds nearly everything
)
# Timed on a CPU through the loop: a few ms a call on two cores.
MODERATE = (
    ProductShape(4, 256, 256, 192),  # the plain case
    ProductShape(8, 256, 192, 160, "random"),  # borders at odd rows
    ProductShape(8, 256, 192, 160, "one-expert"),  # seven empty groups
    ProductShape(8, 1200, 96, 80, "unused"),  # most rows belong to nobody
)
# Through the interpreter: numerics and exact metrics only.
SMALL = (
    ProductShape(3, 40, 48, 33, "random"),  # borders at odd rows, an odd width
    ProductShape(4, 64, 17, 24, "hot"),  # skewed, an odd inner width
    ProductShape(4, 40, 24, 40, "one-expert"),  # three empty groups
)
