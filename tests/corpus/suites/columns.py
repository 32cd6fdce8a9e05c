"""The fp8 quantiser down the columns of each group of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import fp8
from kernels.fp8.shapes import Split

SPLITS = {
    "equal": (Split("equal", (16, 16)), 32),  # whole tiles, a whole block of 32 columns
    "empty": (Split("empty", (5, 0, 9), unused=2), 32),  # a group without rows, rows of no group
    "width-24": (Split("width-24", (16, 16)), 24),  # no multiple of a block of columns
    "one-large": (Split("one-large", (4, 4, 4, 36)), 32),  # three times the mean, and more than one tile of 32 rows
}


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.usefixtures("interpreter")
def test_quantize(perfguard: Any, name: str) -> None:
    split, width = SPLITS[name]
    x = torch.randn(split.rows, width, device=perfguard.device, dtype=torch.bfloat16)
    x[sum(split.sizes) :] = torch.nan
    offs = split.offs(perfguard.device)
    perfguard(
        fp8.quantize_colwise_per_group,
        x,
        offs,
        reference=fp8.reference.quantize_colwise_per_group,
        groups=offs,
        timed=False,
    )
