"""After the last test: process pairs decide times in question; fresh processes read what is recorded or has a rival."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields

from msgspec.structs import replace

from perfguard.judge.pair_test import RIVAL_PROCESSES
from perfguard.judge.run_verdicts import screen_session
from perfguard.judge.update_plan import recordable
from perfguard.measure.metrics.times import HOST_TIME
from perfguard.model.errors import UsageError
from perfguard.model.limits import timed_kernel
from perfguard.model.records import CaseId, CaseResult, Pairing, TimedEntry, Verdict, Word
from perfguard.model.units import counted
from perfguard.render.words import most_common
from perfguard.session.child import ChildCommand, Request, timers_of
from perfguard.session.fresh_processes import measure_fresh, session_of
from perfguard.session.kernel_times import with_kernel_times
from perfguard.session.pairing.lockstep import TimeId
from perfguard.session.pairing.pairs import Site, out_of_time
from perfguard.session.pairing.processes import Interrupts
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worktrees import find_repository
from perfguard.session.run import Run

FIRST = 24  # times in the first batch: each process pair takes seconds to start, and more tests cost little
TELLING = 5  # tests, which name a kernel that all of them launch
_GROWTH = 4  # size of a batch / size of the one before

Tell = Callable[[str], None]
Asked = Mapping[TimeId, tuple[CaseResult, Verdict]]

# Processes of a recording that read exact metrics, too: a stored value must not differ between processes.
EXACT_PROCESSES = 2

# Processes that observe tests again before they are recorded, each in another order. A fact that differs is unstable.
OBSERVING_PROCESSES = 3


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
    run.device.free_memory()  # the other processes need it
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
        """Let fresh processes read the metrics that the update may write."""
        run = self.run
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
            slower = [result for result, verdict in self._suspects() if _has_rival(result, verdict)]
            if slower:
                self._measure_fresh(slower, RIVAL_PROCESSES, exact=0)

    def beside_base(self) -> None:
        """Let process pairs measure the times in question beside the base, until they are decided or `pair_minutes`
        are over."""
        run, suspects = self.run, self._suspects()
        base, settings = run.lane.base.commit, run.config.settings
        asked = {
            TimeId(*result.id, verdict.metric): (result, verdict)
            for result, verdict in suspects
            if not _has_rival(result, verdict)
        }
        if not asked or base is None:
            return
        tally = Tally({track: result for track, (result, _) in asked.items()}, family=len(suspects))
        deadline = time.monotonic() + 60 * settings.pair_minutes
        try:
            problem = (
                self._pair(asked, base, tally, deadline)
                if settings.pair_minutes
                else "[tool.perfguard] pair_minutes is 0"
            )
        except KeyboardInterrupt:
            self._keep(tally.pairing(base, "interrupted"))
            raise
        except UsageError as error:
            problem = str(error)
        self._keep(tally.pairing(base, problem))

    def _pair(self, asked: Asked, base: str, tally: Tally, deadline: float) -> str:
        """Measure process pairs, and return the reason if times are left."""
        run, command = self.run, self.command
        repository = find_repository(run.config.root)
        if not command.folder.resolve().is_relative_to(repository.root.resolve()):
            command = with_fields(command, folder=run.config.root)
        settings, slug = run.config.settings, run.device.identity.slug
        with (
            Interrupts() as interrupts,
            Site(repository, command, slug, settings, interrupts, self.tell) as site,
            interrupts.armed(),
        ):
            why = _most_common_reason(asked)
            self.tell(f"{counted(len(asked), 'time')} in question: measured beside {base[:12]} by turns{why}")
            site.lay_out(base)
            for track, (result, _) in asked.items():
                if not site.has("base", result.case.nodeid, run.config.root):
                    tally.times[track].give_up("new since the base")
            for batch in in_batches(asked):
                site.measure(tally, left_of(batch, tally), deadline)
                self._keep(tally.pairing(base, ""))
                if tally.problem or time.monotonic() > deadline:
                    return tally.problem or out_of_time(settings)
        return ""

    def _keep(self, pairing: Pairing) -> None:
        """Keep the readings so far, which stay valid if the run ends now."""
        self.run.pairings = [replace(pairing, device=self.run.device.identity.index)]

    def _suspects(self) -> list[tuple[CaseResult, Verdict]]:
        """The verdicts on times in question, each with its case as measured. Cases without times are not judged."""
        measured = [
            result
            for result in self.run.measured.values()
            if any(reading.timed or reading.covers for reading in result.readings)
        ]
        found = screen_session(measured, self.run.lane, self.run.fresh_by_case)
        return [
            (result, verdict) for result in measured for verdict in found[result.id] if verdict.word is Word.SUSPECT
        ]

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
            self.command, request, count, exact=exact, minutes=minutes, progress=self.tell
        )
        run.fresh += [session_of(report.results, report.hardware.index) for report in reports]
        if run.fresh_problem:
            self.tell(run.fresh_problem)


def _most_common_reason(asked: Asked) -> str:
    """` (51: 3 sessions stored, 5 are needed)`: what keeps most of them from their record."""
    reason, count = most_common([verdict.reason for _, verdict in asked.values()])
    return f" ({count}: {reason.removeprefix('to be paired: ')})"


def _has_rival(result: CaseResult, verdict: Verdict) -> bool:
    reading = result.reading(verdict.metric)
    return reading is not None and reading.rival > 0


def left_of(batch: Sequence[TimeId], tally: Tally) -> list[TimeId]:
    """The times to measure. Those of kernels that are slower, or faster, in TELLING tests already are given up, since
    hundreds more would say the same."""
    told = Counter(
        track.metric
        for track, found in tally.verdicts.items()
        if timed_kernel(track.metric) and found.word in (Word.SLOWER, Word.FASTER)
    )
    left = []
    for track in batch:
        if told[track.metric] < TELLING:
            left.append(track)
        else:
            tally.times[track].give_up(f"known from {told[track.metric]} other tests of this kernel")
    return left


def in_batches(asked: Asked) -> list[list[TimeId]]:
    """The times in question in batches, those of guarded calls first. Test functions take turns, each with the time
    that moved most against its record, so that every kernel has a result before the time is over. Host times come
    last: on a busy machine they take the most pairs, and a case is conclusive without its own.

    A kernel of observed tests may be in question in hundreds of them, and each block of its time is a run of a whole
    test. So the first batch holds one test for each kernel, the one in which it took longest when it was recorded.
    """
    calls: dict[str, list[TimeId]] = defaultdict(list)
    hosts: dict[str, list[TimeId]] = defaultdict(list)
    kernels: dict[str, list[TimeId]] = defaultdict(list)
    for track in sorted(asked, key=lambda track: -_size(asked[track][1])):
        if timed_kernel(track.metric):
            kernels[track.metric].append(track)
        else:
            function = f"{track.suite}/{track.key.partition('[')[0]}"
            (hosts if track.metric == HOST_TIME else calls)[function].append(track)
    of_calls = _by_turns(calls.values()) + _by_turns(hosts.values())
    return [*_batches(of_calls, FIRST), *_batches(_by_turns(kernels.values()), len(kernels))]


def _by_turns(groups: Iterable[list[TimeId]]) -> list[TimeId]:
    return [track for turn in itertools.zip_longest(*groups) for track in turn if track is not None]


def _batches(tracks: list[TimeId], size: int) -> list[list[TimeId]]:
    batches = []
    while tracks:
        batches.append(tracks[:size])
        tracks, size = tracks[size:], size * _GROWTH
    return batches


def _size(verdict: Verdict) -> float:
    """What moved most comes first; of kernels in tests, what takes longest."""
    if timed_kernel(verdict.metric):
        return float(verdict.before) if isinstance(verdict.before, int | float) else 0.0
    return abs(math.log(verdict.ratio)) if verdict.ratio else 0.0
