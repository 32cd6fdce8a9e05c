"""One comparison from the repository to the exit status; whatever it lays out is gone when it returns."""

from __future__ import annotations

import datetime
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from perfguard import __version__
from perfguard.compare.comparison import MOST_PAIRS, Tally
from perfguard.compare.conductor import Track, conduct
from perfguard.compare.interrupts import Interrupts
from perfguard.compare.processes import SIDES, Plan, Side, Worker, describe, run_setup, start_worker
from perfguard.compare.records import SCHEMA, Comparison, dump_comparison
from perfguard.compare.table import print_comparison
from perfguard.compare.worktrees import Repository, find_repository
from perfguard.config import Settings, read_settings
from perfguard.errors import ExitStatus
from perfguard.hardware import open_device
from perfguard.judge import exit_status
from perfguard.locking import DeviceLock
from perfguard.records import SCHEMA as REPORT_SCHEMA
from perfguard.records import CaseResult, Hardware, Report, Toolchain
from perfguard.reports import write_atomically

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

DEVICE_OPTION = "--perfguard-device"


@dataclass(frozen=True)
class Request:
    """What the user asked for. `folder`: where the command was started; `base`: None for the main branch; `json`:
    where to write the result."""

    folder: Path
    base: str | None
    setup: str = ""
    json: Path | None = None
    arguments: tuple[str, ...] = ()


@dataclass
class _Site:
    """All that lies about while comparing."""

    repository: Repository
    folder: Path
    lock: DeviceLock | None = None
    workers: list[Worker] = field(default_factory=list)

    def clear(self) -> None:
        """Stop every process, remove every worktree and file, unlock the device."""
        self.stop_workers()
        if self.folder.exists():
            self.repository.remove_worktrees(self.folder)
        if self.lock is not None:
            self.lock.release()

    def stop_workers(self) -> None:
        while self.workers:
            self.workers[-1].stop()
            self.workers.pop()


@dataclass
class _Commits:
    name: str  # what the merge base was asked for with
    base: str
    head: str
    work: str


def compare_in(request: Request, interrupts: Interrupts) -> ExitStatus:
    """Compare the working tree that `request.folder` lies in with its merge base, and print the result.

    Raises:
        UsageError: not a git checkout, an unknown base, a bad option or setting, code that is not the worktree's.
        DeviceError: no such device, or it is in use for too long.
        KeyboardInterrupt: SIGINT or SIGTERM came; all is removed.
    """
    repository = find_repository(request.folder)
    name = f"perfguard-compare-{os.getpid()}-{secrets.token_hex(4)}"
    site = _Site(repository, Path(tempfile.gettempdir()).resolve() / name)
    progress = _Progress()
    try:
        with interrupts.armed(), progress:
            comparison, failed = _compare(request, site, interrupts, progress)
    except KeyboardInterrupt:
        progress.tell("interrupted; removing the worktrees")
        raise
    finally:
        site.clear()
    print_comparison(comparison, _console())
    if request.json is not None:
        write_atomically(request.json, dump_comparison(comparison))
    if not comparison.rows:
        progress.tell("no guarded test was measured on both sides; name tests that use the perfguard fixture")
    return exit_status(comparison.words, strict=False, measured=comparison.measured, tests_failed=failed)


def _compare(request: Request, site: _Site, interrupts: Interrupts, progress: _Progress) -> tuple[Comparison, bool]:
    settings = read_settings(_project(request.folder, site.repository.root))
    device, arguments = _open_device(settings, request.arguments)
    commits = _lay_out(request, site, interrupts, progress)
    inside = request.folder.resolve().relative_to(site.repository.root.resolve())
    plan = Plan(site.folder, site.repository.root, inside, arguments)
    if request.setup:
        for side in SIDES:
            progress.tell(f"setting up {describe(side)}: {request.setup}")
            run_setup(plan, side, request.setup, settings.session_minutes, interrupts)
    site.lock = DeviceLock(device.key)
    site.lock.acquire(settings.lock_minutes, progress.tell)
    tally = Tally()
    while (tally.pairs == 0 or tally.undecided) and not tally.problem and tally.pairs < 2 * MOST_PAIRS:
        _measure_pair(plan, site, tally, settings, interrupts, progress)
    comparison = Comparison(
        schema=SCHEMA,
        base=commits.name,
        base_commit=commits.base,
        head_commit=commits.head,
        uncommitted=commits.work != commits.head,
        started=_now(),
        perfguard=__version__,
        hardware=device.identity,
        toolchain=device.toolchain(),
        rows=tally.rows(),
        measured=tally.measured,
        pairs=tally.pairs,
        problem=tally.problem,
    )
    return comparison, bool(tally.problem)


def _lay_out(request: Request, site: _Site, interrupts: Interrupts, progress: _Progress) -> _Commits:
    """Make the temporary folder and the three worktrees."""
    repository = site.repository
    name = request.base or repository.main_branch()
    base = repository.merge_base(name)
    site.folder.mkdir(mode=0o700)
    head = repository.git("rev-parse", "HEAD")
    commits = _Commits(name, base, head, repository.snapshot(site.folder / "index"))
    progress.tell(f"merge base {base[:12]} of {name} and HEAD; checking out")
    if commits.work == base:
        progress.tell("the working tree is the merge base: nothing can differ but noise")
    if repository.has_submodules:
        progress.tell("submodules stay empty in the worktrees; --setup 'git submodule update --init' fills them")
    for side, commit in zip(SIDES, (base, base, commits.work), strict=True):
        with interrupts.delayed():
            repository.add_worktree(site.folder / side, commit)
    return commits


def _open_device(settings: Settings, arguments: Sequence[str]) -> tuple[Device, tuple[str, ...]]:
    """The device to lock, and the arguments with which every side opens it, whatever its own settings say."""
    name = settings.device
    for number, argument in enumerate(arguments):
        if argument == DEVICE_OPTION and number + 1 < len(arguments):
            name = arguments[number + 1]
        elif argument.startswith(f"{DEVICE_OPTION}="):
            name = argument.partition("=")[2]
    return open_device(name), (*arguments, f"{DEVICE_OPTION}={name}")


def _measure_pair(
    plan: Plan, site: _Site, tally: Tally, settings: Settings, interrupts: Interrupts, progress: _Progress
) -> None:
    """Start new processes, lead them through what is undecided, and take what they found."""
    number = tally.pairs + 1
    folder = plan.folder / f"pair-{number}"
    folder.mkdir()
    selection = None
    if tally.pairs:
        selection = folder / "tests.txt"
        selection.write_text("".join(f"{plan.named(nodeid)}\n" for nodeid in tally.undecided), encoding="utf-8")
    progress.begin_pair(number, tally)
    request = _request(tally.request())
    reports: dict[Side, Report | None] = {}
    for side in SIDES:
        start_worker(
            plan, side, folder / side, request, selection,
            numerics=number == 1, interrupts=interrupts, started=site.workers,
        )  # fmt: skip
    workers = list(site.workers)
    outcome = conduct(workers, tally.wants, minutes=settings.session_minutes, progress=progress.at)
    site.stop_workers()
    for worker in workers:
        reports[worker.side] = worker.report()
    tally.take(outcome, reports)


def _request(results: list[CaseResult]) -> Report:
    """What the workers are to measure like: the timers of `results`."""
    nothing = Hardware(slug="", vendor="", name="", architecture="")
    return Report(REPORT_SCHEMA, nothing, Toolchain(), _now(), results=results)


def _project(folder: Path, root: Path) -> Path:
    """The nearest folder from `folder` up to `root` that holds a pyproject.toml, where settings stand."""
    folder, root = folder.resolve(), root.resolve()
    for candidate in (folder, *folder.parents):
        if candidate == root or (candidate / "pyproject.toml").is_file():
            return candidate
    return root


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(highlight=False, markup=False, emoji=False, width=None if terminal else 240)


class _Progress:
    """What is being done, on standard error: a line that changes on a terminal, else one line for each stage."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._stage = ""
        self._seen: set[Track] = set()

    def __enter__(self) -> None:
        if self._status is not None:
            self._status.start()

    def __exit__(self, *exc_info: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, text: str) -> None:
        self._console.print(f"perfguard compare: {text}")

    def begin_pair(self, number: int, tally: Tally) -> None:
        total, decided = tally.count
        so_far = f": {decided} of {total} metrics decided" if total else ""
        self._stage = f"process pair {number} of at most {max(MOST_PAIRS, number)}{so_far}"  # more where some were lost
        self._seen.clear()
        if self._status is None:
            self.tell(self._stage)
        else:
            self._status.update(f"{self._stage}; starting")

    def at(self, track: Track) -> None:
        self._seen.add(track)
        if self._status is not None:
            self._status.update(f"{self._stage}; {len(self._seen)}: {track.key} {track.metric}")
