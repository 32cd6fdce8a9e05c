"""What has to beat the plain way, on the simulated GPU: one launch for all groups, and a tuned configuration."""

from __future__ import annotations

from typing import Any

import torch

from kernels import fp8
from perfguard.measure.devices import fake

GROUPS, LAUNCHES = 8, 1
DEFAULT_US, TUNED_US = 50.0, 45.0


def grouped(x: torch.Tensor) -> Any:
    for _ in range(LAUNCHES):
        fake.launch("quantize_groups", us=48.0 / LAUNCHES + 4.0)
    return fp8.reference.quantize_rowwise(x)


def loop(x: torch.Tensor) -> Any:
    for _ in range(GROUPS):
        fake.launch("quantize_one_group", us=8.0)
    return fp8.reference.quantize_rowwise(x)


def tuned(x: torch.Tensor) -> Any:
    fake.launch("quantize_rows", us=TUNED_US)
    return fp8.reference.quantize_rowwise(x)


def default(x: torch.Tensor) -> Any:
    fake.launch("quantize_rows", us=DEFAULT_US)
    return fp8.reference.quantize_rowwise(x)


def test_grouped(perfguard: Any) -> None:
    perfguard(grouped, torch.randn(64, 16), reference=fp8.reference.quantize_rowwise, rival=loop)


def test_tuned(perfguard: Any) -> None:
    perfguard(tuned, torch.randn(64, 16), reference=fp8.reference.quantize_rowwise, rival=default)
