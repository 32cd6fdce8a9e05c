"""The gate's kernel under triton.autotune, walked over eight token counts: it is tuned once for a width."""

from __future__ import annotations

from typing import Any

import torch
import triton

from kernels.operators.silu_mul import _forward, reference

CONFIGS = [triton.Config({"R": 1, "C": size}, num_warps=size // 512) for size in (1024, 2048)]
tuned = triton.autotune(CONFIGS, key=["width"])(_forward)


def gate(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    if g.device.type == "cpu":
        return reference(g, u)
    out = torch.empty_like(g)
    rows, width = g.shape
    tuned[lambda meta: (rows * triton.cdiv(width, meta["C"]),)](
        g, u, out, rows, width, *g.stride(), *u.stride(), BY_HAND=False
    )
    return out


def test_tuned_gate(perfguard: Any) -> None:
    """Eight counts of tokens, of which the last is the case's own."""
    pairs = [
        tuple(torch.randn(2, tokens, 1024, device=perfguard.device, dtype=torch.bfloat16))
        for tokens in (1, 2, 8, 16, 24, 48, 56, 64)
    ]
    perfguard(
        gate, *pairs[-1],
        reference=lambda g, u: torch.nn.functional.silu(g) * u,
        walk=pairs[:-1],
        timed=perfguard.device.type != "cpu",
        cold_start=perfguard.device.type != "cpu",
    )  # fmt: skip
