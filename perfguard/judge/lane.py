"""One hardware's side of the judgement: who it is, what is remembered of it, and how noisy that is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from perfguard.judge.common import Recording, learn_recording
from perfguard.judge.statistics import UNLEARNT, History, Prior, fit_prior, remember
from perfguard.judge.timed import Family
from perfguard.records import (
    Baseline,
    CaseBaseline,
    CaseResult,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
)

ReadingId = tuple[str, str, str]  # suite, case key, metric
RecordingId = tuple[str, str | None, str | None, int]  # timer class, date, commit, number of sessions


@dataclass(frozen=True)
class Remembered:
    """A stored time, and which cases it was recorded with.

    Same day, commit and number of sessions count as side by side: where that is wrong, the sessions do not move
    together, and no common shift is removed.
    """

    entry: TimedEntry
    recording: RecordingId

    @property
    def timer_class(self) -> str:
        return self.recording[0]

    @cached_property
    def history(self) -> History:
        """Centre and variance with all that moved the machine."""
        return remember(self.entry.sessions)


def _recorded_with(provenance: Provenance, entry: TimedEntry) -> RecordingId:
    return timer_class(entry.timer), provenance.recorded, provenance.commit, len(entry.sessions)


@dataclass(frozen=True)
class Lane:
    """One hardware's side of the judgement: who it is, and what is remembered of it.

    Attributes:
        baselines: suite -> what was read on this hardware.
        portable: suite -> what holds on every machine of `hardware.target`.
        targets: architecture -> suite -> what kernels compiled for it are, whatever machine compiled them.
        elsewhere: (suite, case key) -> slugs of other hardware that remember the case.
        timed_now: timed readings of this run, where they are known to be more than those stored.
        confirmations: fresh processes that must agree before a time is SLOWER or FASTER.
    """

    hardware: Hardware
    toolchain: Toolchain
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    portable: Mapping[str, Baseline] = field(default_factory=dict)
    elsewhere: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    targets: Mapping[str, Mapping[str, Baseline]] = field(default_factory=dict)
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
        return max(len(self.timed), self.timed_now, 1)

    @cached_property
    def timed(self) -> Mapping[ReadingId, Remembered]:
        """Every time that is remembered on this hardware."""
        return {
            (suite, key, metric): Remembered(entry, _recorded_with(baseline.provenance_of(key), entry))
            for suite, baseline in self.baselines.items()
            for key, case in baseline.cases.items()
            for metric, entry in case.entries.items()
            if isinstance(entry, TimedEntry)
        }

    @cached_property
    def priors(self) -> Mapping[str, Prior]:
        """Timer class -> what the noise of its cases is like, common shifts included."""
        histories: dict[str, list[History]] = defaultdict(list)
        for known in self.timed.values():
            histories[known.timer_class].append(known.history)
        return {name: fit_prior(found) for name, found in histories.items()}

    @cached_property
    def recordings(self) -> Mapping[RecordingId, Recording]:
        """What the cases that were recorded side by side have in common."""
        cases: dict[RecordingId, list[list[float]]] = defaultdict(list)
        for known in self.timed.values():
            cases[known.recording].append(known.entry.sessions)
        return {name: learn_recording(sessions) for name, sessions in cases.items()}

    @cached_property
    def steady(self) -> Mapping[ReadingId, History]:
        """The memory of every time, without the common shifts of its recording where they are removed."""
        return {
            name: self.recordings[known.recording].history(known.entry.sessions) for name, known in self.timed.items()
        }

    def comparable(self, result: CaseResult) -> bool:
        """Whether the times of `result` were read as the stored ones: inputs, power limit and toolchain."""
        baseline = self.baselines.get(result.case.suite)
        stored = baseline.cases.get(result.case.key) if baseline else None
        if baseline is None or stored is None:
            return False
        provenance = baseline.provenance_of(result.case.key)
        return (
            stored.inputs in ("", result.inputs)
            and not other_power(provenance, self.hardware)
            and not differing_versions(provenance, self.toolchain)
        )

    def family(self, timer: str) -> Family:
        """What a reading of `timer` shares with the lane's others."""
        return Family(self.family_size, self.priors.get(timer_class(timer), UNLEARNT), self.confirmations)

    def is_portable(self, reading: Reading) -> bool:
        """Whether `reading` is remembered for a target, not for this hardware."""
        return bool(reading.target) or (reading.portable and self.hardware.target is not None)

    def baseline_of(self, suite: str, reading: Reading) -> Baseline | None:
        """The file that remembers `reading`."""
        if reading.target:
            return self.targets.get(reading.target, {}).get(suite)
        return (self.portable if self.is_portable(reading) else self.baselines).get(suite)

    def stored_cases(self, suite: str, key: str) -> list[CaseBaseline]:
        """What is remembered of a case, on this hardware and for targets."""
        files = (self.baselines, self.portable, *self.targets.values())
        return [file[suite].cases[key] for file in files if suite in file and key in file[suite].cases]


def timer_class(timer: str) -> str:
    """Timers whose noise is alike: an id without its counts, `graph-cold-u64-r12` -> `graph-cold`."""
    return re.sub(r"-[a-z]+\d+", "", timer)


def other_power(stored: Provenance, now: Hardware) -> str:
    """How the power limit differs from the one that times were recorded under; the partition is part of the slug."""
    before, after = stored.power_limit_watts, now.power_limit_watts
    if before is None or after is None or abs(after - before) < 1:
        return ""
    return f"recorded under a power limit of {before:g} W, now {after:g} W"


def other_board(stored: Provenance, result: CaseResult) -> bool:
    """Whether another device of the same kind is known to have recorded the case."""
    now = result.conditions.board if result.conditions is not None else None
    return None not in (stored.board, now) and stored.board != now


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
