"""Asks one base commit about a run's doubts: by one process that answers, and by process pairs for times."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from msgspec.structs import replace

from perfguard.judge.pair_test import LEAST_PAIRS, MOST_PAIRS
from perfguard.judge.questions import Question
from perfguard.measure.binaries.comparison import Sides, compare_cases
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.metrics.times import HOST_TIME
from perfguard.model.config import CompareOptions
from perfguard.model.errors import UsageError
from perfguard.model.limits import timed_kernel
from perfguard.model.records import NEW_SINCE_BASE, CaseId, CaseResult, PairedCase, Pairing, ReadingId, Verdict, Word
from perfguard.model.records.case import with_readings
from perfguard.model.records.code import CODE
from perfguard.model.units import counted, format_minutes
from perfguard.render.tables import kernel_rows, kernel_table
from perfguard.render.words import most_common, toolchain_moves
from perfguard.session.child import ChildCommand, Request, own_packages, packages_at, timers_of
from perfguard.session.child_process import Tell
from perfguard.session.explain import explain_slower
from perfguard.session.pairing.pairs import PairWorktrees, out_of_time, starts_ahead
from perfguard.session.pairing.tally import Tally
from perfguard.session.pairing.worker import Followed
from perfguard.session.pairing.worktrees import find_repository
from perfguard.session.run import Run

FIRST = 24  # Times in the first pairs: a process pair takes seconds to start, and more tests cost little.
# Pairs that each time gets first: of FIRST undecided times, none can be SLOWER with fewer (`pair_test.luck`). After as
# many pairs, each measures GROWTH times as many times.
PATIENCE = 5
GROWTH = 4
ENOUGH_TESTS = 5  # Number of tests whose verdicts settle a kernel for all others.
INTERRUPTED = "interrupted"
_MOST_DEATHS = 3  # Deaths of a base's process in its tests, after which no single test is to blame.


@dataclass
class Asking:
    """The question of a run to one base. Answers are added to the run as they come.

    Args:
        family: number of times in question of all bases.
        seconds: time left for process pairs; starting and answering do not count.
        more: number of bases that are asked after this one.
    """

    run: Run
    command: ChildCommand
    tell: Tell
    base: str
    question: Question
    family: int
    seconds: float
    more: int = 0
    answers: dict[CaseId, CaseResult] = field(default_factory=dict)
    problems: dict[CaseId, str] = field(default_factory=dict)  # The reason why the base has no answer.

    def __post_init__(self) -> None:
        tracks = {track: self.question.cases[track.case] for track in self.question.times}
        self.tally = Tally(tracks, family=self.family)
        self._index = len(self.run.pairings)

    def ask(self) -> None:
        """Ask, and keep the answers. If the base cannot be asked, the verdicts name the problem.

        Raises:
            KeyboardInterrupt: from the user, after the answers so far are kept.
            UsageError: `perfguard compare` cannot ask its base.
        """
        try:
            problem = self._ask()
        except KeyboardInterrupt:
            if self.answers:  # Otherwise no base was asked.
                self.keep(INTERRUPTED)
            raise
        except (UsageError, OSError) as error:  # A full disk raises OSError.
            problem = str(error)
            if self.run.config.beside is not None:  # Without a base there is no comparison.
                self.keep(problem)
                raise
        self.keep(problem)

    def _ask(self) -> str:
        run, command = self.run, self.command
        repository = find_repository(run.config.root)
        if not command.folder.resolve().is_relative_to(repository.root.resolve()):
            command = with_fields(command, folder=run.config.root)
        settings, slug, ahead = run.config.settings, run.device.identity.slug, starts_ahead(run.device)
        beside = run.config.beside or CompareOptions()
        packages = own_packages() if beside.python is None else packages_at(beside.python)
        with (
            PairWorktrees(repository, command, slug, settings, self.tell, ahead, packages) as worktrees,
            worktrees.interrupts.armed(),
        ):
            times = self.question.times if settings.pair_minutes else {}
            worktrees.lay_out(self.base, pairs=bool(times))
            if beside.setup:
                worktrees.set_up(beside.setup)
            if times:
                worktrees.start(self.tally)
            self._answer(worktrees)
            if not times:
                return "[tool.perfguard] pair_minutes is 0" if self.question.times else ""
            problem = self._pair(worktrees)
            explain_slower(self.run, worktrees, self.tally.verdicts, self.answers, self.tell)
            return problem

    def _answer(self, worktrees: PairWorktrees) -> None:
        """Let one process of the base read the cases in doubt, and compare the kernels of both sides."""
        run, question = self.run, self.question
        cases = {
            case: result
            for case, result in question.cases.items()
            if worktrees.has_at_base(result.case.nodeid, run.config.root)
        }
        self.problems |= dict.fromkeys(question.cases.keys() - cases.keys(), NEW_SINCE_BASE)
        if not cases:
            return
        more = f"; {counted(self.more, 'commit')} to ask after it" if self.more else ""
        self.tell(f"{counted(len(cases), 'case')} in doubt: asking {self.base[:12]}{more}")
        request = Request(
            run.device.identity.slug, timers_of(cases.values()), numerics=True, doubts=question.doubts, times=False
        )
        tests = list(dict.fromkeys(result.case.nodeid for result in cases.values()))
        results_at_base, followed, problems = answers(worktrees, request, tests)
        for problem in dict.fromkeys(problems.values()):
            self.tell(problem.partition("\n")[0].removesuffix(":"))
        if moves := toolchain_moves(worktrees.toolchain, run.report.toolchain):
            self.tell(f"from {self.base[:12]} to the working tree: {moves}")
        for case, result in cases.items():
            base = results_at_base.get(case)
            if base is None:
                uncollected = followed.uncollected.get(result.case.nodeid.partition("::")[0])
                new = NEW_SINCE_BASE if uncollected is None else f"its file does not run at the base: {uncollected}"
                self.problems[case] = problems.get(result.case.nodeid, new)
                continue
            self.answers[case] = base
            if why := _why_not_compared(base, result):
                self.problems[case] = why
        self._compare_kernels(worktrees, followed)
        self.tally.leave_out_unchanged(self.answers)
        self.keep("")

    def _compare_kernels(self, worktrees: PairWorktrees, followed: Followed) -> None:
        """Add to both sides the code that the compilers make of kernels that differ."""
        run, question = self.run, self.question
        binaries = run.runner.plan.binaries
        cases = [
            case
            for case in self.answers.keys() - self.problems.keys()
            if case in question.code or question.is_timed(case)
        ]
        if binaries is None or not cases:
            return
        sides = [Sides(followed.of(case), run.runner.followed.get(case, [])) for case in cases]
        base = Compiler(run.config.cache_dir / "binaries", path=followed.path, python=worktrees.packages.python)
        try:
            comparisons = compare_cases(sides, (base, binaries.compiler))
        finally:
            base.close()
        if run.config.beside is not None:
            rows = [row for compared in comparisons for row in kernel_rows(compared.base, compared.work)]
            for line in kernel_table(rows):
                self.tell(line)
        for case, compared in zip(cases, comparisons, strict=True):
            code, problems = run.measured[case].reading(CODE), "\n".join(compared.problems)
            noted = [] if code is None or not problems else [replace(code, note=problems)]
            run.measured[case] = with_readings(run.measured[case], [*compared.work, *noted])
            answer = self.answers[case]
            if not compared.other_code and not compared.problems:  # Only names changed, if anything.
                alike = {CODE: run.measured[case].reading(CODE)}
                answer = replace(answer, readings=[alike.get(each.metric) or each for each in answer.readings])
            self.answers[case] = with_readings(answer, compared.base)

    def _pair(self, worktrees: PairWorktrees) -> str:
        """Measure process pairs, and return the reason if times are left."""
        times = self.question.times
        for track in times:
            if why := self.problems.get(track.case) or self._why_untimed(track.case):
                self.tally.times[track].give_up(why)
        left = self.tally.left()
        if not left:
            return ""
        why = _most_common_reason([times[track] for track in left])
        self.tell(f"{counted(len(left), 'time')} in question: measured beside {self.base[:12]} by turns{why}")
        started = time.monotonic()
        deadline = started + self.seconds
        order = in_order({track: times[track] for track in left})
        # A pair that misses a time counts against it only if the one before missed it, too.
        for number in range(1, 2 * MOST_PAIRS * len(order) + 1):
            left = self.tally.left(order)
            chosen = in_next_pair(left, self.tally)
            if not chosen or self.tally.problem:
                break
            some = f"{len(chosen)} of " if len(chosen) < len(left) else ""
            expected = _expected(number - 1, time.monotonic() - started, deadline)
            self.tell(f"process pair {number}: {some}{counted(len(left), 'time')} in question{expected}", passing=True)
            outcome = worktrees.pair(self.tally, left, chosen, deadline)
            self.tally.take(outcome, chosen)
            self.keep("")
            spent = ", ".join(f"{seconds:.1f} s {on}" for on, seconds in outcome.seconds.items())
            self.tell(f"process pair {number} took {sum(outcome.seconds.values()):.1f} s: {spent}", detail=True)
        worktrees.stop()
        self.seconds = deadline - time.monotonic()
        if self.tally.problem or self.seconds < 0:
            return self.tally.problem or out_of_time(self.run.config.settings)
        return ""

    def _why_untimed(self, case: CaseId) -> str:
        """The reason why a case needs no time: it has a fault that the base lacks."""
        base = self.answers.get(case)
        right = {doubt.name for doubt in base.doubts if not doubt.problem} if base is not None else set()
        faults = [doubt.problem for doubt in self.question.cases[case].doubts if doubt.name in right]
        return f"not timed: {faults[0]}" if faults else ""

    def keep(self, problem: str) -> None:
        """Keep the answers and readings so far, which stay valid if the run ends now.

        Args:
            problem: reason why there are no more.
        """
        timed = {track.case for track in self.tally.times}
        cases = [
            PairedCase(
                *case,
                base=_exact(self.answers[case]) if case in self.answers else None,
                times=self.tally.times_of(case),
                problem=self.problems.get(case, ""),
            )
            for case in self.question.cases
            # A case without an answer or a problem has no entry: its verdict then names the problem of the whole.
            if case in self.answers or case in self.problems or case in timed
        ]
        pairing = Pairing(self.base, cases, self.tally.pairs, problem, self.run.device.identity.index)
        self.run.pairings[self._index :] = [pairing]


def answers(
    worktrees: PairWorktrees, request: Request, tests: Sequence[str]
) -> tuple[dict[CaseId, CaseResult], Followed, dict[str, str]]:
    """The base's results, the launches it followed, and node id of a test without an answer -> the reason, if its
    process ended early. A test in which the process died is left out, and those behind it are asked again.
    """
    results: dict[CaseId, CaseResult] = {}
    followed, problems = Followed(), dict[str, str]()
    for number in range(1, _MOST_DEATHS + 1):
        answer = worktrees.answer(replace(request, tests=list(tests)))
        results |= {result.id: result for result in answer.results}
        followed = followed.joined(answer.followed)
        answered = {result.case.nodeid for result in answer.results}
        tests = tests[max((at for at, test in enumerate(tests, 1) if test in answered), default=0) :]
        if not answer.problem or not tests:
            break
        if not answer.died or number == _MOST_DEATHS:
            problems |= dict.fromkeys(tests, answer.problem)
            break
        problems[tests[0]] = answer.problem
        tests = tests[1:]
        if not tests:
            break
    return results, followed, problems


def _exact(base: CaseResult) -> CaseResult:
    """The base's answer without times and notes."""
    readings = [replace(each, note="") for each in base.readings if not each.timed]
    return CaseResult(base.case, base.inputs, readings=readings, doubts=base.doubts)


def _why_not_compared(base: CaseResult, work: CaseResult) -> str:
    """The reason why the two results of a case are not compared; empty if they are."""
    for result, at in ((work, ""), (base, " at the base, not compared")):
        for word in (Word.WRONG, Word.BROKEN):
            if reasons := [verdict.reason for verdict in result.verdicts if verdict.word is word]:
                return f"{word}{at}: {'; '.join(reasons)}"
    return "" if base.inputs == work.inputs else f"other inputs: {base.inputs or 'none'} -> {work.inputs or 'none'}"


def _most_common_reason(verdicts: Sequence[Verdict]) -> str:
    """` (51: 3 sessions stored, 5 are needed)`: the most common reason why records do not decide."""
    reason, count = most_common([verdict.reason for verdict in verdicts])
    return f" ({count}: {reason.removeprefix('to be paired: ')})"


def _expected(pairs: int, seconds: float, deadline: float) -> str:
    """`, 0:41 elapsed, about 0:20 to 3:05 to go`, after the first of the `pairs` so far."""
    if not pairs:
        return ""
    budget = max(0.0, deadline - time.monotonic())
    least, most = (min(max(1, count - pairs) * seconds / pairs, budget) for count in (LEAST_PAIRS, MOST_PAIRS))
    return f", {format_minutes(seconds)} elapsed, about {format_minutes(least)} to {format_minutes(most)} to go"


def in_next_pair(left: Sequence[ReadingId], tally: Tally) -> list[ReadingId]:
    """The undecided times that the next pair measures, of `left` in their order (`in_order`).

    A time that PATIENCE pairs left undecided, and that may not have moved, goes behind all others, so that no time
    waits for the noise of another; of such times those that moved most come first. Times of kernels that are slower, or
    faster, in ENOUGH_TESTS already are given up, since hundreds more would add nothing. Until one test of a kernel is
    decided, a pair measures it in one test alone: each block of its time is a run of a whole test.
    """
    moved, decided = Counter[str](), set[str]()
    for track, verdict in tally.verdicts.items():
        moved[track.metric] += verdict.word in (Word.SLOWER, Word.FASTER)
        decided |= {track.metric} if verdict.word is not None else set()

    def rank(track: ReadingId) -> tuple[bool, float]:
        verdict = tally.verdicts.get(track)
        waits = verdict is not None and verdict.pairs >= PATIENCE and verdict.interval[0] <= 0 <= verdict.interval[1]
        return waits, -abs(verdict.effect) if verdict is not None and waits else 0.0

    size = FIRST * GROWTH ** (tally.pairs // PATIENCE)
    chosen: list[ReadingId] = []
    tests = Counter[str]()
    for track in sorted(left, key=rank):
        if timed_kernel(track.metric):
            if moved[track.metric] >= ENOUGH_TESTS:
                tally.times[track].give_up(f"known from {moved[track.metric]} other tests of this kernel")
                continue
            tests[track.metric] += 1
            if tests[track.metric] > (ENOUGH_TESTS if track.metric in decided else 1):
                continue
        if len(chosen) < size:
            chosen.append(track)
    return chosen


def in_order(times: Mapping[ReadingId, Verdict]) -> list[ReadingId]:
    """The times in question, those of guarded calls first. Test functions take turns, each with the time that moved
    most against its record, so that every kernel has a result before the time is over. Host times come after: on a busy
    machine they take the most pairs, and a case is conclusive without its own.

    A kernel may be in question in hundreds of observed tests. The test with its longest recorded time comes first.
    """
    calls: dict[str, list[ReadingId]] = defaultdict(list)
    hosts: dict[str, list[ReadingId]] = defaultdict(list)
    kernels: dict[str, list[ReadingId]] = defaultdict(list)
    for track in sorted(times, key=lambda track: -_size(times[track])):
        if timed_kernel(track.metric):
            kernels[track.metric].append(track)
        else:
            function = f"{track.suite}/{track.key.partition('[')[0]}"
            (hosts if track.metric == HOST_TIME else calls)[function].append(track)
    return [track for groups in (calls, hosts, kernels) for track in _by_turns(groups.values())]


def _by_turns(groups: Iterable[list[ReadingId]]) -> list[ReadingId]:
    return [track for turn in itertools.zip_longest(*groups) for track in turn if track is not None]


def _size(verdict: Verdict) -> float:
    """The relative change of a time; for kernels in tests, its length."""
    if timed_kernel(verdict.metric):
        return float(verdict.before) if isinstance(verdict.before, int | float) else 0.0
    return abs(math.log(verdict.ratio)) if verdict.ratio else 0.0
