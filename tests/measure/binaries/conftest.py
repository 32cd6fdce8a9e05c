from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.measure.metrics.binaries import Reader


@pytest.fixture(scope="package")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One compiler a side and one cache for all tests."""
    pytest.importorskip("triton")
    made = Reader(tmp_path_factory.mktemp("binaries"))
    yield made
    made.close()
