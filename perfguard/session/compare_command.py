"""`perfguard compare BASE [-- pytest arguments]`: the merge base and the working tree, measured side by side by live
processes, from the repository to the exit status. It removes all its files before it returns."""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from pathlib import Path

from rich.console import Console

from perfguard import __version__
from perfguard.judge.run_verdicts import exit_status
from perfguard.measure.devices import open_device
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import read_settings
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.render.comparison import SCHEMA, Comparison, dump_comparison, print_comparison
from perfguard.session.child import child_command, named_device
from perfguard.session.comparison import rows_of
from perfguard.session.device_lock import DeviceLock
from perfguard.session.pairing.pairs import Site
from perfguard.session.pairing.processes import Interrupts
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worktrees import find_base, find_repository

INTERRUPTED = "interrupted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard compare`."""
    parser.description = (
        "Measures the merge base of HEAD and BASE and the working tree, uncommitted changes included, side by side "
        "in live processes on one device, block against block. Needs no stored baseline and writes none."
    )
    parser.add_argument(
        "base",
        metavar="BASE",
        nargs="?",
        help="branch, tag or commit that the work will be merged into (default: the remote's or local main branch)",
    )
    parser.add_argument("--setup", metavar="CMD", default="", help="run in each worktree first, to build extensions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found to FILE")
    parser.add_argument(
        "pytest_arguments", nargs="*", metavar="-- PYTEST ARGUMENTS", help="which tests; as after `pytest`"
    )


def run(options: argparse.Namespace) -> int:
    """Compare the working tree around the current folder with its merge base, print, and return the exit status.

    A signal, a limit or a process that dies ends the comparison early; the results so far are printed.

    Raises:
        UsageError: not a git checkout, an unknown base, a bad option or setting, code that is not the worktree's.
        DeviceError: no such device, or it is in use for too long.
    """
    try:
        with Interrupts() as interrupts:
            return int(_compare(options, Path.cwd(), interrupts))
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)


def _compare(options: argparse.Namespace, folder: Path, interrupts: Interrupts) -> ExitStatus:
    repository = find_repository(folder)
    settings = read_settings(_project(folder, repository.root))
    name = options.base or repository.main_branch()
    base = find_base(folder, name, [repository.root / settings.baselines, repository.root / settings.reports])
    if base.commit is None:
        raise UsageError(base.problem)
    if base.equal:
        _say(f"UNCHANGED: the working tree is {base.commit[:12]}, the merge base with {name}, but for documentation")
        return ExitStatus.PASSED
    # Every side opens the same device, regardless of its own settings.
    device_name = named_device(options.pytest_arguments, folder) or settings.device
    device = open_device(device_name)
    command = child_command(options.pytest_arguments, folder, device_name)
    tally, work, problem = Tally(), base.commit, ""
    try:
        with (
            Site(repository, command, device.identity.slug, settings, interrupts, _say) as site,
            DeviceLock(device.key) as lock,
            interrupts.armed(),
        ):
            work = site.lay_out(base.commit)
            if options.setup:
                _say(f"setting up: {options.setup}")
                site.set_up(options.setup)
            lock.acquire(settings.lock_minutes, _say)
            site.measure(tally, None, math.inf)
            problem = tally.problem
    except KeyboardInterrupt:
        _say("interrupted; the worktrees are removed")
        problem = INTERRUPTED
    head = repository.git("rev-parse", "HEAD")
    comparison = Comparison(
        schema=SCHEMA,
        base=name,
        base_commit=base.commit,
        head_commit=head,
        uncommitted=work not in (head, base.commit),
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        perfguard=__version__,
        hardware=device.identity,
        toolchain=device.toolchain(),
        rows=rows_of(tally),
        measured=tally.measured,
        pairs=tally.pairs,
        problem=problem,
    )
    width = None if sys.stdout.isatty() else 240
    print_comparison(comparison, Console(highlight=False, markup=False, emoji=False, width=width))
    if options.json is not None:
        write_atomically(options.json, dump_comparison(comparison))
    if problem == INTERRUPTED:
        return ExitStatus.INTERRUPTED
    if not comparison.rows:
        _say("no guarded test was measured on both sides; name tests that use the perfguard fixture")
    return exit_status(comparison.words, strict=False, measured=comparison.measured, tests_failed=bool(problem))


def _say(text: str) -> None:
    print(f"perfguard compare: {text}", file=sys.stderr, flush=True)


def _project(folder: Path, root: Path) -> Path:
    """The nearest folder from `folder` up to `root` that holds a pyproject.toml, for its settings."""
    folder, root = folder.resolve(), root.resolve()
    for candidate in (folder, *folder.parents):
        if candidate == root or (candidate / "pyproject.toml").is_file():
            return candidate
    return root
