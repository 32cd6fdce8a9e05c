"""One hardware's side of the judgement: who it is, what is remembered of it, and how noisy that is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from perfguard.judge.statistics import UNLEARNT, History, Prior, fit_prior, remember
from perfguard.records import (
    NO_BASE,
    Baseline,
    BaseTree,
    CaseBaseline,
    CaseResult,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
)

ReadingId = tuple[str, str, str]  # suite, case key, metric


@dataclass(frozen=True)
class Lane:
    """One hardware's side of the judgement: who it is, what is remembered of it, what its times are compared with.

    Attributes:
        baselines: suite -> what was read on this hardware.
        portable: suite -> what holds on every machine of `hardware.target`.
        targets: architecture -> suite -> what kernels compiled for it are, whatever machine compiled them.
        elsewhere: (suite, case key) -> slugs of other hardware that remember the case.
        base: the commit that times are compared with.
    """

    hardware: Hardware
    toolchain: Toolchain
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    portable: Mapping[str, Baseline] = field(default_factory=dict)
    elsewhere: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    targets: Mapping[str, Mapping[str, Baseline]] = field(default_factory=dict)
    base: BaseTree = NO_BASE

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
    def timed(self) -> Mapping[ReadingId, TimedEntry]:
        """Every time that is remembered on this hardware."""
        return {
            (suite, key, metric): entry
            for suite, baseline in self.baselines.items()
            for key, case in baseline.cases.items()
            for metric, entry in case.entries.items()
            if isinstance(entry, TimedEntry)
        }

    @cached_property
    def _priors(self) -> Mapping[str, Prior]:
        histories: dict[str, list[History]] = defaultdict(list)
        for entry in self.timed.values():
            histories[timer_class(entry.timer)].append(remember(entry.sessions))
        return {name: fit_prior(found) for name, found in histories.items()}

    def prior(self, name: str) -> Prior:
        """What the noise between the stored sessions of a timer class is like."""
        return self._priors.get(name, UNLEARNT)

    def provenance(self, suite: str, key: str) -> Provenance:
        """Where the times of a case that is remembered on this hardware come from."""
        return self.baselines[suite].provenance_of(key)

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


def same_board(stored: Provenance, result: CaseResult) -> bool:
    """Whether the very device that recorded the case is known to have timed it now."""
    now = result.conditions.board if result.conditions is not None else None
    return now is not None and stored.board == now


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
