"""Blocks over several ranks under guard: what they exchange, and every gradient against the whole model's.

On two ranks of gloo with every change; compiled, which takes seconds on each rank, and on four every night. Blocks that
are compiled with every change are those of tests/distributed/test_parallel.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.sharded_cases import Sharded, guard
from tests.kernels.paths import COMPILING

pytestmark = COMPILING

TWO = [
    Sharded("dense", (("dp", 2),)),
    Sharded("moe", (("dp", 2),)),
    Sharded("moe", (("efsdp", 1), ("ep", 2))),
    Sharded("moe", (("efsdp", 1), ("ep", 2)), "hot"),  # one rank has all rows
    Sharded("dense", (("dp", 1), ("tp", 2))),
    Sharded("moe", (("efsdp", 1), ("ep", 1), ("tp", 2)), experts=True),
    Sharded("moe", (("efsdp", 1), ("ep", 2)), precision="fp8"),
]
FOUR = [
    Sharded("moe", (("efsdp", 2), ("ep", 2)), "hot"),
    Sharded("moe", (("efsdp", 1), ("ep", 4))),
    Sharded("dense", (("dp", 2), ("tp", 2))),
    Sharded("moe", (("efsdp", 1), ("ep", 2), ("tp", 2))),
    Sharded("moe", (("efsdp", 1), ("ep", 2), ("tp", 2)), experts=True),
]


@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("shape", TWO, ids=str)
def test_two_ranks(perfguard: Any, shape: Sharded) -> None:
    guard(perfguard, shape, timed=False)


@pytest.mark.nightly
@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("shape", TWO, ids=str)
def test_two_ranks_compiled(perfguard: Any, shape: Sharded) -> None:
    guard(perfguard, shape, "aot_eager", timed=False)


@pytest.mark.nightly
@pytest.mark.perfguard(ranks=4)
@pytest.mark.parametrize("shape", FOUR, ids=str)
def test_four_ranks(perfguard: Any, shape: Sharded) -> None:
    guard(perfguard, shape, timed=False)


@pytest.mark.nightly
@pytest.mark.perfguard(ranks=4)
@pytest.mark.parametrize("shape", [FOUR[0], FOUR[4]], ids=str)
def test_four_ranks_compiled(perfguard: Any, shape: Sharded) -> None:
    guard(perfguard, shape, "aot_eager", timed=False)


@pytest.mark.nightly
@pytest.mark.perfguard(ranks=2)
@pytest.mark.parametrize("shape", [TWO[0], TWO[3]], ids=str)
def test_two_ranks_inductor(perfguard: Any, shape: Sharded) -> None:
    guard(perfguard, shape, "inductor", timed=False)
