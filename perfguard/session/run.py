"""One run on one device: measure, judge, update, report. `settle` adds process pairs and fresh processes.

The run is independent of pytest: cases are passed as `Case` and `Call`, tests are named by their node ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfguard.judge.case_verdicts import certain_faults
from perfguard.judge.lane import Lane
from perfguard.judge.run_verdicts import (
    count_guarded,
    find_stale,
    judge_session,
    results_by_case,
    screen_session,
    test_of,
    while_uncommitted,
    with_verdicts,
)
from perfguard.model.config import Config
from perfguard.model.errors import UsageError
from perfguard.model.records import (
    NEW_SINCE_BASE,
    NOT_AT_BASE,
    PASSES,
    Case,
    CaseId,
    CaseResult,
    PairedCase,
    Pairing,
    Report,
    Session,
    Verdict,
    Word,
)
from perfguard.model.records.case import is_compared, new_metrics
from perfguard.model.records.change import Change, category_of, select
from perfguard.session.child import ANSWER, Request
from perfguard.session.pairing.worktrees import find_repository
from perfguard.store.report_file import save_report

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device
    from perfguard.model.call import Call
    from perfguard.session.case_pipeline import Runner
    from perfguard.session.pairing.bases import TreesOfRecords
    from perfguard.store.baseline_files import Store

#: The verdict on a measured case until the run has ended: controls, and answers of bases, come last.
_NOT_JUDGED = Verdict(Word.SUSPECT, reason="the run ended before the case was judged")

_QUICK_SECONDS = 0.005  # A save that takes no longer is made after every case.
_REST = 30  # A slower save is followed by a pause of this many times its duration.


@dataclass
class Collected:
    """The collection of pytest: `names` of all guarded tests by suite, suites whose file was collected whole, and
    forward cases of the selected tests."""

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
    request: Request | None = None  # Set in a child, which only measures.
    lost: frozenset[str] = frozenset()  # Recorded suites whose file is gone.
    trees: TreesOfRecords | None = None  # Set if each case has the base of its record.
    measured: dict[CaseId, CaseResult] = field(default_factory=dict)  # Results as measured, to be judged.
    results: dict[CaseId, CaseResult] = field(default_factory=dict)  # Results with verdicts.
    screened: dict[CaseId, list[Verdict]] | None = None  # Verdicts by the records; None before all tests have ended.
    fresh: list[Session] = field(default_factory=list)  # Readings of fresh processes, oldest first.
    fresh_problem: str = ""  # The reason if there are fewer than requested.
    pairings: list[Pairing] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)  # Changes that the update made.
    written: list[Path] = field(default_factory=list)  # Files that the update changed.
    reported: dict[CaseId, list[Verdict]] = field(default_factory=dict)  # Verdicts that the test itself reported.
    held: set[CaseId] = field(default_factory=set)  # Cases that the update does not write without a reason.
    left: list[tuple[Change, str]] = field(default_factory=list)  # Changes not written, with the reason.
    _save_again: float = 0.0  # s on the monotonic clock

    @property
    def is_session(self) -> bool:
        """Whether this process only measures for another run."""
        return self.request is not None

    @property
    def fresh_by_case(self) -> dict[CaseId, list[CaseResult]]:
        """(suite, case key) -> its results in fresh processes, oldest first."""
        return results_by_case(self.fresh)

    def guard(self, call: Call, case: Case) -> list[CaseResult]:
        """Measure one guarded call, add the faults that are certain already, and save the report."""
        if self.request is not None and self.request.cold is not None:
            from perfguard.session.cold_start import first_results

            measured = first_results(call, case, self.request.cold, self.device)
        elif self.request is not None and self.request.profiled is not None:
            from perfguard.measure.profilers import profiled_call

            measured = profiled_call(call, case, self.request.profiled, self.device)
        else:
            measured = self.runner.measure(call, case)
        results = [self._kept(result) for result in measured]
        self._keep()
        return results

    def take(self, result: CaseResult) -> CaseResult:
        """Add a result that was measured elsewhere, as `guard` does."""
        kept = self._kept(result)
        self._keep()
        return kept

    def observe(self, case: Case, body: str) -> AbstractContextManager[None]:
        """Observe a test, and save the report. A test that does nothing of interest is left out, unless it is
        recorded."""

        from perfguard.judge.update_plan import is_implied

        def take(result: CaseResult) -> None:
            known = case.id in self.lane.remembered
            if known or self.is_session or not all(is_implied(result, each) for each in result.readings):
                self.take(result)

        return self.runner.observe(case, body, take)

    def _kept(self, result: CaseResult) -> CaseResult:
        known = self.results.get(result.id)
        if known is not None and known.case.nodeid != result.case.nodeid:
            raise UsageError(
                f"{result.case.nodeid}: {known.case.nodeid} has the same name, {result.case.key}; rename one of them"
            )
        result = msgspec.structs.replace(result, device=self.device.identity.index)
        if not self.is_session and result.word is not Word.WRONG:
            self.measured[result.id] = result
            result = with_verdicts(result, [*certain_faults(result, self.lane, self._alone(result)), _NOT_JUDGED])
        self.results[result.id] = result
        self.reported[result.id] = result.verdicts
        return result

    def _alone(self, result: CaseResult) -> PairedCase | None:
        """The answer of a base that lacks the test's file: faults are new there, so the base is not asked."""
        base = self.lane.base_of(*result.id)
        if not result.doubts or base.commit is None or base.equal:
            return None
        if find_repository(self.config.root).holds(base.commit, self._path(result)):
            return None
        return PairedCase(*result.id, problem=NEW_SINCE_BASE)

    def _path(self, result: CaseResult) -> str:
        """The path of the test's file from the top of the repository."""
        file = self.config.root / result.case.nodeid.partition("::")[0]
        return file.resolve().relative_to(find_repository(self.config.root).root.resolve()).as_posix()

    def add_verdict(self, case: Case, verdict: Verdict) -> None:
        """Add a verdict to a case's result, which may be new."""
        self.results[case.id] = with_verdicts(self.results.get(case.id) or CaseResult(case=case), [verdict])

    def unsupported(self, case: Case, reason: str) -> None:
        """Record a case that its test declares unsupported on this hardware."""
        self.results[case.id] = CaseResult(case=case, verdicts=[Verdict(Word.UNSUPPORTED, reason=reason)])
        self._keep()

    def forget(self, nodeid: str) -> None:
        """Drop the results of an earlier attempt at a test, which runs again."""
        for held in (self.results, self.measured):
            for key in [key for key, result in held.items() if result.case.nodeid == nodeid]:
                del held[key]

    def broken(self, case: Case, reason: str) -> None:
        """Record a case that was selected but gave no reading."""
        if case.id not in self.results:
            self.add_verdict(case, Verdict(Word.BROKEN, reason=reason))
            self._keep()

    def accepts(self, verdict: Verdict) -> bool:
        """Whether this run's update will write the change that `verdict` reports, so that it does not fail the test."""
        update = self.config.update
        if update is None or category_of(verdict) not in update:
            return False
        return bool(self.config.reason) or not verdict.word.fails

    def failing(self, result: CaseResult) -> list[Verdict]:
        """The verdicts that fail the case, in the order they were given, without those that the update accepts."""
        return [verdict for verdict in self._faults(result) if not self.accepts(verdict)]

    def _faults(self, result: CaseResult) -> list[Verdict]:
        strict, new = self.config.settings.strict, new_metrics(result)
        return [
            verdict
            for verdict in result.verdicts
            if verdict.word.fails or (strict and verdict.word.unguarded and verdict not in new)
        ]

    def judged_late(self, result: CaseResult) -> CaseResult | None:
        """The case with the failing verdicts that did not fail its test: those of bases, and those of observed tests.
        None if there are none."""
        observed = result.case.direction == "test"
        known = {(verdict.word, verdict.metric) for verdict in self.reported.get(result.id, ())}
        late = [verdict for verdict in self._faults(result) if observed or (verdict.word, verdict.metric) not in known]
        return msgspec.structs.replace(result, verdicts=late) if late else None

    def screen(self) -> dict[CaseId, list[Verdict]]:
        """Judge all measured cases by their records, once: times in question, and doubts of a base, are SUSPECT."""
        if self.screened is None:
            self.screened = screen_session(list(self.measured.values()), self.lane)
            self._set_verdicts(self.screened)
        return self.screened

    def judge(self, cut: str = "") -> None:
        """Set the final verdicts of all measured cases, by the records and the answers of bases and fresh processes.

        Args:
            cut: reason why the run ended before all bases were asked.
        """
        if self.is_session:
            return
        screened, measured = self.screen(), list(self.measured.values())
        alone = [answer for answer in map(self._alone, measured) if answer is not None]
        verdicts = judge_session(
            measured, self.lane, self.pairings, self.fresh_by_case, screened=screened, alone=alone, cut=cut
        )
        self._set_verdicts({name: self._of_new(given) for name, given in verdicts.items()})

    def _of_new(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        if self.config.beside is None or is_compared(verdicts):
            return [*map(while_uncommitted, verdicts)]
        # `perfguard compare` reads no baselines, so no record is missing.
        return [
            msgspec.structs.replace(each, reason=NOT_AT_BASE, storable=False) if each.word is Word.NEW else each
            for each in verdicts
        ]

    def _set_verdicts(self, verdicts_of: Mapping[CaseId, Sequence[Verdict]]) -> None:
        for key, verdicts in verdicts_of.items():
            broken = [each for each in self.results[key].verdicts if each.word is Word.BROKEN]  # Later phases raised.
            self.results[key] = with_verdicts(self.measured[key], [*broken, *verdicts])

    def finish(
        self, collected: Collected, outcomes: Mapping[str, str], tell: Callable[[str], None], *, verbose: bool = False
    ) -> None:
        """Find the entries whose cases are gone, show and write the update, save the complete report.

        Args:
            outcomes: node id -> reason why its test did not run to its end; empty if it did.
            verbose: show each case that the update writes, even if there are many.
        """
        if not self.is_session:
            self._find_stale(collected, outcomes)
            self._find_unmeasured(collected, outcomes)
            if self.config.update is not None:
                self._update(tell, verbose)
        self.report = msgspec.structs.replace(
            self.report,
            complete=True,
            conditions=[*self.report.conditions, self.device.conditions()],
            copy_bytes_per_second=self.runner.copy_bytes_per_second,
        )
        self.save()

    def _find_stale(self, collected: Collected, outcomes: Mapping[str, str]) -> None:
        reached = {result.case.nodeid for result in self.results.values()}
        ended = {
            (case.suite, case.name)
            for case in collected.selected
            if outcomes.get(case.nodeid) == "" and case.nodeid in reached
        }
        present = {*self.results, *self.lane.moved(self.results.values())}
        stale = find_stale(self.lane, collected.whole | self.lost, collected.names, present, ended)
        self.report = msgspec.structs.replace(self.report, stale=stale)

    def _find_unmeasured(self, collected: Collected, outcomes: Mapping[str, str]) -> None:
        """Add a reason to recorded cases that a selected test did not guard, for example that it was skipped."""
        gone = {(verdict.suite, verdict.case) for verdict in self.report.stale}
        whole_tests = (Word.WRONG, Word.BROKEN, Word.UNSUPPORTED)  # These verdicts are on all calls of a test.
        judged_whole = {result.case.nodeid for result in self.results.values() if result.word in whole_tests}
        selected = {(case.suite, case.name): case for case in collected.selected}
        for suite, key in sorted(self.lane.remembered - gone - self.results.keys()):
            name, _, direction = key.rpartition("/")
            test = test_of(name, collected.names.get(suite, ()))
            case = selected.get((suite, test))
            if case is not None and case.nodeid not in judged_whole:
                why = outcomes.get(case.nodeid, "not run") or "run and guarded nothing"
                case = Case(suite, name, next((each for each in PASSES if each == direction), "forward"), case.nodeid)
                self.add_verdict(case, Verdict(Word.UNRESOLVED, reason=f"has a baseline, but its test was {why}"))

    def _update(self, tell: Callable[[str], None], verbose: bool) -> None:
        from perfguard.render.update_text import describe_changes, mark_recorded
        from perfguard.store.baseline_files import apply

        assert self.config.update is not None
        planned = self.planned(list(self.results.values()))
        waiting = [change for change in planned if (change.suite, change.key) in self.held]
        planned = [change for change in planned if change not in waiting]
        if "new" not in self.config.update:  # A further session is no change that waits to be written.
            planned = [change for change in planned if not change.adds_session]
        mark_recorded(self.results, planned, self.held)
        self.changes, self.left = select(planned, self.config.update, self.config.reason)
        self.left += [(change, change.demand) for change in waiting if change.needs_reason]
        for line in describe_changes(self.changes, verbose):
            tell(f"update: {line}")
        self.written = apply(self.store, self.changes, self.snapshot().provenance, self.config.reason)

    def planned(self, results: Sequence[CaseResult]) -> list[Change]:
        """The changes of the baselines that follow from `results`, from the fresh processes and from stale cases."""
        from perfguard.judge.update_plan import plan

        identity, provenance = self.device.identity, self.snapshot().provenance
        # The base is that of each record here.
        unedited = {each.id for each in results if self.trees is not None and self.lane.base_of(*each.id).equal}
        changes = plan(self.lane, results, self.fresh_by_case, self.report.stale, provenance, unedited=unedited)
        # A run without times changes only the target's metrics: this machine's own stay with its times.
        return [each for each in changes if each.folder == identity.target or not self.report.exact_only]

    def snapshot(self) -> Report:
        """The report so far."""
        results = list(self.results.values())
        return msgspec.structs.replace(
            self.report,
            bases=self.report.bases if self.trees is None else {**self.report.bases, **self.trees.looked_up()},
            results=results,
            fresh=self.fresh,
            fresh_problem=self.fresh_problem,
            pairings=self.pairings,
            guarded=count_guarded(results),
            remembered=len(self.lane.remembered),
        )

    @property
    def remaining_stale(self) -> list[Verdict]:
        """Stale cases that this run's update did not remove."""
        return [verdict for verdict in self.report.stale if not self.accepts(verdict)]

    @property
    def report_path(self) -> Path:
        """The path of the report."""
        if self.config.session_folder is not None:
            return self.config.session_folder / ANSWER
        return self.config.reports_dir / f"report-{self.device.identity.slug}.json"

    def save(self) -> None:
        """Write the report so far, and the progress of the cases."""
        started = time.monotonic()
        save_report(self.report_path, self.snapshot())
        if self.runner.plan.turns is not None:
            self.runner.plan.turns.save()
        ended = time.monotonic()
        self._save_again = ended + _REST * (ended - started) if ended - started > _QUICK_SECONDS else ended

    def _keep(self) -> None:
        """Save, unless the report is long and was saved a moment ago: a run of n cases must not write n² of them."""
        if time.monotonic() >= self._save_again:
            self.save()
