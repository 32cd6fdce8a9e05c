"""Rows rounded on the simulated GPU, where clocks, queues and sessions are under control.

None of our kernels: a run is many processes, and each would import them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from perfguard.testing import fake

TILE_US = 0.5
CODE = {"odd": "one"}  # stands for the kernel's binary: all but one case are launches of the same
HOST_US = 4.0


def tiles(rows: int) -> int:
    return rows


def round_rows(x: torch.Tensor, kind: str) -> torch.Tensor:
    fake.launch(f"round_rows_{kind}", us=TILE_US * tiles(len(x)), host_us=HOST_US, binary=CODE.get(kind, "usual"))
    return x.round()


def reference(x: torch.Tensor, kind: str) -> torch.Tensor:
    return x.round()


@pytest.mark.parametrize("number", range(6))
def test_usual(perfguard: Any, number: int) -> None:
    """Cases that show what the machine does."""
    perfguard(round_rows, torch.randn(100 + number, 16), "usual", reference=reference)


def test_odd(perfguard: Any) -> None:
    """The one whose code a mutant changes."""
    perfguard(round_rows, torch.randn(100, 16), "odd", reference=reference)
