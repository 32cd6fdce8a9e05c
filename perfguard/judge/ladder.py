"""From a case's readings and what is remembered of it to verdicts: the first rung that applies wins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from perfguard.judge.common import Common
from perfguard.judge.exact import judge_exact
from perfguard.judge.explaining import because, machine_change, spelled_out
from perfguard.judge.lane import Lane, differing_versions, other_board, other_power
from perfguard.judge.rival import judge_rival
from perfguard.judge.session import CommonMode
from perfguard.judge.timed import MOST_REJECTED, judge_timed
from perfguard.judge.unchanged import covering
from perfguard.records import Better, CaseBaseline, CaseResult, Entry, Reading, TimedEntry, Value, Verdict, Word
from perfguard.units import Unit

_Modes = Mapping[str, CommonMode]  # timer class -> how it moved in one session
_WORTH_TELLING = 0.01  # by which unchanged code ran slower before anybody asks for the machine


def judge_case(
    result: CaseResult,
    lane: Lane,
    fresh: Sequence[CaseResult] | None = None,
    fresh_problem: str = "",
    *,
    modes: _Modes | None = None,
    fresh_modes: Sequence[_Modes] = (),
) -> list[Verdict]:
    """One verdict for each reading of `result`, and one for each stored metric that was not read.

    Correctness is judged elsewhere: a case with an accuracy problem was not measured: nothing is missing.

    Args:
        fresh: results of fresh processes, None before they were run (suspicious times are then SUSPECT).
        fresh_problem: why there are none, or too few.
        modes: the common modes of the session that `result` comes from; None while they are not known.
        fresh_modes: those of the sessions that `fresh` come from, one for each; empty where they are not known.

    Raises:
        ValueError: `fresh_modes` are neither empty nor as many as `fresh`.
    """
    if fresh_modes and len(fresh_modes) != len(fresh or ()):
        raise ValueError(f"fresh_modes: {len(fresh_modes)} for {len(fresh or ())} fresh results; pass one for each")
    unknown: list[_Modes | None] = [None] * len(fresh or ())
    again = list(zip(fresh or (), fresh_modes or unknown, strict=True))
    if fresh is not None and not again and not fresh_problem:
        fresh_problem = "no fresh process read it"
    same = covering(result, lane)
    verdicts = []
    for reading in result.readings:
        if reading.metric in same and reading.timer == _stored_time(result, lane, reading.metric).timer:
            verdicts.append(_unchanged(result, lane, reading.metric, same[reading.metric]))
        else:
            verdicts.append(_judge_reading(result, reading, lane, again, fresh_problem, modes))
    verdicts = _explained(verdicts, result, lane)
    measured = result.word not in (Word.WRONG, Word.BROKEN, Word.UNSUPPORTED)
    if measured and not any(accuracy.problem for accuracy in result.accuracy):
        verdicts += _not_read(result, lane, same)
    return verdicts


def _stored_time(result: CaseResult, lane: Lane, metric: str) -> TimedEntry:
    return lane.timed[result.case.suite, result.case.key, metric].entry


def _unchanged(result: CaseResult, lane: Lane, metric: str, by: str) -> Verdict:
    """A time that cannot have moved; where it was read all the same, its value is shown."""
    centre = lane.timed[result.case.suite, result.case.key, metric].history.centre
    reading = result.reading(metric)
    value = reading.value if reading is not None else None
    ratio = None
    if reading is not None and isinstance(value, int | float) and 0 < value < math.inf:
        slowdown = math.log(value) - centre
        ratio = math.exp(-slowdown if reading.better is Better.HIGHER else slowdown)
    return Verdict(
        Word.UNCHANGED,
        metric,
        f"{by} is as recorded" + ("" if reading is not None else "; not timed"),
        before=math.exp(centre),
        after=value,
        unit=Unit.MICROSECONDS if reading is None else reading.unit,
        ratio=ratio,
    )


def _judge_reading(
    result: CaseResult,
    reading: Reading,
    lane: Lane,
    again: Sequence[tuple[CaseResult, _Modes | None]],
    fresh_problem: str,
    modes: _Modes | None,
) -> Verdict:
    read = _confirmations(result, reading, again)
    if again and not fresh_problem:
        fresh_problem = f"{len(read)} of {len(again)} fresh processes read it undisturbed"
    if reading.rival:
        return judge_rival(reading, lane.family(reading.timer or ""), [each for each, _ in read], fresh_problem)
    suite, key = result.case.suite, result.case.key
    baseline = lane.baseline_of(suite, reading)
    stored = baseline.cases.get(key) if baseline else None
    if baseline is None or stored is None or reading.metric not in stored.entries:
        return _unknown(result, reading, lane, stored)
    entry, provenance = stored.entries[reading.metric], baseline.provenance_of(key)
    changed = other_power(provenance, lane.hardware) if reading.timed else ""  # counts and bytes do not depend on it
    if changed:
        return _unjudged(Word.OTHER_HARDWARE, reading, changed, entry)
    changed = _other_method(result, reading, stored, entry)
    if changed:
        return _unjudged(Word.METHOD_CHANGED, reading, changed, entry)
    drift = differing_versions(provenance, lane.toolchain, portable=lane.is_portable(reading))
    if reading.target:  # what was compiled knows nothing of the torch that called it
        drift = [change for change in drift if change.startswith("triton ")]
    if not isinstance(entry, TimedEntry):
        return judge_exact(reading, entry, drift)
    return judge_timed(
        reading,
        entry,
        lane.family(entry.timer),
        [each.value for each, _ in read if isinstance(each.value, int | float)],
        drift=drift,
        fresh_problem=fresh_problem,
        elsewhere=other_board(provenance, result),
        common=_seen(result, reading.metric, lane, modes),
        fresh_common=[_seen(result, reading.metric, lane, others) for _, others in read],
    )


def _seen(result: CaseResult, metric: str, lane: Lane, modes: _Modes | None) -> Common | None:
    """The session as the reading is judged with it."""
    name = (result.case.suite, result.case.key, metric)
    known = lane.timed.get(name)
    mode = modes.get(known.timer_class) if modes and known is not None else None
    return None if mode is None or known is None else mode.seen_by(name, known.recording)


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


def _confirmations(
    result: CaseResult, reading: Reading, again: Sequence[tuple[CaseResult, _Modes | None]]
) -> list[tuple[Reading, _Modes | None]]:
    """What fresh processes read undisturbed of the same case, inputs, metric and timer, and their modes."""
    values = []
    for other, modes in again:
        same_case = (other.case.suite, other.case.key) == (result.case.suite, result.case.key)
        read = other.reading(reading.metric) if same_case and other.inputs == result.inputs else None
        if read is None or read.timer != reading.timer or read.rejected_blocks >= MOST_REJECTED:
            continue
        if isinstance(read.value, int | float) and read.value > 0:
            values.append((read, modes))
    return values


def _explained(verdicts: Sequence[Verdict], result: CaseResult, lane: Lane) -> list[Verdict]:
    """The verdicts with what moved beside them: why a time is slower, what came and went behind a changed count."""
    if not any(verdict.word in (Word.SLOWER, Word.CHANGED, Word.UNCHANGED) for verdict in verdicts):
        return list(verdicts)
    before = _stored_values(result, lane)
    machine = _machine(result, lane)
    explained = []
    for verdict in verdicts:
        reason = verdict.reason
        reading = result.reading(verdict.metric)
        if verdict.word is Word.SLOWER and verdict.storable:
            reason += f"; {because(verdict.metric, result.readings, before, machine)}"
        elif verdict.word is Word.CHANGED and reading is not None:
            more = (spelled_out(verdict.metric, result.readings, before), reading.note)
            reason = "\n".join(filter(None, (reason, *more)))
        elif verdict.word is Word.UNCHANGED and machine and (verdict.ratio or 1.0) > 1 + _WORTH_TELLING:
            reason += f", so the machine: {machine}"
        explained.append(msgspec.structs.replace(verdict, reason=reason))
    return explained


def _stored_values(result: CaseResult, lane: Lane) -> dict[str, Value]:
    """What is remembered of the exact metrics that were read."""
    values: dict[str, Value] = {}
    for reading in result.readings:
        baseline = lane.baseline_of(result.case.suite, reading)
        stored = baseline.cases.get(result.case.key) if baseline else None
        entry = stored.entries.get(reading.metric) if stored else None
        if entry is not None and not reading.timed and not isinstance(entry, TimedEntry):
            values[reading.metric] = entry
    return values


def _machine(result: CaseResult, lane: Lane) -> str:
    baseline = lane.baselines.get(result.case.suite)
    if baseline is None or result.case.key not in baseline.cases:
        return ""
    return machine_change(baseline.provenance_of(result.case.key), result.conditions, result.readings)


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
        _unchanged(result, lane, metric, same[metric]) if metric in same else Verdict(Word.UNRESOLVED, metric, reason)
        for metric in sorted(missing)
    ]
