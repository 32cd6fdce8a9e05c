"""The verdicts on a run: on its cases together, on entries whose case is gone, and the exit status.

The screen passes times, process pairs decide the rest, others stay UNRESOLVED. `pytest --perfguard` does this at the
end of a run, and `perfguard.github.lanes` does it to judge a report again.
"""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from perfguard.judge.case_verdicts import judge_case, stored_values, unpaired
from perfguard.judge.exact import because
from perfguard.judge.lane import Lane, timer_class
from perfguard.judge.pair_test import PairVerdict, Track, in_cycles, judge_tracks, noisy
from perfguard.judge.screen import covered_beside, learn_controls
from perfguard.judge.statistics import least_effect
from perfguard.model.errors import ExitStatus
from perfguard.model.records import CaseResult, PairedCase, PairedTime, Pairing, Verdict, Word
from perfguard.model.records.case import is_guarded
from perfguard.model.records.pair import NO_PAIRS

CaseId = tuple[str, str]  # suite, case key
TimeId = tuple[str, str, str]  # suite, case key, metric


def screen_session(
    results: Sequence[CaseResult], lane: Lane, fresh: Mapping[CaseId, Sequence[CaseResult]] | None = None
) -> dict[CaseId, list[Verdict]]:
    """Judge every case by its record and the run's unchanged cases; times in question are SUSPECT.

    Args:
        results: measured cases of one device, without those that were not measured.
        fresh: results of a case in fresh processes, for times beside a rival's.
    """
    controls = learn_controls(results, lane)
    known = fresh or {}
    return {case_id(result): judge_case(result, lane, controls, known.get(case_id(result), ())) for result in results}


def judge_session(
    results: Sequence[CaseResult],
    lane: Lane,
    pairings: Sequence[Pairing] = (),
    fresh: Mapping[CaseId, Sequence[CaseResult]] | None = None,
) -> dict[CaseId, list[Verdict]]:
    """The final verdicts on every case of one device, none of them SUSPECT.

    Args:
        pairings: readings of process pairs on the device.
    """
    screened = screen_session(results, lane, fresh)
    family = count_suspects(screened)
    beside = {case_id(case): case for pairing in pairings for case in pairing.cases}
    why = next((pairing.problem for pairing in pairings if pairing.problem), NO_PAIRS)
    found = judge_tracks(_tracks(results, screened, beside), family)
    verdicts = {}
    for result in results:
        name = case_id(result)
        case = beside.get(name)
        verdicts[name] = [
            verdict
            if verdict.word is not Word.SUSPECT
            else _beside_base(result, verdict, lane, case, found.get((*name, verdict.metric)), why)
            for verdict in screened[name]
        ]
    return verdicts


def count_suspects(verdicts: Mapping[CaseId, Sequence[Verdict]]) -> int:
    """Number of times in question: the family over which a run's error is spread."""
    return sum(verdict.word is Word.SUSPECT for found in verdicts.values() for verdict in found)


def case_id(named: CaseResult | PairedCase) -> CaseId:
    """The identity of a case in a run."""
    return (named.case.suite, named.case.key) if isinstance(named, CaseResult) else (named.suite, named.key)


def with_verdicts(result: CaseResult, verdicts: Sequence[Verdict]) -> CaseResult:
    """`result` with further verdicts after its own."""
    return msgspec.structs.replace(result, verdicts=[*result.verdicts, *verdicts])


def _tracks(
    results: Sequence[CaseResult], screened: Mapping[CaseId, Sequence[Verdict]], beside: Mapping[CaseId, PairedCase]
) -> dict[TimeId, Track]:
    tracks = {}
    for result in results:
        name = case_id(result)
        case = beside.get(name)
        asked = {verdict.metric for verdict in screened[name] if verdict.word is Word.SUSPECT}
        for time in case.times if case is not None else ():
            track = track_of(result, time) if time.metric in asked else None
            if track is not None:
                tracks[*name, time.metric] = track
    return tracks


def track_of(result: CaseResult, time: PairedTime) -> Track | None:
    """One time as input of the test of process pairs; None if no pair read it."""
    reading = result.reading(time.metric)
    if reading is None or not time.readings:
        return None
    # θ from the first pair's time: later pairs must not change earlier decisions.
    theta = least_effect(reading.promise, reading.floor, time.readings[0].base_us)
    return Track(theta, timer_class(time.timer), time.readings)


def _beside_base(
    result: CaseResult, suspect: Verdict, lane: Lane, case: PairedCase | None, found: PairVerdict | None, why: str
) -> Verdict:
    """The verdict by process pairs; if they cannot decide, the reason."""
    metric = suspect.metric
    reading = result.reading(metric)
    assert reading is not None
    if reading.rival:
        return msgspec.structs.replace(suspect, word=Word.UNRESOLVED, reason=f"UNPAIRED: {suspect.reason}")
    time = next((each for each in case.times if each.metric == metric), None) if case is not None else None
    if case is not None and case.base is not None and metric in covered_beside(case.base, result):
        same = "the device runs the very same code as at the base"
        return msgspec.structs.replace(suspect, word=Word.UNCHANGED, reason=same)
    if case is None or case.problem or time is None or found is None:
        told = [each for each in (case.problem if case else "", time.problem if time else "") if each]
        if why != NO_PAIRS and not told:  # a problem with the record would hide this reason
            return msgspec.structs.replace(suspect, word=Word.UNRESOLVED, reason=f"UNPAIRED: {why}")
        return unpaired(result, metric, lane, told[0] if told else why)
    verdict = msgspec.structs.replace(
        suspect,
        word=found.word or Word.UNRESOLVED,
        reason=_reason(result, lane, case, time, found, why),
        before=_middle([each.base_us for each in time.readings]),
        after=_middle([each.work_us for each in time.readings]),
        ratio=math.exp(found.effect),
        interval=(math.exp(found.interval[0]), math.exp(found.interval[1])),
        smallest=found.smallest,
    )
    track = track_of(result, time)
    assert track is not None
    return msgspec.structs.replace(verdict, limit=math.expm1(track.theta))


def _reason(result: CaseResult, lane: Lane, case: PairedCase, time: PairedTime, found: PairVerdict, why: str) -> str:
    track = track_of(result, time)
    assert track is not None
    cycles = in_cycles(time.readings, found.effect, track.theta)
    if found.word is Word.PASS:
        return cycles
    if found.word is Word.UNRESOLVED:
        return "; ".join(filter(None, (noisy(found), cycles)))
    if found.word is None:
        return f"UNDECIDED: {time.problem or why}; {found}"
    before = stored_values(result, lane)  # for metrics missing in the base's process, which compiles for no target
    if case.base is not None:
        before |= {each.metric: each.value for each in case.base.readings if not each.timed}
    return "; ".join(filter(None, (str(found), cycles, because(time.metric, result.readings, before))))


def by_device(results: Sequence[CaseResult]) -> dict[int, list[CaseResult]]:
    """The results of each device: a deviation of one device says nothing about another."""
    found: dict[int, list[CaseResult]] = defaultdict(list)
    for result in results:
        found[result.device].append(result)
    return found


def _middle(values: Sequence[float]) -> float:
    logs = sorted(math.log(value) for value in values)
    half = len(logs) // 2
    return math.exp(logs[half] if len(logs) % 2 else (logs[half - 1] + logs[half]) / 2)


SIMILAR_NAMES = 0.6  # least difflib ratio of a renamed case's old and new names


def find_stale(
    lane: Lane,
    suites_collected_whole: Collection[str],
    names_collected: Mapping[str, Collection[str]],
    results: Sequence[CaseResult],
    ended: Collection[CaseId],
) -> tuple[list[Verdict], list[CaseResult]]:
    """Baseline entries whose case is gone, and the new cases that look like renamed ones.

    An entry is gone if its suite was collected completely and has no test of its name, or if its test ran to its end
    and did not guard this pass or label.

    Args:
        names_collected: suite -> names of its guarded tests, deselected ones too. A test's further calls are
            named `<test>:<label>`.
        ended: suite and name of the tests that ran to their end and guarded something.

    Returns:
        A verdict on every gone entry, with its `suite` and `case`: STALE, or RENAMED if a new case has the same pass,
        the same inputs and a similar name. Then these new cases, with RENAMED in place of NEW.
    """
    gone = sorted(_gone(lane, suites_collected_whole, names_collected, results, ended))
    new = {
        (result.case.suite, result.case.key): result
        for result in results
        if any(verdict.word is Word.NEW for verdict in result.verdicts)
        and (result.case.suite, result.case.key) not in lane.remembered
    }
    renamed = _match(lane, gone, new)
    verdicts = [_verdict(old, renamed.get(old)) for old in gone]
    return verdicts, [_rename(new[now], old) for old, now in renamed.items()]


def _gone(
    lane: Lane,
    whole: Collection[str],
    names: Mapping[str, Collection[str]],
    results: Sequence[CaseResult],
    ended: Collection[CaseId],
) -> list[CaseId]:
    present = {(result.case.suite, result.case.key) for result in results}
    gone = []
    for suite, key in lane.remembered - present:
        collected = names.get(suite, ())
        test = test_of(key.rpartition("/")[0], collected)
        if (suite in whole and test not in collected) or (suite, test) in ended:
            gone.append((suite, key))
    return gone


def test_of(name: str, collected: Collection[str]) -> str:
    """The collected test that guards `name`: `name` itself, or the part before the label of a further call."""
    if name in collected:
        return name
    before = [name[:at] for at, letter in enumerate(name) if letter == ":"]
    return next((test for test in reversed(before) if test in collected), name)


def _match(lane: Lane, gone: Sequence[CaseId], new: Mapping[CaseId, CaseResult]) -> dict[CaseId, CaseId]:
    """Old -> new, one to one, most similar names first. In another file, only an equal name matches."""
    candidates = []
    for old in gone:
        name, _, direction = old[1].rpartition("/")
        inputs = {stored.inputs for stored in lane.stored_cases(*old)} - {""}
        for now, result in new.items():
            if result.case.direction != direction or result.inputs not in inputs:
                continue
            alike = difflib.SequenceMatcher(None, name, result.case.name, autojunk=False).ratio()
            if alike >= (SIMILAR_NAMES if now[0] == old[0] else 1.0):
                candidates.append((-alike, now[0] != old[0], old, now))
    pairs: dict[CaseId, CaseId] = {}
    for _, _, old, now in sorted(candidates):
        if old not in pairs and now not in pairs.values():
            pairs[old] = now
    return pairs


def _verdict(old: CaseId, now: CaseId | None) -> Verdict:
    suite, key = old
    if now is None:
        return Verdict(Word.STALE, reason=f"{key} of {suite}: the case is gone", suite=suite, case=key)
    reason = f"{key} of {suite}: now {now[1]}" + (f" of {now[0]}" if now[0] != suite else "")
    return Verdict(Word.RENAMED, reason=reason, suite=suite, case=key)


def _rename(result: CaseResult, old: CaseId) -> CaseResult:
    suite, key = old
    was = f"was {key}" + (f" of {suite}" if suite != result.case.suite else "")
    verdicts = [
        msgspec.structs.replace(verdict, word=Word.RENAMED, reason=was) if verdict.word is Word.NEW else verdict
        for verdict in result.verdicts
    ]
    return msgspec.structs.replace(result, verdicts=verdicts)


def exit_status(
    words: Iterable[Word], strict: bool, measured: int, tests_failed: bool = False, inconclusive: bool = False
) -> ExitStatus:
    """The exit status of a run with these verdicts.

    Args:
        words: of every case and of stale entries.
        measured: number of cases with at least one reading.
        tests_failed: whether a test failed for a reason other than a verdict on its cases.
        inconclusive: whether most timed cases are undecided.
    """
    found = set(words)
    if Word.WRONG in found:
        return ExitStatus.WRONG
    if found & {Word.SLOWER, Word.CHANGED}:
        return ExitStatus.REGRESSED
    if tests_failed or Word.BROKEN in found:
        return ExitStatus.TESTS_FAILED
    if measured == 0:
        return ExitStatus.NOTHING_MEASURED
    if inconclusive or (strict and any(word.unguarded for word in found)):
        return ExitStatus.UNGUARDED
    return ExitStatus.PASSED


def count_guarded(results: Iterable[CaseResult]) -> int:
    """Number of guarded cases (`is_guarded`)."""
    return sum(1 for result in results if is_guarded(result, result.word))
