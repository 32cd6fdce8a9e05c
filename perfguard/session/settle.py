"""After the last test: bases are asked what is in doubt; fresh processes read what is recorded or has a rival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from perfguard.judge.pair_test import RIVAL_PROCESSES
from perfguard.judge.questions import questions
from perfguard.judge.run_verdicts import screen_session
from perfguard.judge.update_plan import recordable
from perfguard.model.records import CaseId, CaseResult, TimedEntry, Verdict, Word
from perfguard.session.child import ChildCommand, Request, timers_of
from perfguard.session.fresh_processes import Tell, measure_fresh, session_of
from perfguard.session.kernel_times import with_kernel_times
from perfguard.session.pairing.asking import INTERRUPTED, Asking
from perfguard.session.run import Run

MOST_BASES = 3  # commits of records that one run asks: each costs a checkout and a process

# Processes of a recording that read exact metrics, too: a stored value must not differ between processes.
EXACT_PROCESSES = 2

# Processes that observe tests again before they are recorded, each in another order. A fact that differs is unstable.
OBSERVING_PROCESSES = 3


def settle(run: Run, command: ChildCommand, tell: Tell) -> None:
    """Let other processes measure what the run still needs, and judge with the results of the whole run.

    In an update, fresh processes read the metrics to record. Otherwise fresh processes read times again that are slower
    than their rival, and process pairs measure the other times in question. In both, bases answer the other doubts.

    Args:
        command: starts them.

    Raises:
        KeyboardInterrupt: from the user, after the results so far are judged and saved.
    """
    if run.is_session:
        return
    run.device.free_memory()  # the other processes need it
    settling = _Settling(run, command, tell)
    cut = INTERRUPTED
    try:
        if run.config.update is not None:
            settling.record()
        else:
            settling.beside_rivals()
            settling.ask_bases()
        cut = ""
    finally:
        run.judge(cut)
        run.save()


def to_record(run: Run, chosen: Callable[[CaseResult], bool]) -> list[CaseResult]:
    """The `chosen` cases with a metric that the update may write, without those that it holds back for a reason."""
    update, sessions = run.config.update or frozenset(), run.config.settings.sessions
    results = [run.results[name] for name in run.measured if name not in run.held]
    possible = ((each, recordable(each, run.lane, sessions).values()) for each in results if chosen(each))
    return [result for result, found in possible if frozenset[str]().union(*found) & update]


@dataclass(frozen=True)
class _Settling:
    run: Run
    command: ChildCommand
    tell: Tell

    def record(self) -> None:
        """Ask the bases about everything but times, and let fresh processes read the metrics that the update may
        write."""
        run = self.run
        self.ask_bases(times=False)
        run.held = set() if run.config.reason else self._asking()
        if run.held:
            cases = "1 case is" if len(run.held) == 1 else f"{len(run.held)} cases are"
            why = "say why with --perfguard-reason; not measured in fresh processes"
            self.tell(f"{cases} heavier or different: {why}")
        wanted = to_record(run, lambda result: result.ranks == 1 and result.is_timed)
        observed = to_record(run, lambda result: result.case.direction == "test")
        if wanted:
            self._measure_fresh(wanted, run.config.settings.sessions, exact=EXACT_PROCESSES)
        if observed:
            self._measure_fresh(observed, OBSERVING_PROCESSES, exact=OBSERVING_PROCESSES)
            for result in observed:
                name = result.id
                run.measured[name] = with_kernel_times(run.measured[name], run.fresh_by_case.get(name, ()))

    def _asking(self) -> set[CaseId]:
        """Cases with an exact reading that the update may write only with a reason, which is known before fresh
        processes run."""
        run = self.run
        return {
            (change.suite, change.key)
            for change in run.planned([run.results[name] for name in run.measured])
            if change.needs_reason and change.category in (run.config.update or ())
            if not isinstance(change.after, TimedEntry)
        }

    def beside_rivals(self) -> None:
        """Let fresh processes read times again that are slower than their rival, and once more those that stay open."""
        for _ in range(2):
            screened = self._screened()
            slower = [
                result
                for result in self.run.measured.values()
                for verdict in screened[result.id]
                if verdict.word is Word.SUSPECT and _has_rival(result, verdict)
            ]
            if slower:
                self._measure_fresh(slower, RIVAL_PROCESSES, exact=0)

    def ask_bases(self, *, times: bool = True) -> None:
        """Ask the bases whatever the run doubts: each base in one process of its own, and then, of times in question,
        in process pairs, until all are decided or `pair_minutes` are over.

        Args:
            times: whether times in question are asked about.
        """
        run = self.run
        results = list(run.measured.values())
        asked = questions(results, self._screened(), run.lane)
        for question in asked.values():
            question.times = {
                track: verdict
                for track, verdict in question.times.items()
                if times and not _has_rival(question.cases[track[:2]], verdict)
            }
        family = sum(len(question.times) for question in asked.values())
        left = 60 * run.config.settings.pair_minutes
        for number, (base, question) in enumerate(asked.items()):
            more = min(len(asked), MOST_BASES) - number - 1
            asking = Asking(run, self.command, self.tell, base, question, family, left, more)
            if number < MOST_BASES:
                asking.ask()
                left = asking.seconds
            else:
                asking.leave(f"{len(asked)} commits of records are in doubt, and {MOST_BASES} are asked in a run")

    def _screened(self) -> dict[CaseId, list[Verdict]]:
        """The verdicts by the records alone. Cases that were not measured have none."""
        run = self.run
        return screen_session(list(run.measured.values()), run.lane, run.fresh_by_case)

    def _measure_fresh(self, results: Sequence[CaseResult], count: int, *, exact: int) -> None:
        run = self.run
        request = Request(
            run.device.identity.slug,
            timers_of(run.results.values()),
            tests=list(dict.fromkeys(result.case.nodeid for result in results)),
            shuffle=True,
        )
        minutes = run.config.settings.session_minutes
        reports, run.fresh_problem = measure_fresh(
            self.command, request, count, exact=exact, minutes=minutes, progress=partial(self.tell, passing=True)
        )
        run.fresh += [session_of(report.results, report.hardware.index) for report in reports]
        if run.fresh_problem:
            self.tell(run.fresh_problem)


def _has_rival(result: CaseResult, verdict: Verdict) -> bool:
    reading = result.reading(verdict.metric)
    return reading is not None and reading.rival > 0
