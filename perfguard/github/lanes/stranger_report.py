"""Parses a lane's bytes into a report with only valid values; invalid cases are refused one by one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from perfguard.github.lanes.archive import unpack
from perfguard.github.lanes.bounds import MOST_CHARACTERS, check_paired, check_result
from perfguard.github.lanes.strict_json import check_json
from perfguard.model.errors import LaneError
from perfguard.model.lane_summary import Refused
from perfguard.model.records import (
    SCHEMA,
    BaseTree,
    CaseResult,
    Conditions,
    Hardware,
    PairedCase,
    Pairing,
    Report,
    Session,
    Toolchain,
)

MOST_CASES = 5_000
MOST_SESSIONS = 100  # fresh processes, of all devices together
_FOLDER = re.compile(r"\w[\w.+-]{0,99}", re.ASCII)  # slug and target become parts of paths
_LEAST_SHA = 7  # shortest abbreviation of a commit
_MOST_DEVICES = 1024
_TEXT = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
_COMMIT = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}([0-9a-f]{24})?)?\Z")]  # "": there is none
_DEVICE = Annotated[int, Meta(ge=0, lt=_MOST_DEVICES)]


class Received(Struct, frozen=True):
    """A lane's report without the unreadable cases, which `refused` lists. `warnings` are no reason to refuse it."""

    report: Report
    refused: list[Refused] = []
    warnings: list[str] = []


class _Schema(Struct, frozen=True):
    schema: Any = None


class _Session(Struct, frozen=True, forbid_unknown_fields=True):
    results: Annotated[list[msgspec.Raw], Meta(max_length=MOST_CASES)]
    device: _DEVICE = 0


class _Base(Struct, frozen=True, forbid_unknown_fields=True):
    commit: Annotated[_COMMIT, Meta(min_length=1)] | None = None
    equal: bool = False
    problem: _TEXT = ""


class _Pairing(Struct, frozen=True, forbid_unknown_fields=True):
    base: _COMMIT
    cases: Annotated[list[msgspec.Raw], Meta(max_length=MOST_CASES)] = []
    pairs: Annotated[int, Meta(ge=0, le=10_000)] = 0
    problem: _TEXT = ""
    device: _DEVICE = 0


class _Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    """A report whose cases are not parsed yet. Verdicts on the run as a whole are never read."""

    schema: int
    hardware: Hardware
    toolchain: Toolchain
    started: Annotated[str, Meta(max_length=40)]
    commit: Annotated[str, Meta(max_length=80)] | None = None
    perfguard: Annotated[str, Meta(max_length=80)] = ""
    results: Annotated[list[msgspec.Raw], Meta(max_length=MOST_CASES)] = []
    fresh: Annotated[list[_Session], Meta(max_length=MOST_SESSIONS)] = []
    fresh_problem: _TEXT = ""
    base: _Base | None = None
    pairings: Annotated[list[_Pairing], Meta(max_length=_MOST_DEVICES)] = []
    stale: msgspec.Raw = msgspec.Raw()
    copy_bytes_per_second: Annotated[float, Meta(gt=0, lt=1e21)] | None = None
    conditions: Annotated[list[Conditions], Meta(max_length=1024)] = []
    complete: bool = False
    exact_only: bool = False
    guarded: msgspec.Raw = msgspec.Raw()
    remembered: msgspec.Raw = msgspec.Raw()


class _Named(Struct, frozen=True):
    """The part of an invalid case that names it."""

    case: dict[str, Any]


class _NamedPaired(Struct, frozen=True):
    """The part of an invalid paired case that names it."""

    key: str


def receive(lane: str, archive: bytes, head: str) -> Received:
    """The report that `lane` uploaded for commit `head`.

    A lane is named after its hardware's slug, or after its target if any machine of the target will do (`cpu`). Metrics
    of one machine are not judged on a target's lane. The name decides this, not the report: without times, a slug's
    lane has not measured all of its record.

    Raises:
        LaneError: the archive or the whole report is refused, with the reason.
    """
    packed = unpack(archive)
    received = read_report_of_stranger(packed.data)
    hardware = received.report.hardware
    if packed.slug != hardware.slug:
        raise LaneError(f"report-{packed.slug}.json holds a report of {hardware.slug[:200]!r}")
    if lane not in (hardware.slug, hardware.target):
        raise LaneError(f"the artifact of {lane} holds a report of {hardware.slug[:200]!r}")
    commit, dirty = (received.report.commit or "").removesuffix("+"), (received.report.commit or "").endswith("+")
    if len(commit) < _LEAST_SHA or not head.startswith(commit):
        raise LaneError(f"measured {commit[:60]!r}, not {head[:12]!r}; run the lane on the pull request's head commit")
    warnings = [f"{lane}: tracked files of the checkout were changed before it was measured"] if dirty else []
    report = msgspec.structs.replace(received.report, exact_only=lane != hardware.slug)
    return msgspec.structs.replace(received, report=report, warnings=warnings)


def read_report_of_stranger(data: bytes) -> Received:
    """A report from untrusted JSON. An impossible value costs only its own case.

    Raises:
        LaneError: no JSON, another schema, or an envelope that cannot be read.
    """
    check_json(data)
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
        if schema != SCHEMA or isinstance(schema, bool):
            raise LaneError(
                f"report schema {str(schema)[:40]}, this perfguard reads {SCHEMA}; use one version for both"
            )
        envelope = msgspec.json.decode(data, type=_Envelope)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise LaneError(f"no perfguard report ({str(error)[:300]})") from error
    _check_texts(envelope)
    for folder in (envelope.hardware.slug, envelope.hardware.target):
        if folder is not None and not _FOLDER.fullmatch(folder):
            raise LaneError(f"no perfguard report ({folder[:100]!r} names no folder of baselines)")
    results, refused = _results(envelope.results)
    pairings, unpaired = _pairings(envelope)
    report = Report(
        schema=SCHEMA,
        hardware=envelope.hardware,
        toolchain=envelope.toolchain,
        started=envelope.started,
        commit=envelope.commit,
        perfguard=envelope.perfguard,
        results=results,
        # Unreadable results of fresh processes are dropped: they confirm nothing.
        fresh=[Session(_results(session.results)[0], session.device) for session in envelope.fresh],
        fresh_problem=envelope.fresh_problem,
        base=None if envelope.base is None else msgspec.convert(envelope.base, BaseTree, from_attributes=True),
        pairings=pairings,
        copy_bytes_per_second=envelope.copy_bytes_per_second,
        conditions=envelope.conditions,
        complete=envelope.complete,
        exact_only=envelope.exact_only,
    )
    return Received(report, [*refused, *unpaired])


def _check_texts(envelope: _Envelope) -> None:
    """Check texts of hardware, toolchain and conditions, which are shown as well, by the limits of the cases."""
    shown = msgspec.to_builtins([envelope.hardware, envelope.toolchain, envelope.conditions])
    left = [shown]
    while left:
        value = left.pop()
        if isinstance(value, str) and len(value) > MOST_CHARACTERS:
            raise LaneError(f"no perfguard report (a text of {len(value):,} characters)")
        if isinstance(value, list | dict):
            left += value.values() if isinstance(value, dict) else value


def _results(raw: Sequence[msgspec.Raw]) -> tuple[list[CaseResult], list[Refused]]:
    results: list[CaseResult] = []
    refused: list[Refused] = []
    seen: set[tuple[str, str]] = set()
    for number, data in enumerate(raw, 1):
        try:
            result = msgspec.json.decode(data, type=CaseResult)
            check_result(result)
            name = (result.case.suite, result.case.key)
            if name in seen:
                raise LaneError("invalid value: the case twice in one report")
        except LaneError as error:
            refused.append(Refused(_name(data, number), str(error)))
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            refused.append(Refused(_name(data, number), f"invalid value: {str(error)[:200]}"))
        else:
            seen.add(name)
            results.append(result)
    return results, refused


def _pairings(envelope: _Envelope) -> tuple[list[Pairing], list[Refused]]:
    """The process pairs, and the cases with invalid pairs, which no pair then judges.

    Raises:
        LaneError: the report contradicts itself about its base, or there are too many cases.
    """
    commit = (envelope.base.commit if envelope.base is not None else None) or ""
    if envelope.base is not None and envelope.base.equal and not commit:
        raise LaneError("no perfguard report (equal to a base that it does not name)")
    if any(pairing.base != commit or (pairing.cases and not commit) for pairing in envelope.pairings):
        raise LaneError(f"no perfguard report (process pairs with another base than {commit[:12] or 'none'})")
    if sum(len(pairing.cases) for pairing in envelope.pairings) > MOST_CASES:
        raise LaneError(f"no perfguard report (process pairs of more than {MOST_CASES:,} cases)")
    refused: list[Refused] = []
    seen: set[tuple[str, str]] = set()
    pairings = []
    for pairing in envelope.pairings:
        cases = []
        for number, data in enumerate(pairing.cases, 1):
            try:
                case = msgspec.json.decode(data, type=PairedCase)
                check_paired(case)
                if (case.suite, case.key) in seen:
                    raise LaneError("invalid value: the case twice in one report")
            except LaneError as error:
                refused.append(Refused(_paired_name(data, number), f"process pairs: {error}"))
            except (msgspec.MsgspecError, RecursionError, ValueError) as error:
                reason = f"process pairs: invalid value: {str(error)[:200]}"
                refused.append(Refused(_paired_name(data, number), reason))
            else:
                seen.add((case.suite, case.key))
                cases.append(_without_times(case))
        pairings.append(Pairing(pairing.base, cases, pairing.pairs, pairing.problem, pairing.device))
    return pairings, refused


def _without_times(case: PairedCase) -> PairedCase:
    """The case without the times of the base's result, which are in the pairs. Exact metrics explain the verdict."""
    if case.base is None:
        return case
    exact = [reading for reading in case.base.readings if not reading.timed]
    return msgspec.structs.replace(case, base=msgspec.structs.replace(case.base, readings=exact))


def _paired_name(data: msgspec.Raw, number: int) -> str:
    try:
        return msgspec.json.decode(data, type=_NamedPaired).key[:1000] or f"paired case {number}"
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return f"paired case {number}"


def _name(data: msgspec.Raw, number: int) -> str:
    """The name of a refused case if readable, else its position."""
    try:
        case = msgspec.json.decode(data, type=_Named).case
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return f"case {number}"
    name, direction = case.get("name"), case.get("pass")
    return f"{name[:1000]}/{str(direction)[:20]}" if isinstance(name, str) and name else f"case {number}"
