"""Stored readings of cases, with the hardware and versions that they were read under."""

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
    architecture: str  # sm_90, gfx942, x86_64 …
    target: str | None = None  # folder of machine-independent metrics, "cpu" on a CPU
    memory_bytes: int | None = None
    cache_bytes: int | None = None  # last-level cache: what a cold reading must evict
    units: int | None = None  # multiprocessors, compute units, cores in use
    partition: str | None = None
    power_limit_watts: float | None = None
    index: int = 0
    warnings: list[str] = []  # unreadable properties, with the next step


class Toolchain(Struct, frozen=True, omit_defaults=True):
    """Versions that a time depends on. Another toolchain than the baseline's means DRIFT."""

    torch: str | None = None
    triton: str | None = None
    driver: str | None = None
    toolkit: str | None = None  # CUDA, ROCm or oneAPI
    python: str | None = None


class Provenance(Toolchain, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The origin of stored readings: one recording."""

    power_limit_watts: float | None = None
    clock_mhz: int | None = None  # under load
    board: str | None = None  # if a single board measured it
    commit: str | None = None  # with `+` if the code had uncommitted changes
    recorded: str | None = None  # ISO date
    reason: str = ""  # of a person, for what got worse


#: Stored sessions (K) of one time: below the first a record screens nothing, and the latest of the second are kept.
MIN_SESSIONS, MOST_SESSIONS = 3, 8

#: The folder of what holds on every CPU.
EVERY_CPU = "cpu"


class TimedEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Session values of a timed metric, µs, oldest first, and the timer they were read with.

    `anchor`, µs: the level at the first recording, or at the last one that was accepted with a reason or was a real
    improvement. None if it is the level of `sessions`.
    """

    sessions: Annotated[list[Positive], Meta(min_length=1, max_length=MOST_SESSIONS)]
    timer: str
    anchor: Positive | None = None


Entry = TimedEntry | int | float | str | list[str] | Parts


class CaseBaseline(Struct, frozen=True):
    """The stored readings of one case: metric -> entry. `recording` names the one that they come from."""

    entries: dict[str, Entry]
    inputs: str = ""
    recording: str = ""


class Baseline(Struct, frozen=True):
    """One file: the cases of one suite on one hardware, or on every CPU."""

    hardware: str
    suite: str
    recordings: dict[str, Provenance] = {}
    cases: dict[str, CaseBaseline] = {}

    def provenance_of(self, key: str) -> Provenance:
        """The recording of the case; an empty one if nothing is known of it."""
        return self.recordings.get(self.cases[key].recording, Provenance())

    def with_recording(self, provenance: Provenance) -> tuple[Baseline, str]:
        """The file with this recording, and its name: the commit, or the date, numbered if that is another's already.
        Clocks differ a little between any two runs, so they make no other recording."""
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
        """The file without the recordings that no case names."""
        named = {case.recording for case in self.cases.values()}
        return replace(self, recordings={name: each for name, each in self.recordings.items() if name in named})


def entries_of(baselines: Mapping[str, Baseline], suite: str, key: str) -> Mapping[str, Entry]:
    """What is stored of a case in the baselines of its suites; nothing of one without a record."""
    baseline = baselines.get(suite)
    return baseline.cases[key].entries if baseline is not None and key in baseline.cases else {}


#: What is stored of an observed test's reading that differed between processes: it is no fact, and is never gated.
UNSTABLE = "unstable"


def as_stored(entry: Entry) -> Entry:
    """An entry as stored in a file: whole numbers exactly, times and other numbers with four significant digits, and an
    anchor only if it differs from the level of the sessions."""
    if isinstance(entry, TimedEntry):
        sessions = [significant(value) for value in entry.sessions]
        anchor = None if entry.anchor is None else significant(entry.anchor)
        is_level = anchor is None or not sessions or anchor == significant(median(sessions))
        return TimedEntry(sessions=sessions, timer=entry.timer, anchor=None if is_level else anchor)
    if isinstance(entry, dict):
        return {name: rounded(part) if isinstance(part, float) else part for name, part in entry.items()}
    return rounded(entry) if isinstance(entry, float) else entry
