"""Guards the exchanges of an MoE block on 64, 256 and 1,024 ranks, at the widths of DeepSeek-V2-Lite, in one process.

No time, no values: which collectives over which ranks, how many bytes, what is padded, saved and left gathered. Routing
is declared: every expert gets as many rows (`MoEConfig.balanced`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tests.kernels.paths  # noqa: F401 - before anything imports triton
from kernels.layers import BlockConfig, Transformer
from kernels.moe import MoEConfig
from kernels.parallel.model import parallelize
from tests.distributed.sharded_cases import on_own_mesh

pytestmark = on_own_mesh
POSITIONS = 4096
MOE = MoEConfig(dim=2048, hidden=1408, experts=64, top_k=6, shared=2, balanced=True)


def guard(perfguard: Any, **dimensions: int) -> None:
    """One block and the root, a batch of one sequence a rank."""
    mesh = perfguard.mesh(**dimensions)
    block = BlockConfig(dim=2048, heads=16, moe=MOE)
    whole, model = (Transformer([block], 1024, positions=POSITIONS, dtype=torch.bfloat16) for _ in range(2))
    parallelize(model, mesh)
    perfguard(model, torch.zeros(1, POSITIONS, dtype=torch.int64), reference=whole)


@pytest.mark.perfguard(layout=64)
def test_64_ranks(perfguard: Any) -> None:
    guard(perfguard, efsdp=8, ep=8)


@pytest.mark.perfguard(layout=256)
def test_256_ranks(perfguard: Any) -> None:
    guard(perfguard, efsdp=4, ep=32, tp=2)


@pytest.mark.perfguard(layout=1024)
def test_1024_ranks(perfguard: Any) -> None:
    guard(perfguard, efsdp=16, ep=64)
