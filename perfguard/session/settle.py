"""After the last test: bases answer doubts; fresh processes read recorded values, and times beside a rival's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from perfguard.judge.pair_test import RIVAL_PROCESSES, is_slower_than_rival
from perfguard.judge.questions import questions
from perfguard.model.limits import KERNEL_TIME
from perfguard.model.records import CaseId, CaseResult, TimedEntry, Verdict
from perfguard.session.child import ChildCommand, Request, timers_of
from perfguard.session.child_process import Tell, measure_fresh, session_of
from perfguard.session.run import Run

MOST_BASES = 3  # Commits that one run asks: each costs a checkout and a process.


def settle(run: Run, command: ChildCommand, tell: Tell) -> None:
    """Let other processes take the measurements that the run still needs, and judge by the results of the whole run.

    Fresh processes read times again that are slower than their rival, and bases answer the other doubts. In an update,
    one more process reads exact metrics again; otherwise process pairs measure the other times in question.

    Args:
        command: starts them.

    Raises:
        KeyboardInterrupt: from the user, after the results so far are judged and saved.
    """
    if run.is_session:
        return
    run.device.free_memory()  # The other processes need it.
    settling = _Settling(run, command, tell)
    cut = "interrupted"
    try:
        settling.beside_rivals()
        if run.config.update is not None:
            settling.record()
        else:
            settling.ask_bases()
        cut = ""
    finally:
        run.judge(cut)
        run.save()


def to_record(run: Run) -> list[CaseResult]:
    """The cases of which the update may write more than a further session of a time, except those that wait for a
    reason."""
    run.screen()
    changes = run.planned([run.results[name] for name in run.measured if name not in run.held])
    update = run.config.update or ()
    names = {(each.suite, each.key) for each in changes if each.category in update and not each.adds_session}
    return [run.results[name] for name in run.measured if name in names]


@dataclass(frozen=True)
class _Settling:
    run: Run
    command: ChildCommand
    tell: Tell

    def record(self) -> None:
        """Ask the bases about everything but times. Let a fresh process, with another order of tests, read again the
        values that the update may write, except times: a value that differs between two processes is not exact."""
        run = self.run
        self.ask_bases(times=False)
        run.held = set() if run.config.reason else self._needing_reason()
        if run.held:
            cases = "1 case is" if len(run.held) == 1 else f"{len(run.held)} cases are"
            self.tell(f"{cases} heavier or different: say why with --perfguard-reason; not read in a fresh process")
        wanted = [result for result in to_record(run) if _is_read_again(result)]
        if wanted:
            self._measure_fresh(wanted, 1, Request(alone=True, times=False))
        fresh = run.fresh_by_case
        run.measured = {name: _with_kernel_times(each, fresh.get(name, ())) for name, each in run.measured.items()}

    def _needing_reason(self) -> set[CaseId]:
        """Cases with an exact reading that the update may write only with a reason, which is known before the fresh
        process runs."""
        run = self.run
        return {
            (change.suite, change.key)
            for change in run.planned([run.results[name] for name in run.measured])
            if change.needs_reason and change.category in (run.config.update or ())
            if not isinstance(change.after, TimedEntry)
        }

    def beside_rivals(self) -> None:
        """Let fresh processes read times again that are slower than their rival, and once more those that stay open."""
        run = self.run
        for _ in range(2):
            fresh = run.fresh_by_case
            slower = [
                result
                for result in run.measured.values()
                if not run.lane.base_of(*result.id).equal and is_slower_than_rival(result, fresh.get(result.id, ()))
            ]
            if slower:
                self._measure_fresh(slower, RIVAL_PROCESSES, Request(exact=False))

    def ask_bases(self, *, times: bool = True) -> None:
        """Ask the bases about all doubts of the run: each base first in a process of its own, then, for times in
        question, in process pairs, until all are decided or `pair_minutes` are over.

        Args:
            times: whether times in question are asked about.
        """
        run = self.run
        results = list(run.measured.values())
        by_base = questions(results, run.screen(), run.lane)
        for question in by_base.values():
            question.times = {
                track: verdict
                for track, verdict in question.times.items()
                if times and not _has_rival(question.cases[track.case], verdict)
            }
        if not by_base:
            return
        from perfguard.session.pairing.asking import Asking

        family = sum(len(question.times) for question in by_base.values())
        left = 60 * run.config.settings.pair_minutes
        for number, (base, question) in enumerate(by_base.items()):
            more = min(len(by_base), MOST_BASES) - number - 1
            asking = Asking(run, self.command, self.tell, base, question, family, left, more)
            if number < MOST_BASES:
                asking.ask()
                left = asking.seconds
            else:
                asking.keep(f"{len(by_base)} commits of records are in doubt, and {MOST_BASES} are asked in a run")

    def _measure_fresh(self, results: Sequence[CaseResult], count: int, request: Request) -> None:
        run = self.run
        request = replace(
            request,
            slug=run.device.identity.slug,
            timers=timers_of(run.results.values()),
            tests=list(dict.fromkeys(result.case.nodeid for result in results)),
            shuffle=True,
        )
        minutes = run.config.settings.session_minutes
        reports, run.fresh_problem = measure_fresh(
            self.command, request, count, minutes=minutes, progress=partial(self.tell, passing=True)
        )
        run.fresh += [session_of(report.results, report.hardware.index) for report in reports]
        if run.fresh_problem:
            self.tell(run.fresh_problem)


def _is_read_again(result: CaseResult) -> bool:
    """Whether a recording's process reads the case again: it is observed, or runs in one process and is timed. A lane
    without times reads only values that do not depend on the process."""
    return result.case.direction == "test" or (result.ranks == 1 and result.is_timed)


def _with_kernel_times(result: CaseResult, fresh: Sequence[CaseResult]) -> CaseResult:
    """The result of a test with the times that the recording's process read; unchanged if it read none."""
    read = [each for other in fresh if (each := other.reading(KERNEL_TIME)) is not None]
    return replace(result, readings=[*result.readings, *read])


def _has_rival(result: CaseResult, verdict: Verdict) -> bool:
    reading = result.reading(verdict.metric)
    return reading is not None and reading.rival > 0
