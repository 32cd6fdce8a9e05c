"""After the last test: process pairs decide times in question; fresh processes read what is recorded or has a rival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from perfguard.judge.pair_test import RIVAL_PROCESSES
from perfguard.judge.run_verdicts import CaseId, case_id, screen_session
from perfguard.judge.update_plan import plan, recordable
from perfguard.model.records import CaseResult, Pairing, TimedEntry, Verdict, Word
from perfguard.session.child import ChildCommand, Request, timers_of
from perfguard.session.fresh_processes import FreshSessions, measure_fresh
from perfguard.session.pairing.outcome import Track
from perfguard.session.pairing.pair_times import Counts, pair_times
from perfguard.session.run import Run

Tell = Callable[[str], None]


def settle(run: Run, command: ChildCommand, tell: Tell) -> None:
    """Let other processes measure what the run still needs, and judge with the results of the whole run.

    In an update, fresh processes read the metrics to record. Otherwise fresh processes read times again that are slower
    than their rival, and process pairs measure the other times in question.

    Args:
        command: starts them.

    Raises:
        KeyboardInterrupt: from the user, after the results so far are judged and saved.
    """
    if run.is_session:
        return
    settling = _Settling(run, command, tell)
    try:
        if run.config.update is not None:
            settling.record()
        else:
            settling.beside_rivals()
            settling.beside_base()
    finally:
        run.judge()
        run.save()


@dataclass(frozen=True)
class _Settling:
    run: Run
    command: ChildCommand
    tell: Tell

    def record(self) -> None:
        """Let fresh processes read the metrics that the update may write."""
        run = self.run
        update, sessions = run.config.update or frozenset(), run.config.settings.sessions
        wanted = []
        run.held = set() if run.config.reason else self._asking()
        if run.held:
            cases = "1 case is" if len(run.held) == 1 else f"{len(run.held)} cases are"
            why = "say why with --perfguard-reason; not measured in fresh processes"
            self.tell(f"{cases} heavier or different: {why}")
        for name in run.measured:
            if name in run.held:
                continue
            result = run.results[name]
            possible = frozenset[str]().union(*recordable(result, run.lane, sessions).values())
            if possible & update and any(reading.timed for reading in result.readings):
                wanted.append(result)
        if wanted:
            self._measure_fresh(wanted, sessions, exact=True)  # a stored value must not differ between processes

    def _asking(self) -> set[CaseId]:
        """Cases with an exact reading that the update may write only with a reason, which is known before fresh
        processes run."""
        run = self.run
        update, sessions = run.config.update or frozenset(), run.config.settings.sessions
        results = [run.results[name] for name in run.measured]
        planned = plan(run.store, run.device.identity, results, {}, [], run.snapshot().provenance, sessions)
        return {
            (change.suite, change.key)
            for change in planned
            if change.needs_reason and change.category in update and not isinstance(change.after, TimedEntry)
            if change.folder.startswith("targets/") or not run.report.exact_only
        }

    def beside_rivals(self) -> None:
        """Let fresh processes read times again that are slower than their rival, and once more those that stay open."""
        for _ in range(2):
            slower = [result for result, verdict in self._suspects() if _has_rival(result, verdict)]
            if slower:
                self._measure_fresh(slower, RIVAL_PROCESSES, exact=False)

    def beside_base(self) -> None:
        """Let process pairs measure the times in question beside the base, until they are decided or the time is
        over."""
        run, suspects = self.run, self._suspects()
        asked = {
            Track(*case_id(result), verdict.metric): (result, verdict)
            for result, verdict in suspects
            if not _has_rival(result, verdict)
        }
        if not asked or run.lane.base.commit is None:
            return
        timed = sum(any(reading.timed for reading in result.readings) for result in run.measured.values())
        counts = Counts(timed, family=len(suspects))
        slug, base = run.device.identity.slug, run.lane.base.commit
        self._keep(pair_times(asked, base, self.command, slug, run.config, counts, self.tell, self._keep))

    def _keep(self, pairing: Pairing) -> None:
        """Keep the readings so far, which stay valid if the run ends now."""
        self.run.pairings = [replace(pairing, device=self.run.device.identity.index)]

    def _suspects(self) -> list[tuple[CaseResult, Verdict]]:
        """The verdicts on times in question, each with its case as measured."""
        measured = list(self.run.measured.values())
        found = screen_session(measured, self.run.lane, self.run.fresh.by_case)
        return [
            (result, verdict)
            for result in measured
            for verdict in found[case_id(result)]
            if verdict.word is Word.SUSPECT
        ]

    def _measure_fresh(self, results: Sequence[CaseResult], count: int, *, exact: bool) -> None:
        run = self.run
        request = Request(
            run.device.identity.slug,
            timers_of(run.results.values()),
            tests=list(dict.fromkeys(result.case.nodeid for result in results)),
            shuffle=True,
            exact=exact,
        )
        minutes = run.config.settings.session_minutes
        found = measure_fresh(self.command, request, count, minutes=minutes, progress=self.tell)
        run.fresh = FreshSessions([*run.fresh.reports, *found.reports], found.problem)
        if found.problem:
            self.tell(found.problem)


def _has_rival(result: CaseResult, verdict: Verdict) -> bool:
    reading = result.reading(verdict.metric)
    return reading is not None and reading.rival > 0
