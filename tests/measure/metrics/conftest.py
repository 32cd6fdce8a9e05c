"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.measure.metrics.binaries import Reader


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One compiler and one cache for all tests of what kernels are on targets."""
    pytest.importorskip("triton")
    made = Reader(tmp_path_factory.mktemp("binaries"))
    yield made
    made.compiler.close()
