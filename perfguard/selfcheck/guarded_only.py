"""A pytest plugin for sessions of selfcheck (`-p`): runs only guarded tests, in a random order for each session.

So the effects of a case on the next one (clocks, heat, caches) differ between sessions, as they do between the fresh
processes that record a baseline and confirm a suspicion.
"""

from __future__ import annotations

import random

import pytest

_FIXTURES = ("perfguard", "benchmark")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep and shuffle the guarded tests."""
    guarded = [item for item in items if any(name in getattr(item, "fixturenames", ()) for name in _FIXTURES)]
    config.hook.pytest_deselected(items=[item for item in items if item not in guarded])
    random.SystemRandom().shuffle(guarded)
    items[:] = guarded
