"""Rows quantised on the simulated GPU, where clocks, queues and sessions are under control."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import fp8
from perfguard.measure.devices import fake

TILE_US = 0.5
CODE = {"odd": "one"}  # stands for the kernel's binary: all but one case are launches of the same
HOST_US = 4.0


def tiles(rows: int) -> int:
    return rows


def quantize(x: torch.Tensor, kind: str) -> Any:
    fake.launch(f"quantize_rows_{kind}", us=TILE_US * tiles(len(x)), host_us=HOST_US, binary=CODE.get(kind, "usual"))
    return fp8.quantize_rowwise(x)


@pytest.mark.parametrize("number", range(6))
def test_usual(perfguard: Any, number: int) -> None:
    """Cases that show what the machine does."""
    perfguard(
        quantize, torch.randn(100 + number, 16), "usual", reference=lambda x, _: fp8.reference.quantize_rowwise(x)
    )


def test_odd(perfguard: Any) -> None:
    """The one whose code a mutant changes."""
    perfguard(quantize, torch.randn(100, 16), "odd", reference=lambda x, _: fp8.reference.quantize_rowwise(x))
