"""Judges a report again from its raw readings, by the caller's baselines and the declared limits.

The report's own verdicts are kept only if they count against it: WRONG, BROKEN, UNSUPPORTED, and UNRESOLVED for a
refused time. All others are judged again, as in `pytest --perfguard`: doubts by the base's answers, times by process
pairs.

A report contains the limits of its readings. They must not be more lenient than those that the metrics declare
(`LIMITS` in perfguard/measure/metrics/), because the change's own code, which made the report, may have edited them.
The metrics' files load no torch, which the post job lacks.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from perfguard.judge.lane import Lane
from perfguard.judge.run_verdicts import by_device, count_guarded, judge_session, results_by_case, with_verdicts
from perfguard.model.limits import Limits, timed_kernel
from perfguard.model.records import (
    NO_BASE,
    CaseId,
    CaseResult,
    Doubt,
    Entry,
    Pairing,
    Reading,
    ReadingId,
    Report,
    TimedEntry,
    Verdict,
    Word,
)

_HASH = re.compile(r"[0-9a-f]{16}")
_KEPT = (Word.WRONG, Word.BROKEN, Word.UNSUPPORTED)


def judge_again(report: Report, lane: Lane) -> Report:
    """The report with verdicts of `lane`, none of them SUSPECT.

    Cases are compared with the commits that the report names; `lane_views` has checked that of a pull request. Cases
    keep their order. Stale entries are unknown without the list of collected tests, and only count as not measured
    (`unmeasured`).
    """
    lane = dataclasses.replace(lane, base=report.base, base_at=lambda commit: report.bases.get(commit, NO_BASE))
    cases = [_with_own(hold(result, lane)) for result in report.results]
    if report.exact_only:
        cases = [_of_every_machine(result) for result in cases]
    sessions = [replace(session, results=[hold(result) for result in session.results]) for session in report.fresh]
    verdicts: dict[CaseId, list[Verdict]] = {}
    for device, results in by_device(cases).items():
        measured = [each for each in results if (each.readings or each.doubts) and each.word is not Word.WRONG]
        pairings = [_answers(pairing, lane) for pairing in report.pairings if pairing.device == device]
        fresh = results_by_case([session for session in sessions if session.device == device])
        verdicts |= judge_session(measured, lane, pairings, fresh)
    results = [_with_new(result, verdicts.get(result.id, [])) for result in cases]
    return replace(
        report,
        results=results,
        fresh=sessions,
        stale=[],
        guarded=count_guarded(results),
        remembered=len(lane.remembered),
    )


def unmeasured(report: Report, lane: Lane) -> list[ReadingId]:
    """(suite, case key, metric) of each entry of `lane` that is missing in the judged `report`.

    The metric is empty if the whole case is missing, also if it is declared unsupported: a change must not drop a
    guarded case unnoticed. Cases that are WRONG or BROKEN have a verdict of their own and are not listed.
    """
    results = {result.id: result for result in report.results}
    missing: list[ReadingId] = []
    for suite, key in sorted(lane.remembered):
        result = results.get((suite, key))
        words = {verdict.word for verdict in result.verdicts} if result else set()
        if words & {Word.WRONG, Word.BROKEN}:
            continue
        if result is None or not result.readings:
            missing.append(ReadingId(suite, key, ""))
            continue
        unchanged = {verdict.metric for verdict in result.verdicts if verdict.word is Word.UNCHANGED}
        # A report names its ranks and target, and so the folder of its records. It must be the one that knows the case.
        read = {each.metric for each in result.readings if lane.record(result, each).case is not None}
        missing += [ReadingId(suite, key, metric) for metric in sorted(lane.to_read(suite, key) - read - unchanged)]
    return missing


def _answers(pairing: Pairing, lane: Lane) -> Pairing:
    """The pairing without cases that are compared with another commit."""
    return replace(pairing, cases=[case for case in pairing.cases if lane.base_of(*case.id).commit == pairing.base])


def _of_every_machine(result: CaseResult) -> CaseResult:
    """The case without its times and without metrics of one machine."""
    return replace(
        result, readings=[each for each in result.readings if not each.timed and (each.portable or each.target)]
    )


def _with_own(result: CaseResult) -> CaseResult:
    """The case with only the verdicts against it. An error above its limit is WRONG, whatever the report's verdict."""
    own = [Verdict(each.word, each.metric, each.reason) for each in result.verdicts if _is_kept(result, each)]
    known = {verdict.metric for verdict in own if verdict.word is Word.WRONG}
    for accuracy in result.accuracy:
        problem = accuracy.problem
        if not problem and accuracy.rmse is not None and accuracy.limit is not None and accuracy.rmse > accuracy.limit:
            problem = f"{accuracy.output}: RMSE {accuracy.rmse:.4g}, limit {accuracy.limit:.4g}"
        if problem and accuracy.output not in known:
            own.append(Verdict(Word.WRONG, accuracy.output, problem))
    return replace(result, verdicts=own)


def _is_kept(result: CaseResult, verdict: Verdict) -> bool:
    """Whether a verdict of the report is kept, which includes the reason for a missing reading (refused time, skipped
    test). Doubts are judged again."""
    if verdict.word is Word.UNRESOLVED:
        about_doubts = bool(result.doubts) and not verdict.metric
        return result.reading(verdict.metric) is None and not (timed_kernel(verdict.metric) or about_doubts)
    return verdict.word in _KEPT and not any(_is_on(verdict, doubt) for doubt in result.doubts)


def _is_on(verdict: Verdict, doubt: Doubt) -> bool:
    """Whether a verdict is on a doubt: its reason begins with the doubt's problem."""
    about = verdict.word is Word.WRONG and verdict.metric == doubt.output and bool(doubt.problem)
    return about and f"{verdict.reason}\n".startswith(f"{doubt.problem}\n")


def _with_new(result: CaseResult, verdicts: Sequence[Verdict]) -> CaseResult:
    return with_verdicts(result, [verdict for verdict in verdicts if verdict not in result.verdicts])


# -- declared limits ---------------------------------------------------------------------------------------------------


def declared(metric: str, *, of_target: bool = False) -> Limits | None:
    """The limits that the metric's file declares; None for an unknown metric.

    Args:
        of_target: whether `metric` is the part of a name after the target.
    """
    # These are imported late, since the metrics' files import the timers.
    from perfguard.measure.metrics import all_limits, all_limits_of_targets

    return (all_limits_of_targets() if of_target else all_limits()).get(metric)


def hold(result: CaseResult, lane: Lane | None = None) -> CaseResult:
    """The case with limits no more lenient than the declared ones. Limits of unknown metrics are kept.

    Args:
        lane: the baselines that judge the case. No rival replaces their times, and a reading far below them does not
            make its own limit wider.
    """
    readings = [_held(reading) for reading in result.readings]
    held = result if readings == result.readings else replace(result, readings=readings)
    if lane is None:
        return held
    return replace(held, readings=[_held(each, lane.record(held, each).entry) for each in held.readings])


def lenient(results: Sequence[CaseResult]) -> Counter[str]:
    """Metric -> the number of its readings that `hold` makes stricter."""
    return Counter(each.metric for result in results for each in result.readings if _held(each) != each)


def _identifies_code(reading: Reading) -> bool:
    """Whether equal values mean equal code: a hash, or a part for each kernel."""
    return isinstance(reading.value, dict) or bool(_HASH.fullmatch(str(reading.value)))


def _held(reading: Reading, entry: Entry | None = None) -> Reading:
    """The reading within the declared limits, and within those of its record `entry`."""
    if entry is not None and reading.rival:
        reading = replace(reading, rival=0.0)
    target, _, name = reading.metric.rpartition(".")
    of_target = bool(target) and target == reading.target
    own = declared(name if of_target else reading.metric, of_target=of_target)
    if own is None:
        return reading
    floor = min(reading.floor, own.floor)
    promise = reading.promise
    if reading.timed and isinstance(reading.value, int | float):
        recorded = median(entry.sessions) if isinstance(entry, TimedEntry) else 0.0
        promise = min(promise, max(own.promise, 3 * floor / max(reading.value, recorded)))
    return replace(
        reading,
        better=own.better,
        gated=own.gated,
        stored=own.stored,
        portable=reading.portable if own.portable is None else own.portable,
        target=reading.target if of_target else "",  # Readings for a target are not compared with records.
        promise=promise,
        floor=floor,
        tolerance=min(reading.tolerance, own.tolerance),
        unrecorded=own.unrecorded,
        covers=[metric for metric in reading.covers if metric in own.covers and _identifies_code(reading)],
    )
