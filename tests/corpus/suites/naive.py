"""What has to beat the plain way, on the simulated GPU: one launch for all groups, and a tuned configuration."""

from __future__ import annotations

from typing import Any

import torch

from perfguard.testing import fake

GROUPS, LAUNCHES = 8, 1
DEFAULT_US, TUNED_US = 50.0, 45.0


def grouped(x: torch.Tensor) -> torch.Tensor:
    for _ in range(LAUNCHES):
        fake.launch("round_groups", us=48.0 / LAUNCHES + 4.0)
    return x.round()


def loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(GROUPS):
        fake.launch("round_one_group", us=8.0)
    return x.round()


def tuned(x: torch.Tensor) -> torch.Tensor:
    fake.launch("round_rows", us=TUNED_US)
    return x.round()


def default(x: torch.Tensor) -> torch.Tensor:
    fake.launch("round_rows", us=DEFAULT_US)
    return x.round()


def test_grouped(perfguard: Any) -> None:
    perfguard(grouped, torch.randn(64, 16), reference=torch.round, rival=loop)


def test_tuned(perfguard: Any) -> None:
    perfguard(tuned, torch.randn(64, 16), reference=torch.round, rival=default)
