"""Reads the report that a lane uploaded as untrusted data: one small archive, strict JSON, bounded values.

A case with an impossible value is refused alone; the archive or the whole report is refused with a LaneError.
"""

from __future__ import annotations

import io
import json
import math
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfguard.model.errors import LaneError
from perfguard.model.records import SCHEMA, CaseId, CaseResult, PairedCase, Pairing, Report, Session
from perfguard.render.overview import Refused
from perfguard.store.baseline_form import CASE_FIELDS

T = TypeVar("T")
C = TypeVar("C", CaseResult, PairedCase)

# A case with the readings of three process pairs takes about 10 kB of indented JSON and packs to a few hundred bytes.
# So this is enough for about 1,500 regressions in one lane.
MOST_BYTES = 16_000_000
MOST_CASES = 5_000
MOST_CHARACTERS = 16_384  # Characters of any text other than a value.
_MOST_ITEMS = 10_000  # Items of a list or object in a case, such as kernel names of one call or blocks of a time.
_MOST_OF_A_VALUE = 100 * _MOST_ITEMS  # Characters of a value: the kernels of a rank are one text.
_MOST_READINGS = 200  # Readings of one case.
_MOST_DOUBTS = 1000  # Doubts of one case: a tuner's configurations may have several problems each.
_MOST_SESSIONS = 100  # Fresh processes of all devices together.
_MOST_PAIRS = 50  # Process pairs of one time.
_MOST_DEVICES = 1024
_NAME = re.compile(r"report-(\w[\w.+-]{0,199})\.json", re.ASCII)
_FOLDER = re.compile(r"\w[\w.+-]{0,99}", re.ASCII)  # Slug and target become parts of paths.
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_LEAST_SHA = 7  # The shortest abbreviation of a commit.
_MOST = 2.0**63
_MICROSECONDS = (1e-4, 1e12)  # 0.1 ns is shorter than a device's cycle
_LOG_RATIO = (-math.log(1e6), math.log(1e6))
_MHZ = (1.0, 1e5)
_VALUES = frozenset(("value", "before", "after"))  # Fields of readings and verdicts whose parts have any names.
#: Field -> the least and the largest number in it, including lists and parts below it.
_RANGES = {
    "value": (0.0, _MOST),  # Counts, bytes and times are never negative.
    "blocks": _MICROSECONDS,
    "base_us": _MICROSECONDS,
    "work_us": _MICROSECONDS,
    "change": _LOG_RATIO,
    "control": _LOG_RATIO,
    "base_mhz": _MHZ,
    "work_mhz": _MHZ,
    "pair": (1, 200),  # Judging again takes one look per number.
    "pairs": (0, 10_000),
    "device": (0, _MOST_DEVICES - 1),
    "spread": (0.0, _MOST),
    "promise": (0.0, _MOST),
    "floor": (0.0, _MOST),
    "tolerance": (0.0, _MOST),
    "rival": (0.0, _MICROSECONDS[1]),
    "rank": (-1e6, 1e6),
    "rejected_blocks": (0, 1e6),
    "seconds": (0.0, 1e9),
    "copy_bytes_per_second": (1e-9, 1e21),
    "bytes_per_second": (0.0, 1e21),
    "flop_per_second": (0.0, 1e21),
    "copy_fraction": (0.0, 1e21),
}
_ANY_NUMBER = (-1e21, 1e21)
_SHOWN = 24  # The shown characters of a refused number.
_SURROGATE = re.compile("[\ud800-\udfff]")


class Received(Struct, frozen=True):
    """A lane's report without its unreadable cases, which `refused` lists."""

    report: Report
    refused: list[Refused] = []


def receive_all(artifacts: Mapping[str, bytes | str], head: str) -> dict[str, Received | str]:
    """Lane -> its report for commit `head`, or why there is none. A refused lane affects no other lane.

    Args:
        artifacts: lane -> the zip file that it uploaded, or why there is none.
    """
    by_lane: dict[str, Received | str] = {}
    for lane, data in artifacts.items():
        try:
            by_lane[lane] = data if isinstance(data, str) else receive(lane, data, head)
        except LaneError as error:
            by_lane[lane] = str(error)
    return by_lane


def receive(lane: str, archive: bytes, head: str) -> Received:
    """The report in the archive that a lane uploaded for commit `head`.

    A lane is named after its hardware's slug, or after its target if any machine of the target is suitable (`cpu`). A
    target's lane does not judge metrics of one machine. The name decides this instead of the report: without times, a
    slug's lane has not measured all of its record.

    Raises:
        LaneError: the archive or the whole report is refused, with the reason.
    """
    slug, data = unpack(archive)
    received = read_untrusted_report(data)
    report = received.report
    if slug != report.hardware.slug:
        raise LaneError(f"report-{slug}.json holds a report of {report.hardware.slug!r}")
    if lane not in (report.hardware.slug, report.hardware.target):
        raise LaneError(f"the artifact of {lane} holds a report of {report.hardware.slug!r}")
    commit = (report.commit or "").removesuffix("+")
    if len(commit) < _LEAST_SHA or not head.startswith(commit):
        raise LaneError(f"measured {commit[:60]!r}, not {head[:12]!r}; run the lane on the pull request's head commit")
    return Received(replace(report, exact_only=lane != report.hardware.slug), received.refused)


def unpack(archive: bytes) -> tuple[str, bytes]:
    """The slug in the name of an archive's one file, `report-<slug>.json`, and its bytes. Nothing is extracted.

    Raises:
        LaneError: the archive is no zip file, too large or damaged, or does not hold exactly one such plain file.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            members = opened.infolist()
            if len(members) != 1:
                raise LaneError(f"the archive holds {len(members):,} files; upload one, report-<hardware>.json")
            name = _NAME.fullmatch(members[0].filename)
            kind = stat.S_IFMT(members[0].external_attr >> 16)
            if name is None or members[0].orig_filename != members[0].filename or kind not in (0, stat.S_IFREG):
                raise LaneError(f"{members[0].filename[:200]!r} is no plain file report-<hardware>.json")
            with opened.open(members[0]) as stream:
                data = stream.read(MOST_BYTES + 1)  # The declared size may be wrong.
    # zipfile raises these for damaged, encrypted or unusual archives, by its documentation and by experiments.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise LaneError(f"no readable zip file ({str(error)[:200]}); upload .perfguard/report-*.json") from error
    if len(data) > MOST_BYTES:
        raise LaneError(f"{name[0]} unpacks to more than {MOST_BYTES:,} bytes")
    return name[1], data


def read_untrusted_report(data: bytes) -> Received:
    """A report from untrusted JSON. An impossible value makes only its own case unreadable.

    Raises:
        LaneError: the data is no JSON, has another schema, or cannot be read outside its cases.
    """
    content = _strict_json(data)
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(content, dict) or schema != SCHEMA or isinstance(schema, bool):
        raise LaneError(f"report schema {str(schema)[:40]}, this perfguard reads {SCHEMA}; use one version for both")
    parts = {name: content.pop(name, []) for name in ("results", "fresh", "pairings")}
    for name in ("stale", "guarded", "remembered"):  # Verdicts on the run are not used.
        content.pop(name, None)
    try:
        report = _converted(content, Report)
        results, refused = _cases(parts["results"], CaseResult, set())
        # Unreadable results of fresh processes are dropped, since they confirm nothing.
        fresh = [
            replace(_converted({**each, "results": []}, Session), results=_cases(each["results"], CaseResult, set())[0])
            for each in _list(parts["fresh"], _MOST_SESSIONS)
        ]
        pairings, unpaired = _pairings(_list(parts["pairings"], _MOST_DEVICES))
        _check_whole(report, pairings)
    except RecursionError as error:
        raise LaneError("nested too deeply") from error
    except (msgspec.MsgspecError, LaneError, AttributeError, KeyError, TypeError) as error:  # An item is no object.
        raise LaneError(f"no perfguard report ({str(error)[:300]})") from error
    return Received(replace(report, results=results, fresh=fresh, pairings=pairings), [*refused, *unpaired])


def _strict_json(data: bytes) -> Any:
    """JSON that all parsers read alike: UTF-8, no repeated keys, no NaN. msgspec would keep the last of equal keys."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise LaneError(f"no UTF-8 text (byte {error.start})") from error
    except RecursionError as error:
        raise LaneError("nested too deeply") from error
    except ValueError as error:  # These are JSONDecodeError, and integers with more digits than Python converts.
        raise LaneError(f"no JSON ({str(error)[:200]})") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise LaneError("a key twice in one object")
    return found


def _no_number(token: str) -> NoReturn:
    raise LaneError(f"{token} is no JSON; a reading that is no number is written as null")


def _converted(data: Any, kind: type[T]) -> T:
    """Plain JSON as a record, with sizes and numbers within bounds.

    Raises:
        LaneError, ValidationError: a value is invalid; the message names it.
    """
    _check_bounds(data)
    return msgspec.convert(data, kind, str_keys=True)  # The positions of a doubt are integer keys.


def _check_bounds(value: Any, field: str = "") -> None:
    """Check texts, sizes and numbers of `field` in plain JSON."""
    if isinstance(value, str):
        longest = _MOST_OF_A_VALUE if field in _VALUES else MOST_CHARACTERS
        if len(value) > longest:
            raise LaneError(f"a text of {len(value):,} characters, {longest:,} at most")
        if not value.isascii() and _SURROGATE.search(value):
            raise LaneError("a text that no encoding can hold")
    elif isinstance(value, int | float):
        least, most = _RANGES.get(field, _ANY_NUMBER)
        if not least <= value <= most:
            raise LaneError(f"{field} is {str(value)[:_SHOWN]}")
    elif isinstance(value, list | dict):
        if len(value) > _MOST_ITEMS:
            raise LaneError(f"{len(value):,} items of {field}, {_MOST_ITEMS:,} at most")
        if isinstance(value, list):
            for item in value:
                _check_bounds(item, field)
        else:
            for key, item in value.items():
                _check_bounds(key)
                _check_bounds(item, field if field in _VALUES else key)


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise LaneError(f"no list of at most {most:,} items")
    return value


def _cases(raw: Any, kind: type[C], seen: set[CaseId]) -> tuple[list[C], list[Refused]]:
    """The cases of a list, and the refused ones. `seen`: the cases that were read before."""
    cases: list[C] = []
    refused: list[Refused] = []
    for number, data in enumerate(_list(raw, MOST_CASES), 1):
        try:
            case = _converted(data, kind)
            _check(case)
            if case.id in seen:
                raise LaneError("the case twice in one report")
        except (msgspec.MsgspecError, LaneError, RecursionError) as error:
            refused.append(Refused(_name(data) or f"case {number}", f"invalid value: {str(error)[:200]}"))
        else:
            seen.add(case.id)
            cases.append(case)
    return cases, refused


def _pairings(raw: Sequence[Any]) -> tuple[list[Pairing], list[Refused]]:
    """The process pairs, and the cases with invalid pairs, which pairs do not judge."""
    pairings: list[Pairing] = []
    refused: list[Refused] = []
    seen: set[CaseId] = set()
    for item in raw:
        cases, invalid = _cases(item.get("cases", []), PairedCase, seen)
        pairings.append(replace(_converted({**item, "cases": []}, Pairing), cases=cases))
        refused += [Refused(one.name, f"process pairs: {one.reason}") for one in invalid]
    if len(seen) > MOST_CASES:
        raise LaneError(f"process pairs of more than {MOST_CASES:,} cases")
    return pairings, refused


def _check_whole(report: Report, pairings: Sequence[Pairing]) -> None:
    """Check names that become parts of paths, and that the report does not contradict itself about its base."""
    for folder in (report.hardware.slug, report.hardware.target):
        if folder is not None and not _FOLDER.fullmatch(folder):
            raise LaneError(f"{folder[:100]!r} names no folder of baselines")
    bases = [*report.bases.values(), *([report.base] if report.base is not None else [])]
    commits = {base.commit for base in bases if base.commit is not None}
    for commit in commits:
        if not _COMMIT.fullmatch(commit):
            raise LaneError(f"its base {commit[:100]!r} is no commit")
    if any(base.equal and base.commit is None for base in bases):
        raise LaneError("equal to a base that it does not name")
    for pairing in pairings:
        if pairing.base not in (commits if commits or pairing.cases else {""}):
            raise LaneError(f"answers of another base than {', '.join(each[:12] for each in commits) or 'none'}")


def _name(data: Any) -> str:
    """The name of a refused case if it can be read."""
    case = data.get("case", data) if isinstance(data, dict) else {}
    if not isinstance(case, dict):
        return ""
    name = case.get("key") or (f"{case['name']}/{case.get('pass')}" if case.get("name") else "")
    return name[:1000] if isinstance(name, str) else ""


def _check(case: CaseResult | PairedCase) -> None:
    """Check names, duplicates and times, which involve several values.

    Raises:
        LaneError: a value is invalid; the message names it. Pairs then judge no time of a paired case.
    """
    if not all(case.id):
        raise LaneError("an empty name")
    if isinstance(case, CaseResult):
        _check_readings(case)
        return
    if case.base is not None:
        _check(case.base)
        if case.base.id != case.id:
            raise LaneError("another case at the base")
    metrics = [time.metric for time in case.times]
    if not all(metrics) or len(set(metrics)) != len(metrics) or len(metrics) > _MOST_READINGS:
        raise LaneError("a time twice in one case, one without a metric, or too many")
    for time in case.times:
        numbers = [reading.pair for reading in time.readings]
        if len(numbers) > _MOST_PAIRS or numbers != sorted(set(numbers)):
            raise LaneError(f"{time.metric}: more than {_MOST_PAIRS} process pairs, or not numbered upwards")


def _check_readings(result: CaseResult) -> None:
    if not result.case.name:
        raise LaneError("an empty name")
    if len(result.doubts) > _MOST_DOUBTS or not all(doubt.name for doubt in result.doubts):
        raise LaneError(f"more than {_MOST_DOUBTS:,} doubts, or one without a name")
    if len(result.readings) > _MOST_READINGS or len(result.verdicts) > _MOST_READINGS + len(result.doubts):
        raise LaneError(f"more than {_MOST_READINGS} readings, or verdicts beside those on doubts")
    metrics = [reading.metric for reading in result.readings]
    if not all(metrics) or len(set(metrics)) != len(metrics):
        raise LaneError("a reading without a metric, or a metric twice in one case")
    for reading in result.readings:
        if reading.metric in CASE_FIELDS:
            raise LaneError(f"a metric called {reading.metric!r}; {reading.metric!r} names a field of a baseline")
        if reading.timed and not (
            isinstance(reading.value, int | float) and _MICROSECONDS[0] <= reading.value < _MICROSECONDS[1]
        ):
            raise LaneError(f"{reading.metric}: {str(reading.value)[:100]} is no time in µs")
        if reading.rival and reading.rival < _MICROSECONDS[0]:
            raise LaneError(f"{reading.metric}: its rival's {reading.rival} is no time in µs")
