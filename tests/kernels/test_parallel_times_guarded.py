"""Blocks over two GPUs, as wide as their exchanges take to show: times, and what they exchange."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.sharded_cases import LARGE_TOKENS, Sharded

# What the compiler does by itself while it traces.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

DP = (("dp", 2),)
TP = (("dp", 1), ("tp", 2))
EP = (("efsdp", 1), ("ep", 2))
CASES = [
    Sharded("dense", DP, large=True, tokens=LARGE_TOKENS),
    Sharded("dense", TP, large=True, tokens=LARGE_TOKENS),
    Sharded("dense", TP, large=True, tokens=128),  # short messages: half a megabyte
    Sharded("moe", EP, large=True, tokens=LARGE_TOKENS),
    Sharded("moe", EP, large=True, tokens=128),
    Sharded("moe", EP, large=True, tokens=LARGE_TOKENS, precision="fp8"),
    Sharded("moe", EP, "hot", large=True, tokens=LARGE_TOKENS),  # the host reads how many rows travel
]
COMPILED = [CASES[0], CASES[1], CASES[3]]


def guard(perfguard: Any, shape: Sharded, backend: str | None = None) -> None:
    if perfguard.device.type == "cpu":
        perfguard.unsupported("its sizes are those of GPUs")
    mesh = perfguard.mesh(**dict(shape.mesh))
    whole = shape.whole(perfguard.device)
    model = shape.spread(whole, mesh, backend)
    perfguard(model, shape.ids(perfguard.rank, perfguard.device), reference=whole)


@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_two_gpus(perfguard: Any, shape: Sharded) -> None:
    guard(perfguard, shape)


@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("shape", COMPILED, ids=str)
def test_two_gpus_compiled(perfguard: Any, shape: Sharded) -> None:
    guard(perfguard, shape, "inductor")
