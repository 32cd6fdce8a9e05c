"""Our grouped matmul, forward and backward: depths, groups without rows, rows far apart in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from kernels import grouped
from kernels.fp8.inputs import far_apart
from kernels.fp8.shapes import Split

OURS = partial(grouped.grouped_mm, impl="triton")


def guard(perfguard: Any, a: torch.Tensor, b: torch.Tensor, split: Split) -> None:
    offs = split.offs(perfguard.device)
    perfguard(OURS, a, b, offs, reference=grouped.reference.grouped_mm, groups=offs, timed=False)


@pytest.mark.parametrize("depth", [32, 128, 512])
@pytest.mark.usefixtures("interpreter")
def test_depth(perfguard: Any, depth: int) -> None:
    """What errors of accumulation grow with; forward alone."""
    split = Split("equal", (32, 32))
    a = torch.randn(64, depth, device=perfguard.device, dtype=torch.bfloat16)
    b = torch.randn(2, depth, 32, device=perfguard.device, dtype=torch.bfloat16)
    guard(perfguard, a, b, split)


@pytest.mark.parametrize("split", [Split("full", (20, 20)), Split("empty", (12, 0, 20), unused=5)], ids=str)
@pytest.mark.usefixtures("interpreter")
def test_groups(perfguard: Any, split: Split) -> None:
    a = torch.randn(split.rows, 32, device=perfguard.device, dtype=torch.bfloat16)
    b = torch.randn(split.groups, 32, 32, device=perfguard.device, dtype=torch.bfloat16)
    guard(perfguard, a.requires_grad_(), b.requires_grad_(), split)


@pytest.mark.usefixtures("interpreter")
def test_far(perfguard: Any) -> None:
    """Eight rows, 2^29 elements apart: the last four start past 2^31. On a CPU that is address space alone."""
    if perfguard.device.type == "cuda" and torch.cuda.mem_get_info()[0] < 32 << 30:
        perfguard.unsupported("needs 32 GB of free memory")
    # Not on 16 bytes: what is may be read by descriptors, which count in 64 bits by themselves.
    a = far_apart(torch.randn(8, 40).to(perfguard.device, torch.bfloat16), 0, 1 << 29)[:, 1:33]
    b = torch.randn(1, 32, 32, device=perfguard.device, dtype=torch.bfloat16)
    guard(perfguard, a, b, Split("one", (8,)))
