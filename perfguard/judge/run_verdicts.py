"""The verdicts on a run: on all of its cases, on entries whose case is gone, and the exit status.

The screen passes times, process pairs decide others, and the rest stays UNRESOLVED. `pytest --perfguard` judges so at
the end of a run, and `perfguard.github.lanes` when it judges a report again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from perfguard.judge.case_verdicts import beside_base, judge_case, unpaired
from perfguard.judge.exact import because
from perfguard.judge.lane import Lane, timer_class
from perfguard.judge.pair_test import (
    PairedReadings,
    PairVerdict,
    in_cycles,
    in_states,
    judge_paired,
    judge_rival,
    read_again,
)
from perfguard.judge.screen import covered_beside, learn_controls, reading_of, slowest_asked, tests_of
from perfguard.judge.statistics import least_effect
from perfguard.model.errors import ExitStatus
from perfguard.model.records import (
    NEW_SINCE_BASE,
    NO_COMMIT_YET,
    NO_PAIRS,
    TOO_NOISY,
    CaseId,
    CaseResult,
    PairedCase,
    PairedTime,
    Pairing,
    Reading,
    ReadingId,
    Session,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.case import is_guarded
from perfguard.model.records.report import BOTH_WAYS


def screen_session(results: Sequence[CaseResult], lane: Lane) -> dict[CaseId, list[Verdict]]:
    """Judge every case by its record and the run's unchanged cases. Times in question, and doubts that a base can
    decide, are SUSPECT.

    Args:
        results: the measured cases of one device.
    """
    controls = learn_controls(results, lane)
    return slowest_asked(results, {result.id: judge_case(result, lane, controls) for result in results}, lane)


def judge_session(
    results: Sequence[CaseResult],
    lane: Lane,
    pairings: Sequence[Pairing] = (),
    fresh: Mapping[CaseId, Sequence[CaseResult]] | None = None,
    *,
    screened: Mapping[CaseId, Sequence[Verdict]] | None = None,
    alone: Sequence[PairedCase] = (),
    cut: str = "",
) -> dict[CaseId, list[Verdict]]:
    """The final verdicts on every case of one device, none of them SUSPECT.

    Args:
        fresh: results of a case in fresh processes, which judge times beside a rival's.
        screened: the verdicts of `screen_session`, if they are known already.
        pairings: the answers of bases, and the readings of process pairs on the device.
        alone: cases for which no base needs to be asked.
        cut: the reason why the run ended before it asked the bases that have no pairing.
    """
    cases = {case.id: case for case in alone} | {case.id: case for pairing in pairings for case in pairing.cases}
    problems = {pairing.base: pairing.problem or NO_PAIRS for pairing in pairings}
    base_of = {result.id: lane.base_of(*result.id).commit or "" for result in results}
    whys = {name: problems.get(base, cut or NO_PAIRS) for name, base in base_of.items()}
    unanswered = {name: PairedCase(*name, problem=whys[name]) for name, base in base_of.items() if base in problems}
    by_record = screen_session(results, lane) if screened is None else screened
    answers = {**unanswered, **cases}
    verdicts = {
        result.id: without_both_ways(result, beside_base(result, by_record[result.id], lane, answers.get(result.id)))
        for result in results
    }
    asked = {name: {each.metric for each in given if each.word is Word.SUSPECT} for name, given in verdicts.items()}
    tracks = {
        ReadingId(*result.id, time.metric): track
        for result in results
        for time in (cases[result.id].times if result.id in cases else ())
        if time.metric in asked[result.id] and (track := paired_readings_of(result, time)) is not None
    }
    by_pairs = judge_paired(tracks, count_suspects(verdicts))

    def settled(result: CaseResult, verdict: Verdict) -> Verdict:
        name, time = result.id, ReadingId(*result.id, verdict.metric)
        if verdict.word is not Word.SUSPECT:
            return verdict
        if not verdict.metric:  # This is a doubt, which may be older than the change.
            unasked = f"{base_of[name][:12]} was not asked{cut and f', {cut}'}"
            return replace(verdict, word=Word.UNRESOLVED, reason=f"{unasked}: {verdict.reason}")
        if (reading := result.reading(verdict.metric)) is not None and reading.rival:
            return _beside_rival(result, reading, (fresh or {}).get(name, ()))
        pairs = tracks.get(time), by_pairs.get(time)
        return _by_pairs(result, verdict, lane, cases.get(name), pairs, whys[name])

    return {result.id: [settled(result, verdict) for verdict in verdicts[result.id]] for result in results}


def while_uncommitted(verdict: Verdict) -> Verdict:
    """The verdict on a time that no commit can judge, because none has its test yet: NEW, which takes nothing away from
    its case. Only the run itself knows this; a report may claim it of a test that the base has."""
    if verdict.word is not Word.UNRESOLVED or not verdict.reason.endswith((NEW_SINCE_BASE, NO_COMMIT_YET)):
        return verdict
    step = "" if verdict.reason.endswith(NO_COMMIT_YET) else "; commit the test, to be compared with that commit"
    return replace(verdict, word=Word.NEW, reason=verdict.reason + step, storable=False)


def count_suspects(verdicts: Mapping[CaseId, Sequence[Verdict]]) -> int:
    """The number of times in question: the family over which the error of a run is spent."""
    return sum(
        verdict.word is Word.SUSPECT and bool(verdict.metric) for given in verdicts.values() for verdict in given
    )


def results_by_case(sessions: Iterable[Session]) -> dict[CaseId, list[CaseResult]]:
    """The results of fresh processes for each case, oldest first."""
    by_case: dict[CaseId, list[CaseResult]] = {}
    for session in sessions:
        for result in session.results:
            by_case.setdefault(result.id, []).append(result)
    return by_case


def with_verdicts(result: CaseResult, verdicts: Sequence[Verdict]) -> CaseResult:
    """`result` with further verdicts after its own."""
    return replace(result, verdicts=[*result.verdicts, *verdicts])


def paired_readings_of(result: CaseResult, time: PairedTime) -> PairedReadings | None:
    """The readings of one time for the test of process pairs; None if no pair read it."""
    reading = reading_of(result, time.metric)
    if reading is None or not time.readings:
        return None
    # Only the first pair determines θ, so that later pairs do not change earlier decisions. A base that its own change
    # contradicts must not make θ larger.
    first = time.readings[0]
    theta = least_effect(reading.promise, reading.floor, max(first.base_us, first.work_us / math.exp(first.change)))
    return PairedReadings(theta, timer_class(time.timer), time.readings)


def _by_pairs(
    result: CaseResult,
    suspect: Verdict,
    lane: Lane,
    case: PairedCase | None,
    pairs: tuple[PairedReadings | None, PairVerdict | None],
    why: str,
) -> Verdict:
    """The verdict on a time by its process pairs. `why`: the reason by default if they cannot decide."""
    metric, (track, outcome) = suspect.metric, pairs
    if case is not None and case.base is not None and metric in covered_beside(case.base, result):
        same = "the device runs the very same code as at the base"
        return replace(suspect, word=Word.UNCHANGED, reason=same)
    time = next((each for each in case.times if each.metric == metric), None) if case is not None else None
    if case is None or case.problem or time is None or outcome is None or track is None:
        problems = [each for each in (case.problem if case else "", time.problem if time else "") if each]
        if why != NO_PAIRS and not problems:  # A problem with the record would hide this reason.
            return replace(suspect, word=Word.UNRESOLVED, reason=f"UNPAIRED: {why}")
        return unpaired(result, metric, lane, problems[0] if problems else why)
    about = track.readings, outcome.effect, track.theta
    cycles, states = in_cycles(*about), in_states(*about)
    if outcome.word is Word.PASS:
        parts = [cycles]
    elif outcome.word is Word.UNRESOLVED:
        parts = [TOO_NOISY, str(outcome), states, cycles]
    elif outcome.word is None:
        parts = [f"UNDECIDED: {time.problem or why}", str(outcome), states]
    else:
        read = [] if case.base is None else case.base.readings
        before = {each.metric: each.value for each in read if not each.timed}
        parts = [str(outcome), states, cycles, because(metric, result.readings, before)]
    return replace(
        suspect,
        word=outcome.word or Word.UNRESOLVED,
        reason="; ".join(filter(None, parts)),
        before=middle([each.base_us for each in time.readings]),
        after=middle([each.work_us for each in time.readings]),
        ratio=math.exp(outcome.effect),
        interval=(math.exp(outcome.interval[0]), math.exp(outcome.interval[1])),
        smallest=outcome.smallest,
        limit=math.expm1(track.theta),
    )


def _beside_rival(result: CaseResult, reading: Reading, fresh: Sequence[CaseResult]) -> Verdict:
    verdict = judge_rival(reading, read_again(result, reading, fresh))
    if verdict.word is Word.SUSPECT:
        return replace(verdict, word=Word.UNRESOLVED, reason=f"UNPAIRED: {verdict.reason}")
    return verdict


def by_device(results: Sequence[CaseResult]) -> dict[int, list[CaseResult]]:
    """Device -> its results: a deviation of one device is no evidence about another."""
    on_device: dict[int, list[CaseResult]] = defaultdict(list)
    for result in results:
        on_device[result.device].append(result)
    return on_device


def middle(values: Sequence[float]) -> float:
    """The geometric median."""
    return math.exp(median(math.log(value) for value in values))


# -- entries whose case is gone ----------------------------------------------------------------------------------------


def find_stale(
    lane: Lane,
    suites_collected_whole: Collection[str],
    names_collected: Mapping[str, Collection[str]],
    measured: Collection[CaseId],
    ended: Collection[CaseId],
) -> list[Verdict]:
    """STALE, with its `suite` and `case`, for each baseline entry whose case is gone.

    A case is gone if its suite was collected completely and has no test of its name, or if its test finished without
    guarding this pass or label.

    Args:
        names_collected: suite -> the names of its guarded tests, including deselected ones. Further calls of a test
            are named `<test>:<label>`.
        measured: the cases with results.
        ended: suite and name of each test that finished and guarded a call.
    """
    gone = []
    for suite, key in sorted(lane.remembered.difference(measured)):
        collected = names_collected.get(suite, ())
        test = test_of(key.rpartition("/")[0], collected)
        if (suite in suites_collected_whole and test not in collected) or (suite, test) in ended:
            gone.append(Verdict(Word.STALE, reason=f"{key} of {suite}: the case is gone", suite=suite, case=key))
    return gone


def test_of(name: str, collected: Collection[str]) -> str:
    """The collected test that guards `name`: `name` itself, or the part of it before a label."""
    return next((test for test in tests_of(name) if test in collected), name)


def exit_status(
    words: Iterable[Word], strict: bool, measured: int, tests_failed: bool = False, inconclusive: bool = False
) -> ExitStatus:
    """The exit status of a run with these verdicts.

    Args:
        words: the verdicts on all cases and on stale entries.
        measured: the number of cases with at least one reading.
        tests_failed: whether a test failed for a reason other than a verdict on its cases.
        inconclusive: whether most timed cases are undecided.
    """
    present = set(words)
    if Word.WRONG in present:
        return ExitStatus.WRONG
    if present & {Word.SLOWER, Word.CHANGED}:
        return ExitStatus.REGRESSED
    if tests_failed or Word.BROKEN in present:
        return ExitStatus.TESTS_FAILED
    if measured == 0:
        return ExitStatus.NOTHING_MEASURED
    if inconclusive or (strict and any(word.unguarded for word in present)):
        return ExitStatus.UNGUARDED
    return ExitStatus.PASSED


def count_guarded(results: Iterable[CaseResult]) -> int:
    """The number of guarded cases (`is_guarded`)."""
    return sum(1 for result in results if is_guarded(result, result.word))


# -- resident warps that rise on one target and fall on another --------------------------------------------------------

# Resident warps fall in steps of a block, when registers cross a unit of the allocator (8 per thread). 20 -> 16 is such
# a step of one unit. The loss of one block of four is the largest step that is no finding if others gain.
_STEP = 0.25
_METRIC = ".resident_warps"

_Moves = dict[str, dict[str, tuple[float, float]]]  # kernel -> target -> before and after


def without_both_ways(result: CaseResult, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, in which a kernel's resident warps are not gated if they fall by a step at most on some targets,
    and rise on others. A device that is here is timed; for all others this is no sign of a slower kernel."""
    moves: _Moves = defaultdict(dict)
    by_target = {each.metric: each for each in verdicts if each.metric.endswith(_METRIC)}
    for metric, verdict in by_target.items():
        for kernel, before in _parts(verdict.before).items():
            after = _parts(verdict.after).get(kernel, before)
            if before != after and verdict.word in (Word.CHANGED, Word.BETTER):
                moves[kernel][metric.removesuffix(_METRIC)] = before, after
    mixed = {kernel: of_kernel for kernel, of_kernel in moves.items() if _is_mixed(of_kernel)}

    def judged(verdict: Verdict) -> Verdict:
        before, after = _parts(verdict.before), _parts(verdict.after)
        moved = [kernel for kernel in before if before[kernel] != after.get(kernel)]
        if by_target.get(verdict.metric) is not verdict or not moved or not all(kernel in mixed for kernel in moved):
            return verdict
        texts = [f"{kernel} {_described(mixed[kernel])}" for kernel in moved]
        return replace(verdict, word=Word.PASS, reason=f"{BOTH_WAYS}{'; '.join(texts)}")

    return [*map(judged, verdicts)]


def _parts(value: Value | None) -> Mapping[str, float]:
    parts = value.items() if isinstance(value, dict) else ()
    return {kernel: warps for kernel, warps in parts if isinstance(warps, int | float)}


def _is_mixed(of_kernel: Mapping[str, tuple[float, float]]) -> bool:
    rises = any(after > before for before, after in of_kernel.values())
    falls = [after / before for before, after in of_kernel.values() if after < before]
    return rises and bool(falls) and min(falls) >= 1 - _STEP


def _described(of_kernel: Mapping[str, tuple[float, float]]) -> str:
    return ", ".join(f"{target} {before:g} -> {after:g}" for target, (before, after) in of_kernel.items())
