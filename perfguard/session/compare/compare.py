"""`perfguard compare BASE [-- pytest arguments]`, from the repository to the exit status. It removes all its files
before it returns."""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console

from perfguard import __version__
from perfguard.judge.run_verdicts import exit_status
from perfguard.measure.devices import open_device
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import read_settings
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records.comparison import SCHEMA, Comparison, dump_comparison
from perfguard.render.comparison_table import print_comparison
from perfguard.session.child import child_command, named_device
from perfguard.session.compare.rows import rows_of
from perfguard.session.device_lock import DeviceLock
from perfguard.session.pairing.base_commit import find_base
from perfguard.session.pairing.engine import Site
from perfguard.session.pairing.interrupts import Interrupts
from perfguard.session.pairing.outcome import Track
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worktrees import find_repository

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Request:
    """The user's request. `folder`: the command's working folder; `base`: None for the main branch; `json`: path for
    the result."""

    folder: Path
    base: str | None
    setup: str = ""
    json: Path | None = None
    arguments: tuple[str, ...] = ()


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
    """Compare, print, and return the exit status, one of `perfguard.ExitStatus`.

    Raises:
        PerfguardError: nothing can be compared; with the next step.
    """
    request = Request(Path.cwd(), options.base, options.setup, options.json, tuple(options.pytest_arguments))
    try:
        with Interrupts() as interrupts:
            return int(compare_in(request, interrupts))
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)


def compare_in(request: Request, interrupts: Interrupts) -> ExitStatus:
    """Compare the working tree around `request.folder` with its merge base, and print the result.

    A signal, a limit or a process that dies ends the comparison early; the results so far are printed.

    Raises:
        UsageError: not a git checkout, an unknown base, a bad option or setting, code that is not the worktree's.
        DeviceError: no such device, or it is in use for too long.
        KeyboardInterrupt: after SIGINT or SIGTERM; all files are removed.
    """
    repository = find_repository(request.folder)
    settings = read_settings(_project(request.folder, repository.root))
    name = request.base or repository.main_branch()
    base = find_base(request.folder, name, [repository.root / settings.baselines, repository.root / settings.reports])
    if base.commit is None:
        raise UsageError(base.problem)
    if base.equal:
        _say(f"UNCHANGED: the working tree is {base.commit[:12]}, the merge base with {name}, but for documentation")
        return ExitStatus.PASSED
    with _Progress() as progress:
        # Every side opens the same device, regardless of its own settings.
        name_of_device = named_device(request.arguments, request.folder) or settings.device
        device = open_device(name_of_device)
        command = child_command(request.arguments, request.folder, name_of_device)
        site = Site(repository, command, device.identity.slug, settings, interrupts, progress.begin, progress.at)
        comparison = _Comparing(request, site, device, name, base.commit).run()
    print_comparison(comparison, _console())
    if request.json is not None:
        write_atomically(request.json, dump_comparison(comparison))
    if comparison.problem == INTERRUPTED:
        raise KeyboardInterrupt
    if not comparison.rows:
        _say("no guarded test was measured on both sides; name tests that use the perfguard fixture")
    return exit_status(
        comparison.words, strict=False, measured=comparison.measured, tests_failed=bool(comparison.problem)
    )


@dataclass
class _Comparing:
    request: Request
    site: Site
    device: Device
    name: str  # the user's name for the base
    base: str

    def run(self) -> Comparison:
        """Make the worktrees, measure, remove them."""
        settings, interrupts = self.site.settings, self.site.interrupts
        tally = Tally()
        work, problem = self.base, ""
        try:
            with self.site as site, DeviceLock(self.device.key) as lock, interrupts.armed():
                work = site.lay_out(self.base).work
                if self.request.setup:
                    site.tell(f"setting up: {self.request.setup}")
                    site.set_up(self.request.setup)
                lock.acquire(settings.lock_minutes, _say)
                site.measure(tally, None, math.inf)
                problem = tally.problem
        except KeyboardInterrupt:
            _say("interrupted; the worktrees are removed")
            problem = INTERRUPTED
        head = self.site.repository.git("rev-parse", "HEAD")
        return Comparison(
            schema=SCHEMA,
            base=self.name,
            base_commit=self.base,
            head_commit=head,
            uncommitted=work not in (head, self.base),
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            perfguard=__version__,
            hardware=self.device.identity,
            toolchain=self.device.toolchain(),
            rows=rows_of(tally),
            measured=tally.measured,
            pairs=tally.pairs,
            problem=problem,
        )


def _say(text: str) -> None:
    Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True).print(f"perfguard compare: {text}")


def _project(folder: Path, root: Path) -> Path:
    """The nearest folder from `folder` up to `root` that holds a pyproject.toml, for its settings."""
    folder, root = folder.resolve(), root.resolve()
    for candidate in (folder, *folder.parents):
        if candidate == root or (candidate / "pyproject.toml").is_file():
            return candidate
    return root


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(highlight=False, markup=False, emoji=False, width=None if terminal else 240)


class _Progress:
    """Progress on standard error: a line that changes on a terminal, otherwise one line for each stage."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._stage = ""
        self._seen: set[Track] = set()

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, stage: str) -> None:
        """A process pair starts."""
        self._stage = stage
        self._seen.clear()
        if self._status is None:
            _say(stage)
        else:
            self._status.update(f"{stage}; starting")

    def at(self, track: Track) -> None:
        """A time is measured."""
        self._seen.add(track)
        if self._status is not None:
            self._status.update(f"{self._stage}; {len(self._seen)}: {track.key} {track.metric}")
