"""Quantising rows, timed: few rows, as in decoding, and many. On a CPU in torch operators, which take microseconds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import fp8


@pytest.mark.parametrize("rows", [8, 512])
def test_rows(perfguard: Any, rows: int) -> None:
    rows = rows if perfguard.device.type == "cpu" or rows == 8 else 16384
    x = torch.randn(rows, 512, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(fp8.quantize_rowwise, x, reference=fp8.reference.quantize_rowwise)
