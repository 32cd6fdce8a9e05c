"""In which dtype a part of the layer counts, whatever autocast says."""

from __future__ import annotations

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 where the layer itself runs in it: how sums and scores are kept."""
    return torch.promote_types(dtype, torch.float32)


def no_autocast(device: torch.device) -> torch.autocast:
    """Within, operators take their inputs as they are."""
    return torch.autocast(device.type, enabled=False)
