"""Blocks over two and four GPUs, as wide as their exchanges take to show: times, and what they exchange."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.sharded_cases import LARGE_TOKENS, Sharded, guard
from tests.kernels.paths import COMPILING

pytestmark = COMPILING

DP = (("dp", 2),)
TP = (("dp", 1), ("tp", 2))
EP = (("efsdp", 1), ("ep", 2))
CASES = [
    Sharded("dense", DP, tokens=LARGE_TOKENS),
    Sharded("dense", TP, tokens=LARGE_TOKENS),
    Sharded("dense", TP, tokens=128),  # short messages: half a megabyte
    Sharded("moe", EP, tokens=LARGE_TOKENS),
    Sharded("moe", EP, tokens=128),
    Sharded("moe", EP, tokens=LARGE_TOKENS, precision="fp8"),
    Sharded("moe", EP, "hot", tokens=LARGE_TOKENS),  # the host reads how many rows travel
]
COMPILED = [CASES[0], CASES[1], CASES[3]]
EP4 = (("efsdp", 1), ("ep", 4))
FOUR = [
    Sharded("dense", (("dp", 4),), tokens=LARGE_TOKENS),
    Sharded("dense", (("dp", 2), ("tp", 2)), tokens=LARGE_TOKENS),
    Sharded("moe", EP4, tokens=LARGE_TOKENS),
    Sharded("moe", EP4, tokens=LARGE_TOKENS, precision="fp8"),
    Sharded("moe", (("efsdp", 2), ("ep", 2)), tokens=LARGE_TOKENS),
    Sharded("moe", (("efsdp", 1), ("ep", 2), ("tp", 2)), tokens=LARGE_TOKENS),
    Sharded("moe", (("efsdp", 1), ("ep", 2), ("tp", 2)), tokens=LARGE_TOKENS, experts=True),
]


def on_gpus(perfguard: Any, shape: Sharded, backend: str | None = None) -> None:
    if perfguard.device.type == "cpu":
        perfguard.unsupported("its sizes are those of GPUs")
    guard(perfguard, shape, backend, timed=True)


@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("shape", CASES, ids=str)
def test_two_gpus(perfguard: Any, shape: Sharded) -> None:
    on_gpus(perfguard, shape)


@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("shape", COMPILED, ids=str)
def test_two_gpus_compiled(perfguard: Any, shape: Sharded) -> None:
    on_gpus(perfguard, shape, "inductor")


@pytest.mark.nightly
@pytest.mark.perfguard(ranks=4)
@pytest.mark.parametrize("shape", FOUR, ids=str)
def test_four_gpus(perfguard: Any, shape: Sharded) -> None:
    on_gpus(perfguard, shape)


@pytest.mark.nightly
@pytest.mark.perfguard(ranks=4)
@pytest.mark.parametrize("shape", [FOUR[1], FOUR[2]], ids=str)
def test_four_gpus_compiled(perfguard: Any, shape: Sharded) -> None:
    on_gpus(perfguard, shape, "inductor")
