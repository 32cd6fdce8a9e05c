"""One run on one device: measure, judge, pair what is in question with the base, update, report.

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
from perfguard.baselines import Change, Store, apply, category_of, plan, recordable, select
from perfguard.binaries.calls import Binaries
from perfguard.binaries.compiling import Compiler
from perfguard.call import Call
from perfguard.coldstart import first_results
from perfguard.config import Config
from perfguard.controls import Controls
from perfguard.errors import UsageError
from perfguard.judge import (
    Lane,
    count_guarded,
    covered,
    find_stale,
    judge_case,
    judge_session,
    rival,
    screen_session,
    with_verdicts,
)
from perfguard.judge.session import case_id
from perfguard.pairing.base import find_base
from perfguard.pairing.conductor import Track
from perfguard.pairing.times import Start, pair_times
from perfguard.pairing.worker import Worker
from perfguard.records import (
    NO_BASE,
    SCHEMA,
    BaseTree,
    Case,
    CaseResult,
    Pairing,
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


_RECORDING = "an update records, and compares with no base"


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
    fresh: FreshSessions = field(default_factory=FreshSessions)
    pairings: list[Pairing] = field(default_factory=list)
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
        self.results[result.case.suite, result.case.key] = result
        return result

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

    def settle(self, start: Start, tell: Callable[[str], None]) -> None:
        """Judge with what the whole run shows; then let fresh processes record, or read again what is slower than its
        rival, and process pairs tell what else is in question.

        Raises:
            KeyboardInterrupt: of the user's; what was found until then is judged and saved.
        """
        if self.is_session:
            return
        try:
            if self.config.update is not None:
                self._record(start.command, tell)
            else:
                self._beside_rivals(start.command, tell)
                self._beside_base(start, tell)
        finally:
            self._judge()
            self.save()

    def judge_without_pairs(self, why: str) -> None:
        """The final verdicts where a run ends before process pairs could tell."""
        if not self.is_session:
            self.pairings = self.pairings or [Pairing(self.lane.base.commit or "", problem=why)]
            self._judge()

    def judged_late(self, result: CaseResult) -> CaseResult | None:
        """The case with those verdicts that its test could not know, since process pairs judged after it; None where
        there are none."""
        late = [v for v in result.verdicts if v.word is Word.SLOWER]
        return msgspec.structs.replace(result, verdicts=late) if late else None

    def _screened(self) -> list[tuple[CaseResult, Verdict]]:
        """The verdicts that leave a time in question, each with its case as it was measured."""
        measured = list(self.measured.values())
        found = screen_session(measured, self.lane, self.fresh.by_case)
        return [
            (result, verdict)
            for result in measured
            for verdict in found[case_id(result)]
            if verdict.word is Word.SUSPECT
        ]

    def _record(self, command: Command, tell: Callable[[str], None]) -> None:
        """Fresh processes read what the update may write."""
        update, sessions = self.config.update or frozenset(), self.config.settings.sessions
        wanted = []
        for name in self.measured:
            result = self.results[name]
            possible = frozenset[str]().union(*recordable(result, self.lane, sessions).values())
            if possible & update and any(reading.timed for reading in result.readings):
                wanted.append(result)
        if wanted:
            self._measure_fresh(command, wanted, sessions, tell, exact=True)
        self.pairings = [Pairing(self.lane.base.commit or "", problem=_RECORDING)]

    def _say_recorded(self, planned: Sequence[Change]) -> None:
        """A time that the update looked at is not judged beside the base: it is what became of its record."""
        found = {(change.suite, change.key, change.metric): change for change in planned}
        for name, result in self.results.items():
            verdicts = [_recorded(each, found.get((*name, each.metric))) for each in result.verdicts]
            self.results[name] = msgspec.structs.replace(result, verdicts=verdicts)

    def _judge(self) -> None:
        measured = list(self.measured.values())
        for key, verdicts in judge_session(measured, self.lane, self.pairings, self.fresh.by_case).items():
            told = [each for each in self.results[key].verdicts if each.word is Word.BROKEN]  # by what came after it
            self.results[key] = with_verdicts(self.measured[key], [*told, *verdicts])

    def _beside_rivals(self, command: Command, tell: Callable[[str], None]) -> None:
        """Fresh processes read again what is slower than its rival, and as often again what they leave open."""
        for _ in range(2):
            slower = [result for result, verdict in self._screened() if _has_rival(result, verdict)]
            if slower:
                self._measure_fresh(command, slower, rival.PROCESSES, tell, exact=False)

    def _measure_fresh(
        self, command: Command, results: Sequence[CaseResult], count: int, tell: Callable[[str], None], *, exact: bool
    ) -> None:
        nodeids = list(dict.fromkeys(result.case.nodeid for result in results))
        minutes = self.config.settings.session_minutes
        found = measure_fresh(command, self.snapshot(), nodeids, count, minutes=minutes, progress=tell, exact=exact)
        self.fresh = FreshSessions([*self.fresh.reports, *found.reports], found.problem)
        if found.problem:
            tell(found.problem)

    def _beside_base(self, start: Start, tell: Callable[[str], None]) -> None:
        """Process pairs measure what is in question beside the base, until it is decided or the time is over."""
        asked = {
            Track(*case_id(result), verdict.metric): (result, verdict)
            for result, verdict in self._screened()
            if not _has_rival(result, verdict)
        }
        if not asked or self.lane.base.commit is None:
            return
        timed = sum(any(reading.timed for reading in result.readings) for result in self.measured.values())
        self._keep(pair_times(asked, self.lane.base.commit, start, self.config, timed, tell, self._keep))

    def _keep(self, pairing: Pairing) -> None:
        """What was read so far, also if the run is ended now."""
        self.pairings = [msgspec.structs.replace(pairing, device=self.device.identity.index)]

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
        self._say_recorded(planned)
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
            pairings=self.pairings,
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


def open_run(
    config: Config,
    device: Device,
    suites: Sequence[str],
    version: str,
    selected: Sequence[Case] = (),
    worker: Worker | None = None,
) -> Run:
    """Load what the device's baselines hold for `suites` and make everything ready to guard.

    Args:
        selected: forward cases of the tests that are to run, from which controls are drawn; empty where they are
            unknown: then every remembered case may come.
        worker: this process as the worker of a process pair, if it is one.

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
    base = NO_BASE if config.session_folder is not None or any_machine else _base(config)
    lane = load_lane(store, device, toolchain, known, settings.targets, base=base, any_machine=any_machine)
    answering = None
    if config.session_folder is None:
        for folder in (config.reports_dir, config.cache_dir.parent):
            make_folder(folder)
    else:
        answering = open_answering(config.session_folder, device, _stored_timers(lane), worker)
    report = Report(
        schema=SCHEMA,
        hardware=device.identity,
        toolchain=toolchain,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit_of(config.root),
        perfguard=version,
        conditions=[device.conditions()],
        exact_only=any_machine,
        base=None if base is NO_BASE else base,
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


def _base(config: Config) -> BaseTree:
    return find_base(
        config.root, config.settings.base, [config.baselines_dir, config.reports_dir, config.cache_dir.parent]
    )


def _recorded(verdict: Verdict, change: Change | None) -> Verdict:
    if verdict.word is not Word.UNRESOLVED or _RECORDING not in verdict.reason:
        return verdict
    if change is None:
        return msgspec.structs.replace(verdict, word=Word.PASS, reason="as recorded")
    if change.needs_reason:
        return msgspec.structs.replace(verdict, word=Word.SLOWER, reason=change.note)
    word = Word.FASTER if change.category == "faster" else Word.PASS
    return msgspec.structs.replace(verdict, word=word, reason="recorded anew")


def _has_rival(result: CaseResult, verdict: Verdict) -> bool:
    reading = result.reading(verdict.metric)
    return reading is not None and reading.rival > 0


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
