"""Decides which process runs the tests that are marked for several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.pytest_plugin.failures import usage_errors
from perfguard.pytest_plugin.items import has_fixture, mark_of
from perfguard.pytest_plugin.start import build_config
from perfguard.ranks.in_rank import InRank
from perfguard.ranks.rank_group import rank_here, ranks_here
from perfguard.ranks.ranked_items import RankedItems
from perfguard.session.child import read_request

_RANKS = "perfguard-ranks"


def start_rank(config: pytest.Config) -> bool:
    """Start a rank of a launch, or a rank that supports rank 0 under torchrun, which alone judges and prints. Other
    processes get False, and start as if there were no ranks."""
    if not config.option.perfguard_session:
        helps = ranks_here() > 0 and rank_here() > 0
        if helps:
            silence(config)
        return helps
    with usage_errors():
        request = read_request(Path(config.option.perfguard_session))
        if request.ranks:
            in_rank = InRank(build_config(config), measure=request.measure, request=request)
            config.pluginmanager.register(in_rank, _RANKS)
    return request.ranks > 0


def arrange(config: pytest.Config, items: list[pytest.Item], *, measure: bool) -> None:
    """Check the marks, and register the hooks for tests of several ranks.

    Such a test runs in the ranks of a launch. Under torchrun it runs here if its mark has the launch's number of ranks.
    Other guarded tests are then deselected, because all ranks would run them at once. A process that measures times for
    another process deselects tests of several ranks.

    Raises:
        UsageError: a mark has wrong arguments.
    """
    marks, here = {item: mark_of(item) for item in items}, ranks_here()
    needed = (here and measure) or any(mark.ranks for mark in marks.values())
    if config.pluginmanager.has_plugin(_RANKS) or not needed:
        return
    if config.option.perfguard_session:
        _keep(config, items, [item for item in items if not marks[item].ranks])
    elif here:
        foreign = {item for item in items if not (marks[item].ranks or has_fixture(item))}
        _keep(config, items, [item for item in items if marks[item].ranks == here or item in foreign])
        with usage_errors():
            built = build_config(config)
        config.pluginmanager.register(InRank(built, measure=measure), _RANKS)
        if rank_here():
            silence(config)
    else:
        config.pluginmanager.register(RankedItems(config), _RANKS)


def silence(config: pytest.Config) -> None:
    """Print nothing, in a rank other than 0 under torchrun."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        config.pluginmanager.unregister(reporter)


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item]) -> None:
    chosen = set(kept)
    left_out = [item for item in items if item not in chosen]
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)
