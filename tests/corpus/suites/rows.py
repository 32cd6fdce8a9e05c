"""The row-wise fp8 quantiser: classes of input, every code and its neighbours, widths around a block."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import fp8
from kernels.fp8.formats import FORMATS
from kernels.fp8.inputs import _ties

E4M3FN = FORMATS[torch.float8_e4m3fn]


def zero_rows(rows: int, width: int) -> torch.Tensor:
    x = torch.randn(rows, width)
    x[1::2] = 0
    return x


def above_448(rows: int, width: int) -> torch.Tensor:
    """Amax of every row beyond the format's largest value, and just over a power of two of it."""
    x = torch.randn(rows, width).clamp(-2, 2) * 448
    x[:, 3] = torch.linspace(1.05, 1.95, rows) * 448 * 2
    return x


def all_codes(rows: int, width: int) -> torch.Tensor:
    """448 first, so that scales are 1; then every code, the middles between neighbours, a step below and above."""
    return _ties(rows, width, torch.bfloat16, E4M3FN)


@pytest.mark.parametrize("width", [15, 17, 41, 65], ids=lambda width: f"width-{width}")
@pytest.mark.usefixtures("interpreter")
def test_random(perfguard: Any, width: int) -> None:
    """A block is the next power of two, 16 at least: below one, one more than one, in between."""
    x = torch.randn(7, width, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(fp8.quantize_rowwise, x, reference=fp8.reference.quantize_rowwise, timed=False)


@pytest.mark.parametrize("fill", [zero_rows, above_448, all_codes], ids=["all-zero", "above-448", "all-codes"])
@pytest.mark.parametrize("power_of_two", [False, True], ids=["any-scale", "power-of-two"])
@pytest.mark.usefixtures("interpreter")
def test_hard(perfguard: Any, fill: Any, power_of_two: bool) -> None:
    x = fill(8, 128).to(perfguard.device, torch.bfloat16)
    perfguard(
        fp8.quantize_rowwise,
        x,
        kwargs={"power_of_two": power_of_two, "dtype": torch.float8_e4m3fn},
        reference=fp8.reference.quantize_rowwise,
        timed=False,
    )
