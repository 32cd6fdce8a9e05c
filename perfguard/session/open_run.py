"""Opens a run, ready to guard, from a configuration and a device."""

from __future__ import annotations

import datetime
import os
import subprocess
import zlib
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfguard.judge.lane import Lane
from perfguard.judge.screen import ControlDraw, covered
from perfguard.measure.binaries.call_binaries import Binaries
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.timers.blocks import Collect, Interleaved, collect
from perfguard.model.atomic_files import make_folder
from perfguard.model.config import Config
from perfguard.model.errors import UsageError
from perfguard.model.records import NO_BASE, SCHEMA, BaseTree, Case, CaseResult, Report, TimedEntry
from perfguard.session.case_pipeline import Hands, ReadingPlan, Runner, StoredTimers
from perfguard.session.child import ChildCommand, Request
from perfguard.session.cold_start import starter
from perfguard.session.load_baselines import load_lane, lost_suites
from perfguard.session.pairing.worker import Worker
from perfguard.session.pairing.worktrees import find_base
from perfguard.session.run import Run
from perfguard.store.baseline_files import Store

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


def open_run(
    config: Config,
    device: Device,
    suites: Sequence[str],
    version: str,
    selected: Sequence[Case] = (),
    *,
    command: ChildCommand | None = None,
    request: Request | None = None,
    worker: Worker | None = None,
) -> Run:
    """Load the device's baselines for `suites` and make everything ready to guard.

    Args:
        selected: forward cases of the selected tests, from which controls are drawn. Empty if they are unknown; then
            every recorded case may come.
        command: starts children of this process; None: it has none.
        request: request of the process that this one measures for; None: it measures for itself.
        worker: this process as the worker of a process pair, if it is one.

    Raises:
        BaselineError: a file that cannot be read.
        UsageError: the requested lane is not this device's.
    """
    store = Store(config.baselines_dir)
    toolchain = device.toolchain()
    # A renamed or deleted file is not collected, so its missing cases would go unnoticed.
    lost = [] if request is not None else lost_suites(store, device, config.root)
    known = sorted({*suites, *lost})
    any_machine = _is_any_machine(config.lane, device)
    settings = config.settings
    base = NO_BASE if request is not None or any_machine else _base(config)
    lane = load_lane(store, device, toolchain, known, settings.targets, base=base, any_machine=any_machine)
    if request is None:
        for folder in (config.reports_dir, config.cache_dir.parent):
            make_folder(folder)
    commit = commit_of(config.root)
    report = Report(
        schema=SCHEMA,
        hardware=device.identity,
        toolchain=toolchain,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit,
        perfguard=version,
        conditions=[device.conditions()],
        exact_only=any_machine,
        base=None if base is NO_BASE else base,
    )
    asked = request or Request(numerics=True)
    stored = _stored_timers(lane)
    # A metric that is recorded, or that another process will judge, has to be read.
    compares = request is None and config.update is None
    controls = ControlDraw(lane, selected, report.started) if compares else None
    plan = ReadingPlan(
        timers=stored if request is None else _requested_timers(stored, request, worker),
        numerics=asked.numerics,
        hard=request is None,
        rotation=zlib.crc32((commit or "").encode()),
        exact=asked.exact,
        exact_only=any_machine,
        unchanged=_unchanged(lane, controls),
        unread=frozenset(asked.unread),
    )
    interleaved = Interleaved(device, seed=os.getpid()) if request is not None and worker is None else None
    hands = Hands(
        collect=_collector(worker, interleaved),
        cold=None if command is None else starter(command, device.identity.slug, settings.session_minutes),
        # A fresh process does not compile again for targets, as its parent has done so.
        binaries=Binaries(settings.targets, Compiler(config.cache_dir / "binaries"))
        if request is None and settings.targets
        else None,
    )
    runner = Runner(device, settings, plan, hands)
    return Run(config, device, store, runner, lane, report, request, interleaved, frozenset(lost))


def _base(config: Config) -> BaseTree:
    return find_base(
        config.root, config.settings.base, [config.baselines_dir, config.reports_dir, config.cache_dir.parent]
    )


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
        if controls is None:
            return frozenset()
        unchanged = covered(result, lane)
        return frozenset() if controls.draw(result, unchanged) else unchanged

    return unread


def _collector(worker: Worker | None, interleaved: Interleaved | None) -> Callable[[Case], Collect]:
    """The collector of a case's blocks: a conductor's, one that reads later passes, too, or one that reads all at
    once."""
    if worker is not None:
        return worker.collector
    return lambda case: collect if interleaved is None else interleaved.of((case.suite, case.key))


def _requested_timers(stored: StoredTimers, request: Request, worker: Worker | None) -> StoredTimers:
    """The request's timers and, for metrics that it does not name, the baseline's."""

    def timers(case: Case) -> Mapping[str, str]:
        known = {**stored(case), **request.timers_for(case)}
        # The base's timers become known only during the pair, so they are looked up when they are needed.
        return known if worker is None else ChainMap(worker.timers(case), known)

    return timers


def _stored_timers(lane: Lane) -> StoredTimers:
    def timers(case: Case) -> Mapping[str, str]:
        baseline = lane.baselines.get(case.suite)
        stored = baseline.cases.get(case.key) if baseline else None
        entries = stored.entries if stored else {}
        return {metric: entry.timer for metric, entry in entries.items() if isinstance(entry, TimedEntry)}

    return timers


def commit_of(root: Path) -> str | None:
    """The checkout's short commit hash, with `+` if there are uncommitted changes; None outside git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=root, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
