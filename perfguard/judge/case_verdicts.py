"""Judges the readings of a case by its record: the first rung that applies decides.

Verdicts on exact metrics are final here. A time is UNCHANGED, within its record, or in question (SUSPECT). Process
pairs decide the last kind (`perfguard.judge.run_verdicts`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from perfguard.judge.exact import judge_exact, machine_change, spelled_out
from perfguard.judge.lane import Lane, differing_versions, other_power, same_board, timer_class
from perfguard.judge.pair_test import judge_rival
from perfguard.judge.screen import NO_CONTROLS, Controls, covering, within_record
from perfguard.judge.statistics import remember
from perfguard.model.records import (
    Baseline,
    Better,
    CaseBaseline,
    CaseResult,
    Entry,
    Reading,
    TimedEntry,
    Value,
    Verdict,
    Word,
)
from perfguard.model.units import Unit, format_change

_WORTH_TELLING = 0.01  # slowdown of unchanged code from which the machine is named as the cause


def judge_case(
    result: CaseResult, lane: Lane, controls: Mapping[str, Controls] = NO_CONTROLS, fresh: Sequence[CaseResult] = ()
) -> list[Verdict]:
    """One verdict for each reading of `result`, and one for each stored metric that was not read.

    Correctness is judged elsewhere. A case with an accuracy problem was not measured, so no metric counts as missing.

    Args:
        controls: timer class -> deviation of the run's unchanged cases from their records.
        fresh: results of the same case in fresh processes, which judge times beside a rival's.
    """
    same = covering(result, lane)
    verdicts = []
    for reading in result.readings:
        if not reading.timed:
            verdicts.append(_exact(result, reading, lane))
        elif reading.rival:
            verdicts.append(_beside_rival(result, reading, lane, fresh))
        elif reading.metric in same:
            verdicts.append(_unchanged(result, lane, reading.metric, f"{same[reading.metric]} is as recorded"))
        else:
            verdicts.append(_timed(result, reading, lane, controls))
    verdicts = _explained(verdicts, result, lane)
    measured = result.word not in (Word.WRONG, Word.BROKEN, Word.UNSUPPORTED)
    if measured and not any(accuracy.problem for accuracy in result.accuracy):
        verdicts += _not_read(result, lane, same)
    return verdicts


def unpaired(result: CaseResult, metric: str, lane: Lane, why: str) -> Verdict:
    """The verdict on a time that no process pair can judge: the problem with its record if any, else UNRESOLVED."""
    reading = result.reading(metric)
    assert reading is not None
    entry, other = _stored_time(result, reading, lane)
    if other is not None:
        return other
    assert entry is not None
    reason = f"UNPAIRED: {why}"
    return msgspec.structs.replace(_shown(result, reading, lane), word=Word.UNRESOLVED, reason=reason)


# -- exact metrics ---------------------------------------------------------------------------------------------------


def _exact(result: CaseResult, reading: Reading, lane: Lane) -> Verdict:
    baseline, stored = _remembered(result, reading, lane)
    entry = _entry(reading, stored)
    if reading.tells_of_nothing and not entry:
        return _unjudged(Word.PASS, reading, "")
    if baseline is None and _is_known_to_the_target_alone(result, reading, lane):
        return _unjudged(Word.PASS, reading, f"not gated: {lane.hardware.slug} has no record of its own")
    if baseline is None or stored is None or entry is None:
        return _unknown(result, reading, lane, stored)
    changed = _other_method(result, reading, stored, entry)
    if changed or isinstance(entry, TimedEntry):
        return _unjudged(Word.METHOD_CHANGED, reading, changed, entry)
    drift = differing_versions(
        baseline.provenance_of(result.case.key), lane.toolchain, portable=lane.is_portable(reading)
    )
    if reading.target:  # compiled code does not depend on the torch that called it
        drift = [change for change in drift if change.startswith("triton ")]
    return judge_exact(reading, entry, drift)


# -- times -----------------------------------------------------------------------------------------------------------


def _timed(result: CaseResult, reading: Reading, lane: Lane, controls: Mapping[str, Controls]) -> Verdict:
    shown = _shown(result, reading, lane)
    value = reading.value
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        reason = f"NOISY: read {value}, which is no time"
        return Verdict(Word.UNRESOLVED, reading.metric, reason, unit=reading.unit)
    if not reading.gated:
        change = f": {format_change(shown.ratio)}" if shown.ratio is not None else ""
        return msgspec.structs.replace(shown, word=Word.PASS, reason=f"not gated{change}")
    entry, other = _stored_time(result, reading, lane)
    if lane.base.equal:
        if other is not None and other.word is Word.DRIFT:
            return other
        return msgspec.structs.replace(shown, word=Word.UNCHANGED, reason=_same_tree(lane))
    why = "its record is of another kind" if other is not None and other.word is not Word.NEW else "nothing is recorded"
    if entry is not None:
        suite, key = result.case.suite, result.case.key
        name = timer_class(entry.timer)
        beside = controls.get(name, Controls())
        on_its_board = same_board(lane.provenance(suite, key), result)
        why = within_record(reading, entry, lane.prior(name), beside, on_its_board=on_its_board)
        if not why:
            return msgspec.structs.replace(shown, word=Word.PASS, reason="")
    if lane.base.commit is None:
        return unpaired(result, reading.metric, lane, lane.base.problem)
    return msgspec.structs.replace(shown, word=Word.SUSPECT, reason=f"to be paired: {why}")


def _beside_rival(result: CaseResult, reading: Reading, lane: Lane, fresh: Sequence[CaseResult]) -> Verdict:
    if lane.base.equal:
        shown = judge_rival(reading)
        return msgspec.structs.replace(shown, word=Word.UNCHANGED, reason=_same_tree(lane))
    alike = [other.reading(reading.metric) for other in fresh if other.inputs == result.inputs]
    return judge_rival(reading, [read for read in alike if read is not None and read.timer == reading.timer])


def _same_tree(lane: Lane) -> str:
    return f"the working tree is {(lane.base.commit or '')[:12]}, but for documentation"


def _stored_time(result: CaseResult, reading: Reading, lane: Lane) -> tuple[TimedEntry | None, Verdict | None]:
    """The stored time for comparison; without a comparable one, the verdict that gives the reason."""
    baseline, stored = _remembered(result, reading, lane)
    if baseline is None or stored is None or reading.metric not in stored.entries:
        return None, _unknown(result, reading, lane, stored)
    entry, provenance = stored.entries[reading.metric], baseline.provenance_of(result.case.key)
    changed = other_power(provenance, lane.hardware)
    if changed:
        return None, _unjudged(Word.OTHER_HARDWARE, reading, changed, entry)
    changed = _other_method(result, reading, stored, entry)
    if changed or not isinstance(entry, TimedEntry):
        return None, _unjudged(Word.METHOD_CHANGED, reading, changed, entry)
    drift = differing_versions(provenance, lane.toolchain)
    if drift:
        shown = _shown(result, reading, lane)
        change = "" if shown.ratio is None else f"{format_change(shown.ratio)}; "
        reason = f"{change}another toolchain: {', '.join(drift)}"
        return None, msgspec.structs.replace(shown, word=Word.DRIFT, reason=reason)
    return entry, None


def _shown(result: CaseResult, reading: Reading, lane: Lane) -> Verdict:
    """A verdict with the time and its record (if it has the same timer). The caller sets word and reason."""
    _, stored = _remembered(result, reading, lane)
    entry = stored.entries.get(reading.metric) if stored else None
    shown = Verdict(Word.PASS, reading.metric, after=reading.value, unit=reading.unit)
    if not isinstance(entry, TimedEntry) or entry.timer != reading.timer or not isinstance(reading.value, int | float):
        return shown
    centre = remember(entry.sessions).centre
    slowdown = math.log(reading.value) - centre if 0 < reading.value < math.inf else 0.0
    ratio = math.exp(-slowdown if reading.better is Better.HIGHER else slowdown)
    return msgspec.structs.replace(shown, before=math.exp(centre), ratio=ratio)


def _unchanged(result: CaseResult, lane: Lane, metric: str, why: str) -> Verdict:
    """The verdict on a time that cannot have changed, with its value if it was read nevertheless."""
    reading = result.reading(metric)
    if reading is not None:
        return msgspec.structs.replace(_shown(result, reading, lane), word=Word.UNCHANGED, reason=why)
    centre = remember(lane.timed[result.case.suite, result.case.key, metric].sessions).centre
    return Verdict(Word.UNCHANGED, metric, f"{why}; not timed", before=math.exp(centre), unit=Unit.MICROSECONDS)


# -- shared helpers --------------------------------------------------------------------------------------------------


def _remembered(result: CaseResult, reading: Reading, lane: Lane) -> tuple[Baseline | None, CaseBaseline | None]:
    baseline = lane.baseline_of(result.case.suite, reading)
    return baseline, baseline.cases.get(result.case.key) if baseline else None


def _is_known_to_the_target_alone(result: CaseResult, reading: Reading, lane: Lane) -> bool:
    """Whether a case has only a portable record, and `reading` is not portable."""
    suite, key = result.case.suite, result.case.key
    return not lane.is_portable(reading) and suite in lane.portable and key in lane.portable[suite].cases


def _entry(reading: Reading, stored: CaseBaseline | None) -> Entry | None:
    """The stored entry of the reading; `reading.unrecorded` if the record is older than the metric."""
    if stored is None or reading.metric in stored.entries or reading.unrecorded is None:
        return stored.entries.get(reading.metric) if stored else None
    return dict.fromkeys(reading.value, reading.unrecorded) if isinstance(reading.value, dict) else reading.unrecorded


def _unknown(result: CaseResult, reading: Reading, lane: Lane, stored: CaseBaseline | None) -> Verdict:
    slugs = lane.elsewhere.get((result.case.suite, result.case.key), ())
    if stored is None and slugs and not lane.is_portable(reading):
        reason = f"known on {', '.join(slugs)}, not on {lane.hardware.slug}"
        return _unjudged(Word.OTHER_HARDWARE, reading, reason)
    target = reading.target or lane.hardware.target
    where = target if lane.is_portable(reading) else lane.hardware.slug
    return _unjudged(Word.NEW, reading, f"no baseline on {where}")


def _unjudged(word: Word, reading: Reading, reason: str, entry: Entry | None = None) -> Verdict:
    before = None if isinstance(entry, TimedEntry) else entry
    return Verdict(word, reading.metric, reason, before=before, after=reading.value, unit=reading.unit)


def _other_method(result: CaseResult, reading: Reading, stored: CaseBaseline, entry: Entry) -> str:
    if stored.inputs and stored.inputs != result.inputs:
        return f"other inputs: {stored.inputs} -> {result.inputs or 'unknown'}"
    before, now = _method(entry), _method(reading)
    return f"read otherwise: {before} -> {now}" if before != now else ""


def _method(read: Reading | Entry) -> str:
    if isinstance(read, Reading | TimedEntry) and read.timer is not None:
        return f"timer {read.timer}"
    value = read.value if isinstance(read, Reading) else read
    if isinstance(value, dict):
        return "parts"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "a number"


def _explained(verdicts: Sequence[Verdict], result: CaseResult, lane: Lane) -> list[Verdict]:
    """The verdicts with explanations: details of a changed count, and the machine's state if unchanged code ran
    slower."""
    if not any(verdict.word in (Word.SLOWER, Word.CHANGED, Word.UNCHANGED) for verdict in verdicts):
        return list(verdicts)
    before = stored_values(result, lane)
    machine = _machine(result, lane)
    explained = []
    for verdict in verdicts:
        reason = verdict.reason
        reading = result.reading(verdict.metric)
        if verdict.word is Word.CHANGED and reading is not None:
            more = (spelled_out(verdict.metric, result.readings, before), reading.note)
            reason = "\n".join(filter(None, (reason, *more)))
        elif verdict.word is Word.UNCHANGED and machine and (verdict.ratio or 1.0) > 1 + _WORTH_TELLING:
            reason += f", so the machine: {machine}"
        explained.append(msgspec.structs.replace(verdict, reason=reason))
    return explained


def stored_values(result: CaseResult, lane: Lane) -> dict[str, Value]:
    """The stored values of the exact metrics in `result`."""
    values: dict[str, Value] = {}
    for reading in result.readings:
        _, stored = _remembered(result, reading, lane)
        entry = _entry(reading, stored)
        if entry is not None and not reading.timed and not isinstance(entry, TimedEntry):
            values[reading.metric] = entry
    return values


def _machine(result: CaseResult, lane: Lane) -> str:
    baseline = lane.baselines.get(result.case.suite)
    if baseline is None or result.case.key not in baseline.cases:
        return ""
    return machine_change(baseline.provenance_of(result.case.key), result.conditions)


def _not_read(result: CaseResult, lane: Lane, same: Mapping[str, str]) -> list[Verdict]:
    read = {reading.metric for reading in result.readings}
    missing = {
        metric
        for stored in lane.stored_cases(result.case.suite, result.case.key)
        for metric in stored.entries
        if metric not in read
    }
    reason = "remembered, but not read this time"
    return [
        _unchanged(result, lane, metric, f"{same[metric]} is as recorded")
        if metric in same
        else Verdict(Word.UNRESOLVED, metric, reason)
        for metric in sorted(missing)
    ]
