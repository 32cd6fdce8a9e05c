"""The pytest plugin: options, the `perfguard` fixture, and hooks that pass pytest's events to the guard.

Importing this module costs a pytest run without perfguard almost nothing: everything else is loaded on demand.
"""

from __future__ import annotations

import argparse
import copy
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perfguard.pytest_plugin.fixture import Guarded

OPTIONS_HELP = """\
exit status: 0 passed, 1 a test failed otherwise or a case is BROKEN, 2 interrupted, 3 internal error, 4 usage,
5 no tests, 10 a case is SLOWER or CHANGED, 11 a case is WRONG, 12 nothing was measured, 13 not guarded (strict),
or inconclusive: most times could not be judged"""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("perfguard", f"perfguard: guard GPU kernels ({OPTIONS_HELP})")
    group.addoption(
        "--perfguard",
        action="store_true",
        default=False,
        help="measure guarded cases, compare them with baselines/<hardware>/ and judge them",
    )
    group.addoption(
        "--perfguard-update",
        nargs="?",
        const="all",
        metavar="CATEGORIES",
        help="measure, show the changes and write them to the baselines; categories: "
        "new, faster, slower, changed, stale (default: all but stale, which removes what is gone)",
    )
    group.addoption("--perfguard-reason", metavar="TEXT", default="", help="why slower or heavier is accepted")
    group.addoption(
        "--perfguard-dirty",
        action="store_true",
        default=False,
        help="record although the code has changes that are not committed; the commit in the baselines gets a '+'",
    )
    group.addoption(
        "--perfguard-base",
        metavar="REF",
        help="branch, tag or commit: times in question are measured by turns beside its merge base with HEAD "
        "(default: HEAD itself, so that the working tree's changes are what is judged)",
    )
    group.addoption("--perfguard-device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1, xpu, fake (default: auto)")
    group.addoption("--perfguard-reports", metavar="DIR", help="folder of report-<hardware>.json (default: .perfguard)")
    group.addoption(
        "--perfguard-lane",
        metavar="LANE",
        default="",
        help="guard as this lane: the hardware's slug, or 'cpu': then nothing is timed, and only what is the same on "
        "every CPU is read and judged, by any number of workers (-n)",
    )
    group.addoption(
        "--perfguard-all-configs",
        action="store_true",
        default=False,
        help="check every configuration of every kernel, however long that takes",
    )
    group.addoption(
        "--perfguard-observe",
        nargs="?",
        const=".",
        metavar="PATHS",
        help="also observe tests that do not use the fixture, as they are: operators, launches, copies, reads of the "
        "host, memory, compilations; without =PATHS (a,b) all collected tests",
    )
    group.addoption("--perfguard-session", metavar="FILE", help=argparse.SUPPRESS)  # Measures for another run.


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]):  # type: ignore[no-untyped-def]
    """Settle what conftest files depend on, before pytest loads them. A path behind a bare `--perfguard-observe` is a
    path to collect; argparse would take it for the option's value. Kernels are interpreted without a GPU. A process
    that measures for another one ends with it, since these files may take as long as any test."""
    if early_config.known_args_namespace.perfguard_session:
        from perfguard.session.child import end_with_parent

        end_with_parent(early_config.known_args_namespace.perfguard_session)
    if "--perfguard-observe" in args:
        args[:] = ["--perfguard-observe=." if each == "--perfguard-observe" else each for each in args]
        known = copy.copy(early_config.known_args_namespace)
        early_config.known_args_namespace = parser.parse_known_args(args, known)
    option = early_config.known_args_namespace
    if _measures(option) or option.perfguard_session:
        from perfguard.pytest_plugin.without_gpu import WithoutGpu

        early_config.pluginmanager.register(WithoutGpu(early_config), "perfguard-without-gpu")
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config):  # type: ignore[no-untyped-def]
    """In a process that measures for another one, drop options not meant for it, before any plugin acts on them."""
    if config.option.perfguard_session:
        from perfguard.pytest_plugin.start import reset_options

        reset_options(config)
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    config.addinivalue_line(
        "markers",
        "perfguard(ranks=N | layout=N): run the test on N ranks at once, or in one process as one rank of N that "
        "exchange nothing; without either: observe the test as it is, under --perfguard",
    )
    if option.perfguard_session:
        from perfguard.pytest_plugin.start import drop_plugins

        drop_plugins(config)
    worker = hasattr(config, "workerinput")
    if not (_measures(option) or option.perfguard_session):
        if option.perfguard_reason and not worker:
            raise pytest.UsageError("--perfguard-reason: goes with --perfguard-update; add it or leave both out")
        if option.perfguard_observe is not None and not worker:
            raise pytest.UsageError("--perfguard-observe: goes with --perfguard; add it or leave both out")
        if option.perfguard_lane and not worker:
            raise pytest.UsageError("--perfguard-lane: goes with --perfguard; add it or leave both out")
        return
    if "RANK" in os.environ:
        from perfguard.ranks.in_rank import start_rank

        if start_rank(config):
            return
    from perfguard.pytest_plugin.start import start, start_worker

    (start_worker if worker else start)(config)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Arrange for tests of several ranks, if there are any."""
    of_ranks = "RANK" in os.environ and _measures(config.option)
    if of_ranks or any(item.get_closest_marker("perfguard") for item in items):
        from perfguard.ranks.in_rank import arrange

        arrange(config, items, measure=_measures(config.option))


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto` of a measuring run: one worker per device if times are read."""
    if not _measures(config.option) or config.option.perfguard_lane == "cpu":
        return None
    from perfguard.pytest_plugin.start import count_devices

    return count_devices(config)


def _measures(option: Any) -> bool:
    return bool(option.perfguard or option.perfguard_update is not None)


@pytest.fixture
def perfguard(request: pytest.FixtureRequest) -> Any:
    """Guard one call: `perfguard(fn, *args, reference=…)` checks it against its reference and, under
    `--perfguard`, measures it and compares it with its baseline. `perfguard.device` is where inputs belong."""
    from perfguard.pytest_plugin.fixture import guarded
    from perfguard.ranks.rank_group import ranks_of

    guard: Guarded
    with guarded(request, ranks_of) as guard:
        yield guard
