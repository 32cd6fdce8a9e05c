"""Judges all cases of a run: the screen passes times, process pairs decide the rest, others stay UNRESOLVED.

`pytest --perfguard` does this at the end of a run, and `perfguard.github.lanes` does it to judge a report again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from perfguard.judge.case_verdicts import judge_case, stored_values, unpaired
from perfguard.judge.causes import because
from perfguard.judge.lane import Lane, timer_class
from perfguard.judge.pair_test import PairVerdict, Track, in_cycles, judge_tracks, noisy
from perfguard.judge.same_code import covered_beside
from perfguard.judge.screen import learn_controls
from perfguard.judge.statistics import least_effect
from perfguard.model.records import CaseResult, PairedCase, PairedTime, Pairing, Verdict, Word
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
