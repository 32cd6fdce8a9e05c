"""Kernels cross-compiled for an NVIDIA and an AMD target, at the widths that choose between their configurations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import fp8
from kernels.fp8.configs import rows_candidates
from kernels.hardware import arch_of
from kernels.operators import silu_mul


@pytest.mark.parametrize("width", [256, 5120, "widest"])
def test_rows(perfguard: Any, width: int | str) -> None:
    """Several rows a program; a row in one warp; a row in several warps, as narrow as it can be where it is compiled
    for others."""
    rows, widest = (4, 8192) if perfguard.device.type == "cpu" else (16384, 16384)
    width = widest if width == "widest" else width
    x = torch.randn(rows, width, device=perfguard.device, dtype=torch.bfloat16)

    def chosen() -> dict[str, dict[str, int]]:
        first, *_ = rows_candidates(arch_of(x.device), x.dtype, width, "reduced")
        return {first.entry: {"candidate": 0}}

    perfguard(
        fp8.quantize_rowwise,
        x,
        reference=fp8.reference.quantize_rowwise,
        configurations=chosen,
        timed=perfguard.device.type != "cpu",
    )


@pytest.mark.parametrize("layout", ["flat", "wide", "transposed"])
def test_gate(perfguard: Any, layout: str) -> None:
    """One row that holds everything; rows of a wider matrix; columns that are neighbours in memory."""
    rows = 64 if perfguard.device.type == "cpu" else 8192
    width = {"flat": 1024, "wide": 2048, "transposed": rows}[layout]

    def operand() -> torch.Tensor:
        x = torch.randn(rows if layout != "transposed" else 1024, width, device=perfguard.device, dtype=torch.bfloat16)
        return {"flat": x, "wide": x[:, :1024], "transposed": x.t()}[layout]

    g, u = operand(), operand()
    perfguard(
        silu_mul, g, u,
        reference=lambda g, u: torch.nn.functional.silu(g) * u,
        timed=perfguard.device.type != "cpu",
    )  # fmt: skip
