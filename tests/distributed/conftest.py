"""Groups of processes for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tests.kernels.vocabulary  # noqa: F401 - before anything imports triton, or this module
from tests.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def two_ranks(spawning: None) -> Iterator[Ranks]:
    group = Ranks(2)
    yield group
    group.close()


@pytest.fixture(scope="session")
def four_ranks(spawning: None) -> Iterator[Ranks]:
    """For tests of every night."""
    group = Ranks(4)
    yield group
    group.close()
