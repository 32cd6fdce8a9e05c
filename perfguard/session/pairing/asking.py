"""One base commit is asked what a run doubts: by one process that answers, and by process pairs for times."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields

from msgspec.structs import replace

from perfguard.judge.questions import Question
from perfguard.measure.binaries.comparison import Sides, compare_cases
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.metrics.times import HOST_TIME
from perfguard.model.config import CompareOptions
from perfguard.model.errors import UsageError
from perfguard.model.limits import timed_kernel
from perfguard.model.records import CaseId, CaseResult, PairedCase, Pairing, ReadingId, Verdict, Word
from perfguard.model.records.case import with_readings
from perfguard.model.records.code import CODE
from perfguard.model.units import counted
from perfguard.render.kernel_table import kernel_rows, kernel_table
from perfguard.render.words import most_common, toolchain_moves
from perfguard.session.child import OWN_PACKAGES, ChildCommand, Request, packages_at, timers_of
from perfguard.session.followed import Followed
from perfguard.session.fresh_processes import DIED, Tell
from perfguard.session.pairing.pairs import Site, out_of_time, starts_ahead
from perfguard.session.pairing.processes import Interrupts
from perfguard.session.pairing.tally import Tally, why_not_compared
from perfguard.session.pairing.worktrees import find_repository
from perfguard.session.run import Run

FIRST = 24  # places of the first pairs: each process pair takes seconds to start, and more tests cost little
# Pairs that a time gets at once: FIRST undecided times need so many before one may be accused (`pair_test.luck`). After
# as many, pairs have GROWTH times as many places.
PATIENCE = 5
GROWTH = 4
TELLING = 5  # tests, which name a kernel that all of them launch
INTERRUPTED = "interrupted"
_MOST_DEATHS = 3  # of a base's process in its tests: then single ones are not to blame


@dataclass
class Asking:
    """One base is asked the question of a run. What it answers is kept in the run as it comes.

    Args:
        family: number of times in question of all bases.
        seconds: what is left of the time for process pairs; starting and answering take nothing of it.
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
    problems: dict[CaseId, str] = field(default_factory=dict)  # why the base has no answer

    def __post_init__(self) -> None:
        tracks = {track: self.question.cases[track.case] for track in self.question.times}
        self.tally = Tally(tracks, family=self.family)
        self._place = len(self.run.pairings)

    def ask(self) -> None:
        """Ask, and keep the answers; a base that cannot be asked is a problem that the verdicts name.

        Raises:
            KeyboardInterrupt: from the user, after the answers so far are kept.
            UsageError: `perfguard compare` cannot ask its base.
        """
        try:
            problem = self._ask()
        except KeyboardInterrupt:
            if self.answers:  # else nobody was asked
                self._keep(INTERRUPTED)
            raise
        except (UsageError, OSError) as error:  # the latter of a full disk
            problem = str(error)
            if self.run.config.beside is not None:  # without a base there is no comparison
                self._keep(problem)
                raise
        self._keep(problem)

    def leave(self, problem: str) -> None:
        """Ask nothing, for this reason."""
        self._keep(problem)

    def _ask(self) -> str:
        run, command = self.run, self.command
        repository = find_repository(run.config.root)
        if not command.folder.resolve().is_relative_to(repository.root.resolve()):
            command = with_fields(command, folder=run.config.root)
        settings, slug, ahead = run.config.settings, run.device.identity.slug, starts_ahead(run.device)
        beside = run.config.beside or CompareOptions()
        packages = OWN_PACKAGES if beside.python is None else packages_at(beside.python)
        with (
            Interrupts() as interrupts,
            Site(repository, command, slug, settings, interrupts, self.tell, ahead, packages) as site,
            interrupts.armed(),
        ):
            times = self.question.times if settings.pair_minutes else {}
            site.lay_out(self.base, pairs=bool(times))
            if beside.setup:
                site.set_up(beside.setup)
            if times:
                site.start(self.tally)
            self._answer(site)
            if not times:
                return "[tool.perfguard] pair_minutes is 0" if self.question.times else ""
            return self._pair(site)

    def _answer(self, site: Site) -> None:
        """Let one process of the base read the cases in doubt, and compare the kernels of both sides."""
        run, question = self.run, self.question
        cases = {
            case: result
            for case, result in question.cases.items()
            if site.has("base", result.case.nodeid, run.config.root)
        }
        self.problems |= dict.fromkeys(question.cases.keys() - cases.keys(), "new since the base")
        if not cases:
            return
        more = f"; {counted(self.more, 'commit')} to ask after it" if self.more else ""
        self.tell(f"{counted(len(cases), 'case')} in doubt: asking {self.base[:12]}{more}")
        request = Request(
            run.device.identity.slug, timers_of(cases.values()), numerics=True, doubts=question.doubts, times=False
        )
        tests = list(dict.fromkeys(result.case.nodeid for result in cases.values()))
        found, followed, problems = answers(site, request, tests)
        for problem in dict.fromkeys(problems.values()):
            self.tell(problem.partition("\n")[0].removesuffix(":"))
        if moves := toolchain_moves(site.toolchain, run.report.toolchain):
            self.tell(f"from {self.base[:12]} to the working tree: {moves}")
        for case, result in cases.items():
            base = found.get(case)
            if base is None:
                uncollected = followed.uncollected.get(result.case.nodeid.partition("::")[0])
                new = (
                    "new since the base" if uncollected is None else f"its file does not run at the base: {uncollected}"
                )
                self.problems[case] = problems.get(result.case.nodeid, new)
                continue
            self.answers[case] = base
            if why := why_not_compared(base, result):
                self.problems[case] = why
        self._compare_kernels(site, followed)
        self.tally.answered(self.answers)
        self._keep("")

    def _compare_kernels(self, site: Site, followed: Followed) -> None:
        """Add to both sides what the compilers make of the kernels that are not alike."""
        run, question = self.run, self.question
        binaries = run.runner.hands.binaries
        cases = [
            case
            for case in self.answers.keys() - self.problems.keys()
            if case in question.code or question.is_timed(case)
        ]
        if binaries is None or not cases:
            return
        sides = [Sides(followed.of(case), run.runner.followed.get(case, [])) for case in cases]
        base = Compiler(run.config.cache_dir / "binaries", path=followed.path, python=site.packages.python)
        try:
            found = compare_cases(sides, (base, binaries.compiler))
        finally:
            base.close()
        if run.config.beside is not None:
            rows = [row for compared in found for row in kernel_rows(compared.base, compared.work)]
            for line in kernel_table(rows):
                self.tell(line)
        for case, compared in zip(cases, found, strict=True):
            code, told = run.measured[case].reading(CODE), "\n".join(compared.problems)
            noted = [] if code is None or not told else [replace(code, note=told)]
            run.measured[case] = with_readings(run.measured[case], [*compared.work, *noted])
            answer = self.answers[case]
            if not compared.other_code and not compared.problems:  # whatever was renamed
                alike = {CODE: run.measured[case].reading(CODE)}
                answer = replace(answer, readings=[alike.get(each.metric) or each for each in answer.readings])
            self.answers[case] = with_readings(answer, compared.base)

    def _pair(self, site: Site) -> str:
        """Measure process pairs, and return the reason if times are left."""
        asked = self.question.times
        for track in asked:
            if why := self.problems.get(track.case) or self._is_wrong(track.case):
                self.tally.times[track].give_up(why)
        left = self.tally.left()
        if not left:
            return ""
        why = _most_common_reason([asked[track] for track in left])
        self.tell(f"{counted(len(left), 'time')} in question: measured beside {self.base[:12]} by turns{why}")
        deadline = time.monotonic() + self.seconds

        def places(left: Sequence[ReadingId]) -> list[ReadingId]:
            self._keep("")
            return in_next_pair(left, self.tally)

        site.measure(self.tally, in_order({track: asked[track] for track in left}), deadline, places)
        self._keep("")
        self.seconds = deadline - time.monotonic()
        if self.tally.problem or self.seconds < 0:
            return self.tally.problem or out_of_time(self.run.config.settings)
        return ""

    def _is_wrong(self, case: CaseId) -> str:
        """Why a case needs no time: it has a fault that the base has not."""
        base = self.answers.get(case)
        right = {doubt.name for doubt in base.doubts if not doubt.problem} if base is not None else set()
        faults = [doubt.problem for doubt in self.question.cases[case].doubts if doubt.name in right]
        return f"not timed: {faults[0]}" if faults else ""

    def _keep(self, problem: str) -> None:
        """Keep the answers and readings so far, which stay valid if the run ends now."""
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
        self.run.pairings[self._place :] = [pairing]


def answers(
    site: Site, request: Request, tests: Sequence[str]
) -> tuple[dict[CaseId, CaseResult], Followed, dict[str, str]]:
    """What the base answers, what it has followed, and node id of a test without an answer -> the reason, if its
    process did not come to its end. A test in which the process died is left out, and those behind it are asked again.
    """
    found: dict[CaseId, CaseResult] = {}
    followed, problems = Followed(), dict[str, str]()
    for number in range(1, _MOST_DEATHS + 1):
        answer = site.answer(replace(request, tests=list(tests)))
        found |= {result.id: result for result in answer.results}
        followed = followed.joined(answer.followed)
        answered = {result.case.nodeid for result in answer.results}
        tests = tests[max((place for place, test in enumerate(tests, 1) if test in answered), default=0) :]
        if not answer.problem or not tests:
            break
        if DIED not in answer.problem or number == _MOST_DEATHS:
            problems |= dict.fromkeys(tests, answer.problem)
            break
        problems[tests[0]] = answer.problem
        tests = tests[1:]
        if not tests:
            break
    return found, followed, problems


def _exact(base: CaseResult) -> CaseResult:
    """The base's answer without times and notes."""
    readings = [replace(each, note="") for each in base.readings if not each.timed]
    return CaseResult(base.case, base.inputs, readings=readings, doubts=base.doubts)


def _most_common_reason(asked: Sequence[Verdict]) -> str:
    """` (51: 3 sessions stored, 5 are needed)`: what keeps most of them from their record."""
    reason, count = most_common([verdict.reason for verdict in asked])
    return f" ({count}: {reason.removeprefix('to be paired: ')})"


def in_next_pair(left: Sequence[ReadingId], tally: Tally) -> list[ReadingId]:
    """The undecided times that the next pair measures, of `left` in their order (`in_order`).

    A time that PATIENCE pairs left undecided, and that may not have moved, goes behind all others, so that no time
    waits for the noise of another; of such times those that moved most come first. Times of kernels that are slower, or
    faster, in TELLING tests already are given up, since hundreds more would say the same. Until one test of a kernel is
    decided, a pair measures it in one test alone: each block of its time is a run of a whole test.
    """
    told, decided = Counter[str](), set[str]()
    for track, found in tally.verdicts.items():
        told[track.metric] += found.word in (Word.SLOWER, Word.FASTER)
        decided |= {track.metric} if found.word is not None else set()

    def rank(track: ReadingId) -> tuple[bool, float]:
        found = tally.verdicts.get(track)
        waits = found is not None and found.pairs >= PATIENCE and found.interval[0] <= 0 <= found.interval[1]
        return waits, -abs(found.effect) if found is not None and waits else 0.0

    size = FIRST * GROWTH ** (tally.pairs // PATIENCE)
    chosen: list[ReadingId] = []
    tests = Counter[str]()
    for track in sorted(left, key=rank):
        if timed_kernel(track.metric):
            if told[track.metric] >= TELLING:
                tally.times[track].give_up(f"known from {told[track.metric]} other tests of this kernel")
                continue
            tests[track.metric] += 1
            if tests[track.metric] > (TELLING if track.metric in decided else 1):
                continue
        if len(chosen) < size:
            chosen.append(track)
    return chosen


def in_order(asked: Mapping[ReadingId, Verdict]) -> list[ReadingId]:
    """The times in question, those of guarded calls first. Test functions take turns, each with the time that moved
    most against its record, so that every kernel has a result before the time is over. Host times come after: on a busy
    machine they take the most pairs, and a case is conclusive without its own.

    A kernel of observed tests may be in question in hundreds of them. The test in which it took longest when it was
    recorded comes first.
    """
    calls: dict[str, list[ReadingId]] = defaultdict(list)
    hosts: dict[str, list[ReadingId]] = defaultdict(list)
    kernels: dict[str, list[ReadingId]] = defaultdict(list)
    for track in sorted(asked, key=lambda track: -_size(asked[track])):
        if timed_kernel(track.metric):
            kernels[track.metric].append(track)
        else:
            function = f"{track.suite}/{track.key.partition('[')[0]}"
            (hosts if track.metric == HOST_TIME else calls)[function].append(track)
    return [track for groups in (calls, hosts, kernels) for track in _by_turns(groups.values())]


def _by_turns(groups: Iterable[list[ReadingId]]) -> list[ReadingId]:
    return [track for turn in itertools.zip_longest(*groups) for track in turn if track is not None]


def _size(verdict: Verdict) -> float:
    """What moved most comes first; of kernels in tests, what takes longest."""
    if timed_kernel(verdict.metric):
        return float(verdict.before) if isinstance(verdict.before, int | float) else 0.0
    return abs(math.log(verdict.ratio)) if verdict.ratio else 0.0
