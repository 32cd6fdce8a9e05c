"""Stored readings of cases, with the hardware and versions that they were read under."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Annotated

from msgspec import Meta, Struct

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


class Provenance(Toolchain, frozen=True, omit_defaults=True):
    """The origin of a stored reading."""

    power_limit_watts: float | None = None
    clock_mhz: int | None = None  # under load
    board: str | None = None  # if a single board measured it
    commit: str | None = None
    recorded: str | None = None  # ISO date


class TimedEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Session values of a timed metric, µs, oldest first, and the timer they were read with.

    `anchor`, µs: the level at the first recording, or at the last one that was accepted with a reason or was a real
    improvement. None if it is the level of `sessions`.
    """

    sessions: Annotated[list[Positive], Meta(min_length=1, max_length=20)]
    timer: str
    anchor: Positive | None = None


Entry = TimedEntry | int | float | str | list[str] | Parts


class CaseBaseline(Struct, frozen=True):
    """The stored readings of one case: metric -> entry. `reasons` holds the reasons for worse values."""

    entries: dict[str, Entry]
    inputs: str = ""
    reasons: dict[str, str] = {}
    provenance: Provenance | None = None  # only where it differs from the file's


class Baseline(Struct, frozen=True):
    """One file: the cases of one suite on one hardware (or target)."""

    hardware: str
    suite: str
    provenance: Provenance = Provenance()
    cases: dict[str, CaseBaseline] = {}

    def provenance_of(self, key: str) -> Provenance:
        """The case's own provenance, otherwise the file's."""
        own = self.cases[key].provenance
        return self.provenance if own is None else own


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
