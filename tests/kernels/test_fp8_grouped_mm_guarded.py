"""The float8 grouped matmul under guard: forward and backward, one case a shape.

On a GPU the shapes of the contract are checked and timed. On a CPU moderate ones run and are timed through the eager
quantisers and the emulated matmul, and small ones run through the interpreted quantisers, which are never timed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import fp8
from kernels.fp8.grouped_shapes import MATMULS, MATMULS_CPU, MATMULS_SMALL, MatmulShape
from perfguard import Work, offsets
from tests.kernels.paths import GPU, cases, open_path

CASES = cases(MATMULS, MATMULS_CPU, MATMULS_SMALL)
FEWER = cases(MATMULS, MATMULS_CPU[:2])  # on a CPU, where all that differs is when the weight is quantised


@pytest.fixture(autouse=True)
def on_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the way that the case takes, and make sure that it is taken."""
    open_path(path, monkeypatch)
    assert fp8.path(GPU or "cpu") == path


def matmul(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return fp8.grouped_mm(a, w.mT, offs)


def matmul_keeping_weights(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return fp8.grouped_mm(a, w.mT, offs, keep_fp8_weights=True)


def truth(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return fp8.reference.grouped_mm(a, w.mT, offs)


@CASES
def test_fp8_grouped_mm(perfguard: Any, shape: MatmulShape, path: str) -> None:
    a, w, offs = shape.inputs(perfguard.device)
    perfguard(
        matmul,
        a,
        w,
        offsets(offs, len(a)),
        reference=truth,
        work=Work(flop=shape.flop, backward_flop=2 * shape.flop),
        timed=path != "interpreter",
    )


@FEWER
def test_fp8_grouped_mm_keeping_weights(perfguard: Any, shape: MatmulShape, path: str) -> None:
    """The targets are with `keep_fp8_weights`: backward then quantises no weight."""
    a, w, offs = shape.inputs(perfguard.device)
    perfguard(
        matmul_keeping_weights,
        a,
        w,
        offsets(offs, len(a)),
        reference=truth,
        work=Work(flop=shape.flop, backward_flop=2 * shape.flop),
        timed=path != "interpreter",
    )
