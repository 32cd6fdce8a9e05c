"""pytester for the flow tests, and the plugin under test loaded as users load it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.nursery import Nursery

pytest_plugins = ["pytester"]

# A commit passes or fails alike everywhere. `--hypothesis-profile=search` looks for new examples.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts Python processes that find torch imported."""
    made = Nursery()
    yield made
    made.close()
