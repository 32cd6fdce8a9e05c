"""pytester for the flow tests, forked processes, and what is tested every night alone."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker, spawn

import pytest

from tests.nursery import Nursery

# There is a worker a core: more threads in each would only wait for one another, which makes some tests take ten times
# as long. Libraries ask for this when they are loaded, which is later, and processes that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A background job of a shell script has SIGINT ignored, and so has all that it starts: Ctrl-C would be tried in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester"]

# `scripts/guard` runs guarded tests in an environment that holds what the kernels need, and hypothesis is not among it.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # A commit passes or fails alike everywhere. `--hypothesis-profile=search` looks for new examples.
    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.register_profile("search", max_examples=1000, deadline=None)
    settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--daily", action="store_true", help="skip what is tested every night, as scripts/test does")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--daily"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    for item in nightly:
        item.add_marker(pytest.mark.skip(reason="tested every night, and by scripts/test --whole"))
    # Skipped tests of several ranks would start them, each of which imports torch to skip them.
    ranked = [item for item in nightly if any("ranks" in mark.kwargs for mark in item.iter_markers("perfguard"))]
    if ranked:
        config.hook.pytest_deselected(items=ranked)
        left_out = set(ranked)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Starts Python processes that find torch imported."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def interpreting(nursery: Nursery) -> Iterator[Nursery]:
    """Its processes interpret kernels where there is no GPU."""
    made = nursery.interpreting()
    yield made
    made.close()


@pytest.fixture(scope="session")
def spawning(interpreting: Nursery) -> Iterator[None]:
    """Processes that `multiprocessing` spawns are of that nursery, but for the one that outlives them all."""
    resource_tracker.ensure_running()
    before = spawn.get_executable()
    multiprocessing.set_executable(interpreting.python)
    yield
    multiprocessing.set_executable(before)
