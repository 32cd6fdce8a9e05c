"""One suite in many sessions: cases and readings common to all sessions, with equal inputs and timers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from perfguard.model.errors import UsageError
from perfguard.model.records import CaseResult, Hardware, Reading, Report, Toolchain

CaseId = tuple[str, str]  # suite, case key
Session = Mapping[CaseId, CaseResult]


@dataclass(frozen=True)
class Sample:
    """The results of N sessions of one suite.

    Attributes:
        sessions: for each session, case -> its result with the readings that all sessions share.
        left_out: cases and readings that not every session has, each with the reason.
    """

    hardware: Hardware
    toolchain: Toolchain
    sessions: tuple[Session, ...]
    left_out: tuple[str, ...] = ()

    @property
    def cases(self) -> list[CaseId]:
        """The cases that all sessions measured, sorted."""
        return sorted(self.sessions[0]) if self.sessions else []


def primary(result: CaseResult) -> Reading | None:
    """The first gated time of any name."""
    return next((reading for reading in result.readings if reading.timed and reading.gated), None)


def value_of(reading: Reading | None) -> float:
    """The value of a time that all sessions share, µs."""
    assert reading is not None
    assert isinstance(reading.value, int | float)
    return float(reading.value)


def gather(reports: Sequence[Report]) -> Sample:
    """Collect the sessions of `reports`.

    Raises:
        UsageError: the reports come from different hardware, power limits or toolchains.
    """
    first = reports[0]
    for number, report in enumerate(reports, 1):
        for name, now, before in (
            ("hardware", report.hardware.slug, first.hardware.slug),
            ("power limit", report.hardware.power_limit_watts, first.hardware.power_limit_watts),
            ("toolchain", report.toolchain, first.toolchain),
        ):
            if now != before:
                raise UsageError(
                    f"session {number}: another {name} than session 1 ({before} -> {now}); "
                    "keep one folder for each: perfguard selfcheck -o FOLDER"
                )
    found = [{(r.case.suite, r.case.key): r for r in report.results if r.readings} for report in reports]
    everywhere = set.intersection(*(set(session) for session in found)) if found else set()
    missing = Counter(case for session in found for case in session if case not in everywhere)
    left_out = [f"{suite} {key}: measured in {n} of {len(found)} sessions" for (suite, key), n in missing.items()]
    sessions: list[dict[CaseId, CaseResult]] = [{} for _ in found]
    for case in sorted(everywhere):
        results = [session[case] for session in found]
        if len({result.inputs for result in results}) > 1:
            left_out.append(f"{case[0]} {case[1]}: its inputs differ between sessions")
            continue
        shared, dropped = _shared([{reading.metric: reading for reading in r.readings} for r in results])
        left_out += [f"{case[0]} {case[1]} {metric}: {reason}" for metric, reason in dropped]
        for session, result in zip(sessions, results, strict=True):
            kept = [_uncovered(each) for each in result.readings if each.metric in shared and not each.rival]
            session[case] = msgspec.structs.replace(result, readings=kept, verdicts=[])
    return Sample(first.hardware, first.toolchain, tuple(sessions), tuple(left_out))


def _shared(sessions: Sequence[Mapping[str, Reading]]) -> tuple[set[str], list[tuple[str, str]]]:
    """The metrics that all sessions read with the same timer, and the others with reasons."""
    shared, dropped = set(), []
    for metric in sorted({metric for session in sessions for metric in session}):
        readings = [session[metric] for session in sessions if metric in session]
        timers = {reading.timer for reading in readings}
        if len(readings) < len(sessions):
            dropped.append((metric, f"read in {len(readings)} of {len(sessions)} sessions"))
        elif len(timers) > 1:
            dropped.append((metric, f"read by several timers: {', '.join(sorted(map(str, timers)))}"))
        elif readings[0].timed and not all(_is_time(reading) for reading in readings):
            dropped.append((metric, "no time in some session"))
        else:
            shared.add(metric)
    return shared, dropped


def _is_time(reading: Reading) -> bool:
    return isinstance(reading.value, int | float) and 0 < reading.value < math.inf


def _uncovered(reading: Reading) -> Reading:
    """The reading without `covers`: sessions of one commit run the same code, so no time would be judged."""
    return msgspec.structs.replace(reading, covers=[]) if reading.covers else reading
