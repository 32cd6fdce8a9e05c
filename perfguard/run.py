"""One run on one device: measure, judge at once, re-measure suspects in fresh processes, update, report.

Knows nothing of pytest: cases come in as `Case` and `Call`, tests are named by their node ids.
"""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfguard.answering import Answering, open_answering
from perfguard.baselines import Change, Store, apply, category_of, plan, select
from perfguard.binaries.calls import Binaries
from perfguard.binaries.compiling import Compiler
from perfguard.call import Call
from perfguard.coldstart import first_results
from perfguard.config import Config
from perfguard.controls import Controls, controls_beside
from perfguard.errors import UsageError
from perfguard.judge import Lane, confirm, count_guarded, covered, find_stale, judge_case, judge_session, with_verdicts
from perfguard.records import (
    SCHEMA,
    Case,
    CaseResult,
    Pass,
    Report,
    TimedEntry,
    Verdict,
    Word,
)
from perfguard.remembering import load_lane, lost_suites
from perfguard.reports import make_folder, save_report
from perfguard.runner import Runner, collected_here, nothing_unchanged
from perfguard.sessions import ANSWER, Command, FreshSessions, measure_fresh
from perfguard.units import format_value

if TYPE_CHECKING:
    from perfguard.hardware.device import Device


@dataclass
class Collected:
    """What pytest found: `names` of every guarded test by suite, the suites whose file was collected whole, and
    the forward cases of the tests that were to run."""

    names: dict[str, set[str]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    selected: list[Case] = field(default_factory=list)


@dataclass
class Run:
    """The state of one run. Create it with `open_run`."""

    config: Config
    device: Device
    store: Store
    runner: Runner
    lane: Lane
    report: Report
    answering: Answering | None = None  # in a process that only measures for another run
    lost: frozenset[str] = frozenset()  # remembered suites whose file is gone
    measured: dict[tuple[str, str], CaseResult] = field(default_factory=dict)  # what there was to judge
    results: dict[tuple[str, str], CaseResult] = field(default_factory=dict)  # with verdicts
    passed: dict[str, bool] = field(default_factory=dict)  # by node id: nothing failed or was suspect at first
    fresh: FreshSessions = field(default_factory=FreshSessions)
    changes: list[Change] = field(default_factory=list)  # that the update makes
    written: list[Path] = field(default_factory=list)  # the files it changed
    left: list[tuple[Change, str]] = field(default_factory=list)  # not written, and why

    @property
    def is_session(self) -> bool:
        """Whether this process only measures for another run."""
        return self.config.session_folder is not None

    def guard(self, call: Call, case: Case) -> list[CaseResult]:
        """Measure and judge one guarded call; the report is saved before this returns."""
        cold = self.answering.cold if self.answering is not None else None
        found = self.runner.measure(call, case) if cold is None else first_results(call, case, cold, self.device)
        results = [self._judged(result) for result in found]
        self.save()
        return results

    def take(self, result: CaseResult) -> CaseResult:
        """Judge a result that somebody else measured; the report is saved before this returns."""
        judged = self._judged(result)
        self.save()
        return judged

    def _judged(self, result: CaseResult) -> CaseResult:
        result = msgspec.structs.replace(result, device=self.device.identity.index)
        if not self.is_session and result.word is not Word.WRONG:
            self.measured[result.case.suite, result.case.key] = result
            result = with_verdicts(result, judge_case(result, self.lane))
            quiet = not result.is_suspect and not self.failing(result)
            self.passed[result.case.nodeid] = quiet and self.passed.get(result.case.nodeid, True)
        self.results[result.case.suite, result.case.key] = result
        return result

    @property
    def late(self) -> list[str]:
        """Node ids of tests that had passed when what the whole run showed made a verdict of theirs fail."""
        failing = [result.case.nodeid for result in self.results.values() if self.failing(result)]
        return [nodeid for nodeid in dict.fromkeys(failing) if self.passed.get(nodeid)]

    def unsupported(self, case: Case, reason: str) -> None:
        """Record a case that its test declares unsupported on this hardware."""
        verdict = Verdict(word=Word.UNSUPPORTED, reason=reason)
        self.results[case.suite, case.key] = CaseResult(case=case, verdicts=[verdict])
        self.save()

    def broken(self, case: Case, reason: str) -> None:
        """Record a case that was selected but gave no reading."""
        if (case.suite, case.key) not in self.results:
            verdict = Verdict(word=Word.BROKEN, reason=reason)
            self.results[case.suite, case.key] = CaseResult(case=case, verdicts=[verdict])
            self.save()

    def accepts(self, verdict: Verdict) -> bool:
        """Whether this run's update will write what `verdict` reports, so that it does not fail the test."""
        update = self.config.update
        if update is None or category_of(verdict) not in update:
            return False
        return bool(self.config.reason) or not verdict.word.fails

    def failing(self, result: CaseResult) -> list[Verdict]:
        """The verdicts that fail the case's test, in the order they were given."""
        strict = self.config.settings.strict
        return [
            verdict
            for verdict in result.verdicts
            if (verdict.word.fails or (strict and verdict.word.unguarded)) and not self.accepts(verdict)
        ]

    def to_measure_again(self) -> list[CaseResult]:
        """Suspects, and what an update will write: each needs fresh processes."""
        suspects = [result for result in self.results.values() if result.is_suspect]
        update = self.config.update or frozenset()
        recorded = [
            result
            for result in self.results.values()
            if not result.is_suspect
            and not {Word.WRONG, Word.BROKEN} & {verdict.word for verdict in result.verdicts}
            and any(reading.timed for reading in result.readings)
            and any(category_of(each, result.reading(each.metric)) in update for each in result.verdicts)
        ]
        return suspects + recorded

    def measure_again(self, command: Command, progress: Callable[[str], None]) -> None:
        """Judge anew with what the whole run shows, then measure in fresh processes what needs it.

        Beside the suspects every fresh process measures controls, in an order of its own: they tell how the
        machine was in that process.
        """
        if self.is_session:
            return
        measured = list(self.measured.values())
        for key, verdicts in judge_session(measured, self.lane).items():
            self.results[key] = with_verdicts(self.measured[key], verdicts)
        wanted = self.to_measure_again()
        if not wanted:
            return
        settings = self.config.settings
        count = settings.confirmations if self.config.update is None else settings.sessions
        suspects = [result for result in wanted if result.is_suspect]
        controls = controls_beside(suspects, self.results.values(), self.lane, self.report.started)
        nodeids = list(dict.fromkeys([*(result.case.nodeid for result in wanted), *controls]))
        self.fresh = measure_fresh(
            command,
            self.snapshot(),
            nodeids,
            count,
            minutes=settings.session_minutes,
            progress=progress,
            exact=self.config.update is not None,  # what will be stored must not differ from process to process
        )
        if self.fresh.problem:
            progress(self.fresh.problem)
        accused = [self.measured[result.case.suite, result.case.key] for result in suspects]
        sessions = [report.results for report in self.fresh.reports]
        for key, verdicts in confirm(accused, measured, self.lane, sessions, count, self.fresh.problem).items():
            self.results[key] = with_verdicts(self.measured[key], verdicts)
        self.save()

    def finish(self, collected: Collected, tell: Callable[[str], None]) -> None:
        """Name the entries whose cases are gone, show and write the update, save the complete report."""
        if self.answering is not None:
            for result in self.answering.later_passes(list(self.results.values())):
                self.results[result.case.suite, result.case.key] = result
        else:
            self._find_unmeasured(collected)
            self._find_stale(collected)
            if self.config.update is not None:
                self._update(tell)
        self.report = msgspec.structs.replace(
            self.report,
            complete=True,
            conditions=[*self.report.conditions, self.device.conditions()],
            copy_bytes_per_second=self.runner.copy_bytes_per_second,
        )
        self.save()

    def _find_unmeasured(self, collected: Collected) -> None:
        """A selected test that was skipped guards nothing; its remembered cases say so."""
        spoken = {(result.case.suite, result.case.name.partition(":")[0]) for result in self.results.values()}
        for case in collected.selected:
            keys = [key for suite, key in self.lane.remembered if suite == case.suite]
            for key in sorted(key for key in keys if key.rpartition("/")[0] == case.name):
                if (case.suite, case.name) not in spoken:
                    direction: Pass = "backward" if key.endswith("/backward") else "forward"
                    skipped = msgspec.structs.replace(case, direction=direction)
                    verdict = Verdict(word=Word.UNRESOLVED, reason="remembered, but its test was skipped")
                    self.results[case.suite, key] = CaseResult(case=skipped, verdicts=[verdict])

    def _find_stale(self, collected: Collected) -> None:
        stale, renamed = find_stale(
            self.lane, collected.whole | self.lost, collected.names, list(self.results.values())
        )
        for result in renamed:
            self.results[result.case.suite, result.case.key] = result
        self.report = msgspec.structs.replace(self.report, stale=stale)

    def _update(self, tell: Callable[[str], None]) -> None:
        assert self.config.update is not None
        provenance = self.snapshot().provenance
        results = list(self.results.values())
        fresh = {(r.case.suite, r.case.key): self.fresh.of(r.case.suite, r.case.key) for r in results}
        identity = self.device.identity
        planned = plan(
            self.store, identity, results, fresh, self.report.stale, provenance, self.config.settings.sessions
        )
        if self.report.exact_only:  # what holds on every machine: this one's own stays with the times beside it
            planned = [change for change in planned if change.folder.startswith("targets/")]
        self.changes, self.left = select(planned, self.config.update, self.config.reason)
        for line in self.describe_changes():
            tell(f"update: {line}")
        self.written = apply(self.store, self.changes, provenance, self.config.reason)

    def snapshot(self) -> Report:
        """The report as it stands now."""
        results = list(self.results.values())
        return msgspec.structs.replace(
            self.report,
            results=results,
            fresh=self.fresh.sessions,
            fresh_problem=self.fresh.problem,
            guarded=count_guarded(results),
            remembered=len(self.lane.remembered),
        )

    def describe_changes(self) -> list[str]:
        """What the update writes: a new case in one line, a change of a known one in a line for each metric."""
        lines: list[str] = []
        new: dict[str, list[str]] = {}
        for change in self.changes:
            if change.before is None and change.after is not None:
                value = change.after
                number = value.sessions[-1] if isinstance(value, TimedEntry) else value
                shown = "" if isinstance(number, str | list | dict) else f" {format_value(number, change.unit)}"
                note = f" ({change.note})" if change.note else ""
                name = f"{change.category}: {change.folder} {change.suite} {change.key}"
                new.setdefault(name, []).append(f"{change.metric}{shown}{note}")
            else:
                lines.append(change.describe())
        return [f"{name}: {', '.join(metrics)}" for name, metrics in new.items()] + lines

    @property
    def remaining_stale(self) -> list[Verdict]:
        """Gone cases that this run's update did not remove."""
        return [verdict for verdict in self.report.stale if not self.accepts(verdict)]

    @property
    def report_path(self) -> Path:
        """Where the report is saved."""
        if self.config.session_folder is not None:
            return self.config.session_folder / ANSWER
        return self.config.reports_dir / f"report-{self.device.identity.slug}.json"

    def save(self) -> None:
        """Write what is known so far."""
        save_report(self.report_path, self.snapshot())


def open_run(config: Config, device: Device, suites: Sequence[str], version: str, selected: Sequence[Case] = ()) -> Run:
    """Load what the device's baselines hold for `suites` and make everything ready to guard.

    Args:
        selected: forward cases of the tests that are to run, from which controls are drawn; empty where they are
            unknown: then every remembered case may come.

    Raises:
        BaselineError: a file that cannot be read.
        UsageError: the run is to be a lane that this device is not.
    """
    store = Store(config.baselines_dir)
    toolchain = device.toolchain()
    # A renamed or deleted file is collected by nobody, and its cases would be missed by nobody.
    lost = [] if config.session_folder is not None else lost_suites(store, device, config.root)
    known = sorted({*suites, *lost})
    any_machine = _is_any_machine(config.lane, device)
    settings = config.settings
    lane = load_lane(store, device, toolchain, known, settings.confirmations, settings.targets, any_machine=any_machine)
    answering = None
    if config.session_folder is None:
        for folder in (config.reports_dir, config.cache_dir.parent):
            make_folder(folder)
    else:
        answering = open_answering(config.session_folder, device, _stored_timers(lane))
    report = Report(
        schema=SCHEMA,
        hardware=device.identity,
        toolchain=toolchain,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit_of(config.root),
        perfguard=version,
        conditions=[device.conditions()],
        exact_only=any_machine,
    )
    # What is recorded, and what another process will judge, has to be read.
    compares = config.session_folder is None and config.update is None
    runner = Runner(
        device,
        config.settings,
        _stored_timers(lane) if answering is None else answering.timers,
        numerics=answering is None or answering.numerics,
        exact=answering is None or answering.exact,
        exact_only=any_machine,
        unchanged=_unchanged(lane, Controls(lane, selected, report.started)) if compares else nothing_unchanged,
        unread=frozenset() if answering is None else answering.unread,
        # A fresh process reads times: what its parent has compiled is not compiled again.
        binaries=Binaries(config.settings.targets, Compiler(config.cache_dir / "binaries"))
        if config.session_folder is None and config.settings.targets
        else None,
        collect=collected_here if answering is None else answering.collect,
        rivals=answering is not None and answering.rivals,
    )
    return Run(config, device, store, runner, lane, report, answering, frozenset(lost))


def _is_any_machine(lane: str, device: Device) -> bool:
    """Whether the lane is named after the device's target: any machine of it will do, so none is timed.

    Raises:
        UsageError: the lane is another hardware's.
    """
    slug, target = device.identity.slug, device.identity.target
    if lane not in ("", slug, target):
        names = slug if target is None else f"{slug} or, without times, {target}"
        raise UsageError(f"--perfguard-lane={lane}: this run is on {names}; look at the runner's labels and drivers")
    return lane != "" and lane == target


def _unchanged(lane: Lane, controls: Controls) -> Callable[[CaseResult], frozenset[str]]:
    def unread(result: CaseResult) -> frozenset[str]:
        unchanged = covered(result, lane)
        return frozenset() if controls.draw(result, unchanged) else unchanged

    return unread


def _stored_timers(lane: Lane) -> Callable[[Case], Mapping[str, str]]:
    def timers(case: Case) -> Mapping[str, str]:
        baseline = lane.baselines.get(case.suite)
        stored = baseline.cases.get(case.key) if baseline else None
        entries = stored.entries if stored else {}
        return {metric: entry.timer for metric, entry in entries.items() if isinstance(entry, TimedEntry)}

    return timers


def commit_of(root: Path) -> str | None:
    """The checkout's short commit hash, with `+` where there are uncommitted changes; None outside git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=root, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
