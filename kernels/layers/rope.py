"""Rotary positions: pairs of a head's columns turned by an angle that grows with the position.

    (a, b) -> (a · cos - b · sin,  a · sin + b · cos),  angle = position · theta^(-2i / R)

Counted in float32 (float64 where x is) and cast once. A cast in the middle would be left out by the compiler's fusion:
compiled and eager would then differ by what it rounds (torchtitan #2196).

Shape suffixes: B sequences, S positions, H heads, R columns that are turned, P = R / 2 pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.moe.precision import wide

THETA = 10000.0


def rope_table(positions: int, width: int, *, device: torch.device | str | None = None) -> Tensor:
    """cos and sin of every position's angles, (S, P, 2) float32, for `width` = R columns of a head."""
    # In float64: float32 angles of position 100,000 are off by 0.004 already.
    frequency_P = THETA ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    angle_SP = torch.arange(positions, dtype=torch.float64, device=device).unsqueeze(-1) * frequency_P
    return torch.stack([angle_SP.cos(), angle_SP.sin()], dim=-1).float()


def rotate(x_BSHR: Tensor, table_SP2: Tensor) -> Tensor:
    """x with neighbouring columns as pairs, (B, S, H, R) in x's dtype."""
    dtype = wide(x_BSHR.dtype)
    a, b = x_BSHR.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = table_SP2.to(dtype).unsqueeze(1).unbind(-1)  # (S, 1, P): the same for all heads
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x_BSHR.dtype)
