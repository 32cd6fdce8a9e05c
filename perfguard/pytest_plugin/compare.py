"""`perfguard compare [BASE] [-- pytest arguments]`: a run of pytest that the merge base judges, without records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from perfguard.model.config import CompareOptions, find_project, read_settings
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.pytest_plugin.items import BESIDE
from perfguard.session.child import add_pytest_arguments, own_packages, packages_at
from perfguard.session.pairing.bases import find_base
from perfguard.session.pairing.worktrees import find_repository

_REPORTS = "compare"  # Folder below that of the reports, which stay those of runs with records.
# Where perfguard is installed, pytest warns that this process has imported it before; a project may make that an error.
_IMPORTED = "ignore:Module already imported so cannot be rewritten; perfguard:pytest.PytestAssertRewriteWarning"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard compare`."""
    parser.description = (
        "Runs pytest --perfguard in the working tree, uncommitted changes included, and asks the merge base of HEAD "
        "and BASE about every case: times are measured alternately on one device. Needs no stored baseline and "
        "writes none."
    )
    parser.add_argument(
        "base",
        metavar="BASE",
        nargs="?",
        help="branch, tag or commit that the work will be merged into (default: the remote's or local main branch)",
    )
    parser.add_argument(
        "--base-python",
        type=Path,
        metavar="PATH",
        help="an interpreter, or a folder of site-packages, that the base runs with: compares two environments "
        "(torch, Triton, the driver's libraries), with HEAD as BASE of the same code",
    )
    add_pytest_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Compare the working tree around the current folder with its merge base; returns pytest's exit status.

    Raises:
        UsageError: not a git checkout, an unknown base, an environment that does not run.
    """
    here = Path.cwd()
    project = find_project(here)
    settings = read_settings(project)
    reports = project / settings.reports
    name = options.base or find_repository(here).main_branch()
    base = find_base(here, name, [project / settings.baselines, reports])
    if base.commit is None:
        raise UsageError(base.problem)
    if options.base_python is not None:
        packages_at(options.base_python)  # An error ends the command before any test runs.
    elif base.equal:
        print(f"UNCHANGED: the working tree is {base.commit[:12]}, the merge base with {name}, but for documentation")
        return int(ExitStatus.PASSED)
    folder = reports / _REPORTS
    for old in folder.glob("report-*.json"):
        old.unlink()
    if str(here) not in sys.path:  # `python -m pytest` does the same.
        sys.path.insert(0, str(here))
    beside = CompareOptions(options.base_python, options.setup)
    plugin = own_packages().plugin
    given = [
        *plugin,
        f"-W={_IMPORTED}",
        *options.pytest_arguments,
        "--perfguard",
        f"--perfguard-base={name}",
        f"--perfguard-reports={folder}",
    ]
    return int(pytest.main(given, plugins=[_Compare(beside)]))


class _Compare:
    """Passes options that pytest does not know to perfguard's plugin."""

    def __init__(self, beside: CompareOptions) -> None:
        self._beside = beside

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        if getattr(config.option, "numprocesses", None):  # Workers would judge by records.
            raise pytest.UsageError("perfguard compare: one process runs the tests; add -n0 behind --")
        config.stash[BESIDE] = self._beside
