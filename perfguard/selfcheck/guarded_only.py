"""A pytest plugin for sessions of selfcheck (`-p`): the guarded tests alone, in an order of each session's own.

What a case leaves behind for the next (clocks, heat, caches) so differs between sessions, as it does between the
fresh processes that record a baseline and confirm a suspicion.
"""

from __future__ import annotations

import random

import pytest

_FIXTURES = ("perfguard", "benchmark")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep and shuffle what is guarded."""
    guarded = [item for item in items if any(name in getattr(item, "fixturenames", ()) for name in _FIXTURES)]
    config.hook.pytest_deselected(items=[item for item in items if item not in guarded])
    random.SystemRandom().shuffle(guarded)
    items[:] = guarded
