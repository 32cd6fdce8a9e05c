"""Blocks over two GPUs, as wide as their exchanges take to show: times, and what they exchange."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.sharded_cases import Sharded

CASES = [
    Sharded("dense", (("dp", 2),), large=True),
    Sharded("dense", (("dp", 1), ("tp", 2)), large=True),
    Sharded("moe", (("efsdp", 1), ("ep", 2)), large=True),
    Sharded("moe", (("efsdp", 1), ("ep", 2)), "hot", large=True),  # the host reads how many rows travel
]


@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_two_gpus(perfguard: Any, shape: Sharded) -> None:
    if perfguard.device.type == "cpu":
        perfguard.unsupported("its sizes are those of GPUs")
    mesh = perfguard.mesh(**dict(shape.mesh))
    whole = shape.whole(perfguard.device)
    model = shape.spread(whole, mesh)
    perfguard(model, shape.ids(perfguard.rank, perfguard.device), reference=whole)
