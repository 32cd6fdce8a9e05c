"""From a case's readings and what is remembered of it to verdicts: the first rung that applies wins."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from perfguard.judge.exact import describe_difference, judge_exact
from perfguard.judge.statistics import UNLEARNT, History, Prior, fit_prior, remember
from perfguard.judge.timed import Family, judge_timed
from perfguard.records import (
    Baseline,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Verdict,
    Word,
)


@dataclass(frozen=True)
class Lane:
    """One hardware's side of the judgement: who it is, and what is remembered of it.

    Attributes:
        baselines: suite -> what was read on this hardware.
        portable: suite -> what holds on every machine of `hardware.target`.
        elsewhere: (suite, case key) -> slugs of other hardware that remember the case.
        timed_now: timed readings of this run, where they are known to be more than those stored.
        confirmations: fresh processes that must agree before a time is SLOWER or FASTER.
    """

    hardware: Hardware
    toolchain: Toolchain
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    portable: Mapping[str, Baseline] = field(default_factory=dict)
    elsewhere: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    timed_now: int = 0
    confirmations: int = 3

    @cached_property
    def remembered(self) -> frozenset[tuple[str, str]]:
        """(suite, case key) of every case that either kind of baseline holds."""
        return frozenset(
            (suite, key)
            for files in (self.baselines, self.portable)
            for suite, baseline in files.items()
            for key in baseline.cases
        )

    @cached_property
    def family_size(self) -> int:
        """Timed readings over which the lane's false alarms are counted."""
        return max(len(self._timed_entries), self.timed_now, 1)

    @cached_property
    def priors(self) -> Mapping[str, Prior]:
        """Timer class -> what the noise of its cases is like."""
        classes = {timer_class(entry.timer) for entry in self._timed_entries}
        return {name: fit_prior(self._histories(name)) for name in classes}

    def _histories(self, name: str) -> list[History]:
        return [remember(entry.sessions) for entry in self._timed_entries if timer_class(entry.timer) == name]

    @cached_property
    def _timed_entries(self) -> list[TimedEntry]:
        return [
            entry
            for baseline in self.baselines.values()
            for case in baseline.cases.values()
            for entry in case.entries.values()
            if isinstance(entry, TimedEntry)
        ]

    def family(self, timer: str) -> Family:
        """What a reading of `timer` shares with the lane's others."""
        return Family(self.family_size, self.priors.get(timer_class(timer), UNLEARNT), self.confirmations)

    def is_portable(self, reading: Reading) -> bool:
        """Whether `reading` is remembered for the target, not for this hardware."""
        return reading.portable and self.hardware.target is not None

    def baseline_of(self, suite: str, reading: Reading) -> Baseline | None:
        """The file that remembers `reading`."""
        return (self.portable if self.is_portable(reading) else self.baselines).get(suite)

    def stored_cases(self, suite: str, key: str) -> list[CaseBaseline]:
        """What is remembered of a case, on this hardware and for its target."""
        files = (self.baselines.get(suite), self.portable.get(suite))
        return [file.cases[key] for file in files if file is not None and key in file.cases]


def timer_class(timer: str) -> str:
    """Timers whose noise is alike: an id without its count of calls, `wall-u16` -> `wall`."""
    return re.sub(r"-u\d+", "", timer)


def judge_case(
    result: CaseResult, lane: Lane, fresh: Sequence[CaseResult] | None = None, fresh_problem: str = ""
) -> list[Verdict]:
    """One verdict for each reading of `result`, and one for each stored metric that was not read.

    Correctness is judged elsewhere: a case with an accuracy problem was not measured: nothing is missing.

    Args:
        fresh: results of fresh processes, None before they were run (suspicious times are then SUSPECT).
        fresh_problem: why there are none, or too few.
    """
    verdicts = [_judge_reading(result, reading, lane, fresh, fresh_problem) for reading in result.readings]
    if any(verdict.word is Word.SLOWER for verdict in verdicts):
        cause = _cause(result, lane)
        verdicts = [
            msgspec.structs.replace(verdict, reason=f"{verdict.reason}; {cause}")
            if verdict.word is Word.SLOWER
            else verdict
            for verdict in verdicts
        ]
    measured = result.word not in (Word.WRONG, Word.BROKEN, Word.UNSUPPORTED)
    if measured and not any(accuracy.problem for accuracy in result.accuracy):
        verdicts += _not_read(result, lane)
    return verdicts


def _judge_reading(
    result: CaseResult, reading: Reading, lane: Lane, fresh: Sequence[CaseResult] | None, fresh_problem: str
) -> Verdict:
    suite, key = result.case.suite, result.case.key
    baseline = lane.baseline_of(suite, reading)
    stored = baseline.cases.get(key) if baseline else None
    if baseline is None or stored is None or reading.metric not in stored.entries:
        return _unknown(result, reading, lane, stored)
    entry, provenance = stored.entries[reading.metric], baseline.provenance_of(key)
    changed = _other_power(reading, provenance, lane.hardware)
    if changed:
        return _unjudged(Word.OTHER_HARDWARE, reading, changed, entry)
    changed = _other_method(result, reading, stored, entry)
    if changed:
        return _unjudged(Word.METHOD_CHANGED, reading, changed, entry)
    drift = differing_versions(provenance, lane.toolchain, portable=lane.is_portable(reading))
    if not isinstance(entry, TimedEntry):
        return judge_exact(reading, entry, drift)
    values = _confirmations(result, reading, fresh or ())
    if fresh is not None and not fresh_problem:
        fresh_problem = f"{len(values)} of {len(fresh)} fresh processes read it"
    return judge_timed(reading, entry, lane.family(entry.timer), values, drift=drift, fresh_problem=fresh_problem)


def _unknown(result: CaseResult, reading: Reading, lane: Lane, stored: CaseBaseline | None) -> Verdict:
    slugs = lane.elsewhere.get((result.case.suite, result.case.key), ())
    if stored is None and slugs and not lane.is_portable(reading):
        reason = f"known on {', '.join(slugs)}, not on {lane.hardware.slug}"
        return _unjudged(Word.OTHER_HARDWARE, reading, reason)
    where = lane.hardware.target if lane.is_portable(reading) else lane.hardware.slug
    return _unjudged(Word.NEW, reading, f"no baseline on {where}")


def _unjudged(word: Word, reading: Reading, reason: str, entry: Entry | None = None) -> Verdict:
    before = None if isinstance(entry, TimedEntry) else entry
    return Verdict(word, reading.metric, reason, before=before, after=reading.value, unit=reading.unit)


def _other_power(reading: Reading, provenance: Provenance, hardware: Hardware) -> str:
    """Counts and bytes do not depend on the power limit; the partition is part of the slug."""
    before, now = provenance.power_limit_watts, hardware.power_limit_watts
    if not reading.timed or before is None or now is None or abs(now - before) < 1:
        return ""
    return f"recorded under a power limit of {before:g} W, now {now:g} W"


def _other_method(result: CaseResult, reading: Reading, stored: CaseBaseline, entry: Entry) -> str:
    if stored.inputs and stored.inputs != result.inputs:
        return f"other inputs: {stored.inputs} -> {result.inputs or 'unknown'}"
    before, now = _method(entry), _method(reading)
    return f"read otherwise: {before} -> {now}" if before != now else ""


def _method(read: Reading | Entry) -> str:
    if isinstance(read, Reading | TimedEntry) and read.timer is not None:
        return f"timer {read.timer}"
    value = read.value if isinstance(read, Reading) else read
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "a number"


def differing_versions(stored: Provenance, now: Toolchain, *, portable: bool = False) -> list[str]:
    """`triton 3.6.0 -> 3.7.0` for every version that was recorded and is another one now.

    Python counts by its minor version. What is portable holds whatever the driver and toolkit of the machine.
    """
    changes = []
    for name in ("torch", "triton", "python") if portable else Toolchain.__struct_fields__:
        before, after = getattr(stored, name), getattr(now, name)
        if name == "python":
            before, after = _minor(before), _minor(after)
        if before is not None and before != after:
            changes.append(f"{name} {before} -> {after or 'unknown'}")
    return changes


def _minor(version: str | None) -> str | None:
    return None if version is None else ".".join(version.split(".")[:2])


def _confirmations(result: CaseResult, reading: Reading, fresh: Sequence[CaseResult]) -> list[float]:
    """What fresh processes read of the same case, inputs, metric and timer, µs."""
    values = []
    for other in fresh:
        same_case = (other.case.suite, other.case.key) == (result.case.suite, result.case.key)
        read = other.reading(reading.metric) if same_case and other.inputs == result.inputs else None
        if read is not None and read.timer == reading.timer and isinstance(read.value, int | float):
            values.append(float(read.value))
    return [value for value in values if value > 0]


def _cause(result: CaseResult, lane: Lane) -> str:
    """Exact readings that differ from the stored ones, gated or not: why a time may have moved."""
    differences = []
    for reading in result.readings:
        baseline = lane.baseline_of(result.case.suite, reading)
        stored = baseline.cases.get(result.case.key) if baseline else None
        entry = stored.entries.get(reading.metric) if stored else None
        if entry is not None and not reading.timed and not isinstance(entry, TimedEntry):
            differences.append(describe_difference(reading, entry))
    found = ", ".join(filter(None, differences))
    return f"because: {found}" if found else "no exact metric moved"


def _not_read(result: CaseResult, lane: Lane) -> list[Verdict]:
    read = {reading.metric for reading in result.readings}
    remembered: dict[str, Entry] = {}
    for stored in lane.stored_cases(result.case.suite, result.case.key):
        remembered |= {metric: entry for metric, entry in stored.entries.items() if metric not in read}
    reason = "remembered, but not read this time"
    return [Verdict(Word.UNRESOLVED, metric, reason) for metric in sorted(remembered)]
