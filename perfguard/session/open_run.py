"""Opens a run, ready to guard, from a configuration and a device."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perfguard import __version__
from perfguard.judge.lane import Lane, is_own
from perfguard.judge.screen import ControlDraw, covering
from perfguard.measure.timers.blocks import collect
from perfguard.model.atomic_files import make_folder
from perfguard.model.config import Config
from perfguard.model.errors import UsageError
from perfguard.model.records import NO_BASE, SCHEMA, BaseTree, Case, CaseResult, Invocation, Report, TimedEntry
from perfguard.model.records.report import VARIABLES
from perfguard.model.suite_names import file_of
from perfguard.session.case_pipeline import ReadingPlan, Runner, StoredTimers
from perfguard.session.child import EVERYTHING, ChildCommand, Request
from perfguard.session.pairing.bases import TreesOfRecords, find_bases
from perfguard.session.pairing.worktrees import commit_of
from perfguard.session.run import Run
from perfguard.session.turns_file import TurnsFile
from perfguard.store.baseline_files import Store

if TYPE_CHECKING:
    from perfguard.measure.binaries.call_binaries import Binaries
    from perfguard.measure.devices.device import Device
    from perfguard.model.records import Reading
    from perfguard.session.pairing.worker import PairWorker


def open_run(
    config: Config,
    device: Device,
    suites: Sequence[str],
    selected: Sequence[Case] = (),
    *,
    command: ChildCommand | None = None,
    request: Request | None = None,
    worker: PairWorker | None = None,
) -> Run:
    """Load the device's baselines for `suites` and make everything ready to guard.

    Args:
        selected: forward cases of the selected tests, from which controls are drawn. Empty: they are unknown, and any
            recorded case may be tested.
        command: starts children of this process; None: it has none.
        request: request of the process that this one measures for; None: it measures for itself.
        worker: this process as the worker of a process pair, if it is one.

    Raises:
        BaselineError: a file that cannot be read.
        UsageError: the requested lane is not this device's, or the setting `base` names no commit.
    """
    store, settings = Store(config.baselines_dir), config.settings
    any_machine = _is_any_machine(config.lane, device)
    own_folders = [config.reports_dir, config.cache_dir.parent]
    bases: BaseTree | TreesOfRecords = NO_BASE
    lost: list[str] = []
    if config.beside is not None or (request is not None and request.worktree):
        suites = []  # Another commit's baselines decide nothing, and may be of another schema.
    elif request is None:
        # A renamed or deleted file is not collected, so its missing cases would go unnoticed.
        lost = lost_suites(store, device, config.root)
    if request is None:
        bases = find_bases(config.root, settings.base, [config.baselines_dir, *own_folders])
    if config.beside is not None and config.beside.python is not None and isinstance(bases, BaseTree):
        bases = replace(bases, equal=False)  # The same code runs in another environment.
    lane = _lane(store, device, sorted({*suites, *lost}), settings.targets, bases, any_machine)
    if request is None:
        make_folder(config.reports_dir)
        with contextlib.suppress(UsageError):  # A cache only saves time.
            make_folder(config.cache_dir.parent)
        if config.update is not None:
            store.check_writable(filter(None, (lane.hardware.target, lane.hardware.slug)))
    # A child's report is read by its parent, which knows the commit.
    commit = commit_of(config.root, [config.baselines_dir, *own_folders]) if request is None else None
    report = Report(
        schema=SCHEMA,
        hardware=device.identity,
        toolchain=lane.toolchain,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit,
        perfguard=__version__,
        conditions=[device.conditions()],
        invocation=Invocation({name: os.environ[name] for name in VARIABLES if name in os.environ}, config.device),
        exact_only=any_machine,
        base=bases if isinstance(bases, BaseTree) and bases is not NO_BASE else None,
    )
    wanted = request or EVERYTHING
    # A metric that is recorded, or that another process will judge, has to be read.
    compares = request is None and config.update is None
    controls = ControlDraw(lane, selected, report.started) if compares else None
    plan = ReadingPlan(
        wanted,
        exact_only=any_machine,
        preheats=wanted.times and not any_machine and (worker is None or worker.options.preheats),
        timers=_timers(lane, request, worker),
        known_code=lambda case: lane.code_of(*case.id),
        unchanged=_unchanged(lane, controls),
        # The parent of a pair orders blocks.
        collect=(lambda case: collect) if worker is None else worker.collector,
        cold=None if command is None else _cold_starts(command, device.identity.slug, settings.session_minutes),
        binaries=_binaries(config, request),
        turns=TurnsFile(config.cache_dir / "turns.json", report.lane) if request is None else None,
    )
    runner = Runner(device, settings, plan)
    trees = bases if isinstance(bases, TreesOfRecords) else None
    return Run(config, device, store, runner, lane, report, request, frozenset(lost), trees)


def _cold_starts(command: ChildCommand, slug: str, minutes: float) -> Callable[[Case, Sequence[int]], list[Reading]]:
    def read(case: Case, depths: Sequence[int]) -> list[Reading]:
        from perfguard.session.cold_start import cold_starts

        return cold_starts(command, slug, minutes, case, depths)

    return read


def _binaries(config: Config, request: Request | None) -> Binaries | None:
    """The follower of launches on the targets; None in a process that only measures again."""
    targets = config.settings.targets if request is None else tuple(request.follow or ())
    if not targets:
        return None
    from perfguard.measure.binaries.call_binaries import Binaries
    from perfguard.measure.binaries.compiler import Compiler
    from perfguard.measure.binaries.source_hash import Sources

    compiler = Compiler(config.cache_dir / "binaries")
    sources = Sources(config.cache_dir / "sources.json")
    # Only a recording needs the whole fingerprint of kernels without a record.
    return Binaries(targets, compiler, sources=sources, records=config.update is not None)


def _lane(
    store: Store,
    device: Device,
    suites: Sequence[str],
    targets: Sequence[str],
    bases: BaseTree | TreesOfRecords,
    any_machine: bool,
) -> Lane:
    """The baselines that cases of `suites` are judged with on `device`. `targets`: those it compiles for.

    Args:
        any_machine: load only the baselines of its target, which hold on any machine of it.

    Raises:
        BaselineError: a file that cannot be read.
        UsageError: a target that is not known.
    """
    from perfguard.measure.binaries.targets import target_of

    identity = device.identity
    for name in targets:
        target_of(name)
    folders = [] if any_machine else store.folders()
    folders += [identity.target] if identity.target else []
    loaded = [store.load(folder, suite) for folder in dict.fromkeys(folders) for suite in suites]
    files = [file for file in loaded if file is not None]
    if isinstance(bases, BaseTree):
        return Lane(identity, device.toolchain(), files, bases)
    return Lane(identity, device.toolchain(), files, None, bases.at)


def lost_suites(store: Store, device: Device, root: Path) -> list[str]:
    """Suites with baselines on `device` whose test file is gone."""
    identity = device.identity
    folders = [folder for folder in store.folders() if is_own(identity.slug, folder)]
    folders += [identity.target] if identity.target else []
    return sorted({suite for folder in folders for suite in store.suites(folder) if not file_of(suite, root).is_file()})


def _is_any_machine(lane: str, device: Device) -> bool:
    """Whether the lane is named after the device's target. It then holds for any machine of the target, so no time is
    read.

    Raises:
        UsageError: the lane is another hardware's.
    """
    slug, target = device.identity.slug, device.identity.target
    if lane not in ("", slug, target):
        names = slug if target is None else f"{slug} or, without times, {target}"
        raise UsageError(f"--perfguard-lane={lane}: this run is on {names}; look at the runner's labels and drivers")
    return lane != "" and lane == target


def _unchanged(lane: Lane, controls: ControlDraw | None) -> Callable[[CaseResult], frozenset[str]]:
    """The times of a case that need no reading; without `controls` all need one."""

    def unread(result: CaseResult) -> frozenset[str]:
        unchanged = frozenset[str]() if controls is None else frozenset(covering(result, lane))
        return frozenset() if controls is None or controls.draw(result, unchanged) else unchanged

    return unread


def _timers(lane: Lane, request: Request | None, worker: PairWorker | None) -> StoredTimers:
    """The timers of a case: those of the base, as far as they are known, of the request, of the baseline."""

    def timers(case: Case) -> Mapping[str, str]:
        entries = lane.stored(*case.id).items()
        known = {metric: entry.timer for metric, entry in entries if isinstance(entry, TimedEntry)}
        if request is not None:
            known |= request.timers_for(case)
        # The base's timers become known only during the pair, so they are looked up when they are needed.
        return known if worker is None else ChainMap(worker.timers(case), known)

    return timers
