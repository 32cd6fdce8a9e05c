"""Stored readings of cases, with the hardware and versions under which they were read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from statistics import median
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from perfguard.model.records.case import Parts, Positive
from perfguard.model.units import rounded, significant


class Hardware(Struct, frozen=True, omit_defaults=True):
    """One kind of device. Two devices with one slug are interchangeable for baselines."""

    slug: str
    vendor: str
    name: str
    architecture: str  # For example sm_90, gfx942, x86_64.
    target: str | None = None  # The folder of machine-independent metrics, "cpu" on a CPU.
    memory_bytes: int | None = None
    cache_bytes: int | None = None  # The size of the last-level cache, which cold readings evict.
    units: int | None = None  # The number of multiprocessors, compute units or cores in use.
    partition: str | None = None
    power_limit_watts: float | None = None
    index: int = 0
    warnings: list[str] = []  # Unreadable properties, with the next step.


class Toolchain(Struct, frozen=True, omit_defaults=True):
    """Versions on which times depend. A toolchain other than the baseline's means DRIFT."""

    torch: str | None = None
    triton: str | None = None
    driver: str | None = None
    toolkit: str | None = None  # CUDA, ROCm or oneAPI
    python: str | None = None


class Provenance(Toolchain, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The origin of stored readings: one recording."""

    power_limit_watts: float | None = None
    clock_mhz: int | None = None  # The clock under load.
    board: str | None = None  # None if several boards measured it.
    commit: str | None = None  # It ends with `+` if the code had uncommitted changes.
    recorded: str | None = None  # ISO date
    reason: str = ""  # A user's reason for readings that got worse.


#: Stored sessions (K) of one time: records with fewer than the first screen nothing; more than the second are dropped.
MIN_SESSIONS, MOST_SESSIONS = 3, 8

#: The folder of entries that hold on every CPU.
EVERY_CPU = "cpu"


class TimedEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The session values of a timed metric, µs, oldest first, and the timer that read them.

    `anchor`, µs, is the level at the first recording, or at the last one that was accepted with a reason or was a real
    improvement. It is None if it is the level of `sessions`.
    """

    sessions: Annotated[list[Positive], Meta(min_length=1, max_length=MOST_SESSIONS)]
    timer: str
    anchor: Positive | None = None


Entry = TimedEntry | int | float | str | list[str] | Parts


class CaseBaseline(Struct, frozen=True):
    """The stored readings of one case: metric -> entry. `recording` names their recording."""

    entries: dict[str, Entry]
    inputs: str = ""
    recording: str = ""


class Recorded(Struct, frozen=True):
    """The record of a case with its provenance, since names of recordings differ between commits."""

    entries: dict[str, Entry]
    inputs: str
    provenance: Provenance


class Baseline(Struct, frozen=True):
    """One file: the cases of one suite on one hardware, or on every CPU."""

    hardware: str
    suite: str
    recordings: dict[str, Provenance] = {}
    cases: dict[str, CaseBaseline] = {}

    def provenance_of(self, key: str) -> Provenance:
        """The recording of the case; an empty one if it is unknown."""
        return self.recordings.get(self.cases[key].recording, Provenance())

    def recorded(self, key: str) -> Recorded:
        """The record of the case."""
        return Recorded(self.cases[key].entries, self.cases[key].inputs, self.provenance_of(key))

    def with_recording(self, provenance: Provenance) -> tuple[Baseline, str]:
        """The file with this recording, and its name: the commit or the date, with a number if another recording has
        that name. Recordings that differ only in the clock count as equal, since it varies between runs."""
        stem = provenance.commit or provenance.recorded or "unknown"
        for number in itertools.count(1):
            name = stem if number == 1 else f"{stem}-{number}"
            known = self.recordings.get(name)
            if known is None:
                return replace(self, recordings={**self.recordings, name: provenance}), name
            if replace(known, clock_mhz=None) == replace(provenance, clock_mhz=None):
                return self, name
        raise AssertionError

    def pruned(self) -> Baseline:
        """The file without recordings that no case names."""
        named = {case.recording for case in self.cases.values()}
        return replace(self, recordings={name: each for name, each in self.recordings.items() if name in named})


def entries_of(baselines: Mapping[str, Baseline], suite: str, key: str) -> Mapping[str, Entry]:
    """The entries of a case in the baselines of all suites; empty for a case without a record."""
    baseline = baselines.get(suite)
    return baseline.cases[key].entries if baseline is not None and key in baseline.cases else {}


#: The entry for an observed test's reading that differed between processes, which is never gated.
UNSTABLE = "unstable"


def as_stored(entry: Entry) -> Entry:
    """An entry as files store it: whole numbers exactly, times and other numbers with four significant digits, and an
    anchor only if it differs from the level of the sessions."""
    if isinstance(entry, TimedEntry):
        sessions = [significant(value) for value in entry.sessions]
        anchor = None if entry.anchor is None else significant(entry.anchor)
        is_level = anchor is None or not sessions or anchor == significant(median(sessions))
        return TimedEntry(sessions=sessions, timer=entry.timer, anchor=None if is_level else anchor)
    if isinstance(entry, dict):
        return {name: rounded(part) if isinstance(part, float) else part for name, part in entry.items()}
    return rounded(entry) if isinstance(entry, float) else entry
