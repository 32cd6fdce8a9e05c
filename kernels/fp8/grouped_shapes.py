"""Shapes of the float8 grouped matmul that are guarded. Splits and their names are those of `shapes.py`.

Shape suffixes: M tokens, K inner width, N outer width, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.fp8.shapes import Device
from kernels.grouped.shapes import ProductShape


class MatmulShape(ProductShape):
    """a (M, K), the stored weight (E, N, K) and offs (E,)."""

    def inputs(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
        a_MK, b_EKN, offs_E = super().inputs(device, dtype)
        return a_MK, b_EKN.detach().mT.requires_grad_(), offs_E

    def __str__(self) -> str:
        ending = "" if self.split == "equal" else f"-{self.split}"
        return f"e{self.experts}-{self.rows}x{self.inner}x{self.outer}{ending}"


# Bold shapes of the contract, timed always: A is llama4 16E, B is DeepSeek 16B.
MATMUL_A, MATMUL_B = MatmulShape(16, 16640, 5120, 8192), MatmulShape(64, 32768, 2048, 1408)
MATMULS = (
    MATMUL_A,
    MATMUL_B,
    MatmulShape(16, 16640, 5120, 8192, "hot"),  # one expert holds nearly everything
    MatmulShape(64, 32768, 2048, 1408, "random"),  # every group padded for wgrad
    MatmulShape(64, 32768, 2048, 1408, "one-expert"),  # 63 weight gradients that are only zeroed
    MatmulShape(16, 16640, 5120, 8192, "unused"),  # rows that are only zeroed
)
# Timed on a CPU through the eager path.
MATMULS_CPU = (
    MatmulShape(4, 256, 192, 128),  # the plain case
    MatmulShape(8, 256, 192, 128, "random"),  # borders at odd rows
    MatmulShape(8, 256, 128, 192, "hot"),  # skewed
    MatmulShape(8, 250, 120, 100, "one-expert"),  # seven empty groups, widths that are no multiple of 16
)
# Through the interpreter: numerics and exact metrics only.
MATMULS_SMALL = (
    MatmulShape(3, 20, 17, 24, "random"),  # borders at odd rows, a width that is no multiple of 16
)
