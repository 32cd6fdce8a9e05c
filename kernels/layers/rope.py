"""Rotary positions of a layer (`kernels.operators.rope`): angle = position · theta^(-2i / R).

Shape suffixes: B sequences, S positions, H heads, R columns that are turned, P = R / 2 pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.operators.rope import reference, rope

THETA = 10000.0


def rope_table(positions: int, width: int, *, device: torch.device | str | None = None) -> Tensor:
    """cos and sin of every position's angles, (S, P, 2) float32, for `width` = R columns of a head."""
    # In float64: float32 angles of position 100,000 are off by 0.004 already.
    frequency_P = THETA ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    angle_SP = torch.arange(positions, dtype=torch.float64, device=device).unsqueeze(-1) * frequency_P
    return torch.stack([angle_SP.cos(), angle_SP.sin()], dim=-1).float()


def rotate(x_BSHR: Tensor, table_SP2: Tensor) -> Tensor:
    """x with neighbouring columns as pairs, (B, S, H, R) in x's dtype; float64, the oracle's, by torch's operators."""
    turn = reference if x_BSHR.dtype == torch.float64 else rope
    return turn(x_BSHR, table_SP2)
