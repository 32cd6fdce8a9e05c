"""pytester for the flow tests, forked processes, and what is tested every night alone."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
from collections import Counter, defaultdict
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

# Tests whose cases take long, in Triton's interpreter or beside an oracle. With every change each value of each
# parameter is tried, and every night all combinations.
COMBINED = ("tests/kernels/", "tests/check/test_other_implementations.py")
WAYS = ("kernel_path", "impl")  # fixtures that decide which code runs: a value is tried on each of their ways
Value = tuple[str, ...]  # the way, the names of parameters that are given together, and their values

# `scripts/guard` runs guarded tests in an environment that holds what the kernels need, and hypothesis is not among it.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # A commit passes or fails alike everywhere. `--hypothesis-profile=search` looks for new examples.
    settings.register_profile("repeatable", derandomize=True, deadline=None)
    settings.register_profile("search", max_examples=1000, deadline=None)
    settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--daily", action="store_true", help="without what is tested every night, as scripts/test does")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is tested every night: what is marked so, and combinations of parameters.

    Skipped tests would be set up, and those of several ranks would start them.
    """
    if not config.getoption("--daily"):
        return
    kept = {item for item in items if item.get_closest_marker("nightly") is None}
    tests: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item in kept and isinstance(item, pytest.Function) and item.nodeid.startswith(COMBINED):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        kept -= set(cases).difference(each_value(cases))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def each_value(cases: list[pytest.Function]) -> list[pytest.Function]:
    """Few of the cases of one test, with each value of each parameter, spread over the values of the others."""
    values = {case: _values(case) for case in cases}
    every = frozenset[Value]().union(*values.values())
    uses: Counter[Value] = Counter()
    kept: list[pytest.Function] = []
    while len(uses) < len(every):
        new = {case: sum(uses[each] == 0 for each in values[case]) for case in cases}
        kept.append(max(cases, key=lambda case: (new[case], -sum(uses[each] for each in values[case]))))
        uses.update(values[kept[-1]])
    return kept or cases


def _values(case: pytest.Function) -> frozenset[Value]:
    """What each of its parametrisations gives a case, on the way that it takes."""
    given = case.callspec.params if hasattr(case, "callspec") else {}
    way = str([given.get(name) for name in WAYS])
    names = [mark.args[0] for mark in case.iter_markers("parametrize")]
    split = [each.replace(",", " ").split() if isinstance(each, str) else each for each in names]
    return frozenset((way, *each, *(repr(given[name]) for name in each)) for each in [*split, ()])


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
