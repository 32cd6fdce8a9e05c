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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfguard.model.errors import LaneError
from perfguard.model.records import SCHEMA, CaseId, CaseResult, PairedCase, Pairing, Reading, Report, Session
from perfguard.model.units import format_change
from perfguard.render.overview import Refused
from perfguard.store.baseline_form import CASE_FIELDS
from perfguard.store.comment_limits import REPORT_BYTES, most_cases

T = TypeVar("T")
C = TypeVar("C", CaseResult, PairedCase)

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
# The change of a pair is a mean over rounds of blocks, and its two times are medians of the same blocks. They are this
# far apart if every third block takes eight times as long: ln(8)/3.
_SAME_BLOCKS = math.log(2)
_SAME_CODE = math.log(8)  # Two processes of one tree; the clock of an H200 is between 345 and 1980 MHz.
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
    "matmul_fraction": (0.0, 1e21),
}
_ANY_NUMBER = (-1e21, 1e21)
_IN_PARTS = "merge tests and their baselines in parts, each at most as many as the base has"
_SHOWN = 24  # The shown characters of a refused number.
_SURROGATE = re.compile("[\ud800-\udfff]")


class Received(Struct, frozen=True):
    """A lane's report without its unreadable cases, which `refused` lists."""

    report: Report
    refused: list[Refused] = []


def receive_all(artifacts: Mapping[str, bytes | str], head: str, recorded: int = 0) -> dict[str, Received | str]:
    """Lane -> its report for commit `head`, or why there is none. A refused lane affects no other lane.

    Args:
        artifacts: lane -> the zip file that it uploaded, or why there is none.
        recorded: the number of cases in the base's largest folder, which bounds a report (`comment_limits`).
    """
    by_lane: dict[str, Received | str] = {}
    for lane, data in artifacts.items():
        try:
            by_lane[lane] = data if isinstance(data, str) else receive(lane, data, head, recorded)
        except LaneError as error:
            by_lane[lane] = str(error)
    return by_lane


def receive(lane: str, archive: bytes, head: str, recorded: int = 0) -> Received:
    """The report in the archive that a lane uploaded for commit `head`.

    A lane is named after its hardware's slug, or after its target if any machine of the target is suitable (`cpu`). A
    target's lane does not judge metrics of one machine. The name decides this instead of the report: without times, a
    slug's lane has not measured all of its record.

    Raises:
        LaneError: the archive or the whole report is refused, with the reason.
    """
    slug, data = unpack(archive, REPORT_BYTES * most_cases(recorded))
    received = read_untrusted_report(data, recorded)
    report = received.report
    if slug != report.hardware.slug:
        raise LaneError(f"report-{slug}.json holds a report of {report.hardware.slug!r}")
    if lane not in (report.hardware.slug, report.hardware.target):
        raise LaneError(f"the artifact of {lane} holds a report of {report.hardware.slug!r}")
    commit = (report.commit or "").removesuffix("+")
    if len(commit) < _LEAST_SHA or not head.startswith(commit):
        raise LaneError(f"measured {commit[:60]!r}, not {head[:12]!r}; run the lane on the pull request's head commit")
    return Received(replace(report, exact_only=lane != report.hardware.slug), received.refused)


def unpack(archive: bytes, most: int) -> tuple[str, bytes]:
    """The slug in the name of an archive's one file, `report-<slug>.json`, and its bytes, at most `most`. Nothing is
    extracted.

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
                data = stream.read(most + 1)  # The declared size may be wrong.
    # zipfile raises these for damaged, encrypted or unusual archives, by its documentation and by experiments.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise LaneError(f"no readable zip file ({str(error)[:200]}); upload .perfguard/report-*.json") from error
    if len(data) > most:
        raise LaneError(f"{name[0]} unpacks to more than {most:,} bytes; {_IN_PARTS}")
    return name[1], data


def read_untrusted_report(data: bytes, recorded: int = 0) -> Received:
    """A report from untrusted JSON. An impossible value makes only its own case unreadable.

    Args:
        recorded: as for `receive_all`.

    Raises:
        LaneError: the data is no JSON, has another schema, or cannot be read outside its cases.
    """
    content = _strict_json(data)
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(content, dict) or schema != SCHEMA or isinstance(schema, bool):
        raise LaneError(f"report schema {str(schema)[:40]}, this perfguard reads {SCHEMA}; use one version for both")
    most = most_cases(recorded)
    parts = {name: content.pop(name, []) for name in ("results", "fresh", "pairings")}
    for name in ("stale", "guarded", "remembered"):  # Verdicts on the run are not used.
        content.pop(name, None)
    try:
        report = _converted(content, Report)
        results, refused = _cases(parts["results"], most, CaseResult, set(), _check_result)
        # Unreadable results of fresh processes are dropped, since they confirm nothing.
        fresh = [
            replace(
                _converted({**each, "results": []}, Session),
                results=_cases(each["results"], most, CaseResult, set(), _check_result)[0],
            )
            for each in _list(parts["fresh"], _MOST_SESSIONS)
        ]
        by_id = {result.id: result for result in results}
        pairings, unpaired = _pairings(_list(parts["pairings"], _MOST_DEVICES), most, by_id)
        _check_whole(report, pairings)
    except RecursionError as error:
        raise LaneError("nested too deeply") from error
    except (msgspec.MsgspecError, LaneError, AttributeError, KeyError, TypeError) as error:  # An item is no object.
        raise LaneError(f"no perfguard report ({str(error)[:300]})") from error
    return Received(replace(report, results=results, fresh=fresh, pairings=pairings), [*refused, *unpaired])


def read_untrusted_file(path: Path, recorded: int) -> Received:
    """The report in a file, as `read_untrusted_report` reads it. A file that cannot be read raises an OSError."""
    most = REPORT_BYTES * most_cases(recorded)
    if path.stat().st_size > most:
        raise LaneError(f"larger than {most:,} bytes")
    return read_untrusted_report(path.read_bytes(), recorded)


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
    content = dict(pairs)
    if len(content) != len(pairs):
        raise LaneError("a key twice in one object")
    return content


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


def _list(value: Any, most: int, step: str = "") -> list[Any]:
    if not isinstance(value, list):
        raise LaneError("no list")
    if len(value) > most:
        raise LaneError(f"{len(value):,} items in a list, {most:,} at most{step and f'; {step}'}")
    return value


def _cases(
    raw: Any, most: int, kind: type[C], seen: set[CaseId], check: Callable[[C], None]
) -> tuple[list[C], list[Refused]]:
    """The cases of a list of at most `most`, and those that `check` or their form refuses. `seen`: the cases that were
    read before."""
    cases: list[C] = []
    refused: list[Refused] = []
    for number, data in enumerate(_list(raw, most, _IN_PARTS), 1):
        try:
            case = _converted(data, kind)
            check(case)
            if case.id in seen:
                raise LaneError("the case twice in one report")
        except (msgspec.MsgspecError, LaneError, RecursionError) as error:
            refused.append(Refused(_name(data) or f"case {number}", f"invalid value: {str(error)[:200]}"))
        else:
            seen.add(case.id)
            cases.append(case)
    return cases, refused


def _pairings(
    raw: Sequence[Any], most: int, results: Mapping[CaseId, CaseResult]
) -> tuple[list[Pairing], list[Refused]]:
    """The process pairs of at most `most` cases, and the cases with invalid ones, which pairs do not judge.

    Args:
        results: the run's own results.
    """
    pairings: list[Pairing] = []
    refused: list[Refused] = []
    seen: set[CaseId] = set()
    for item in raw:
        cases, invalid = _cases(item.get("cases", []), most, PairedCase, seen, partial(_check_paired, results))
        pairings.append(replace(_converted({**item, "cases": []}, Pairing), cases=cases))
        refused += [Refused(one.name, f"process pairs: {one.reason}") for one in invalid]
    if len(seen) > most:
        raise LaneError(f"process pairs of more than {most:,} cases; {_IN_PARTS}")
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


def _check_paired(results: Mapping[CaseId, CaseResult], case: PairedCase) -> None:
    """Check names, duplicates, and that the readings of process pairs agree with each other and with the run's.

    Raises:
        LaneError: a value is invalid or contradicts another one. No time of the case is judged by pairs then.
    """
    if not all(case.id):
        raise LaneError("an empty name")
    if case.base is not None:
        _check_result(case.base)
        if case.base.id != case.id:
            raise LaneError("another case at the base")
    metrics = [time.metric for time in case.times]
    if not all(metrics) or len(set(metrics)) != len(metrics) or len(metrics) > _MOST_READINGS:
        raise LaneError("a time twice in one case, one without a metric, or too many")
    for time in case.times:
        numbers = [reading.pair for reading in time.readings]
        if len(numbers) > _MOST_PAIRS or numbers != sorted(set(numbers)):
            raise LaneError(f"{time.metric}: more than {_MOST_PAIRS} process pairs, or not numbered upwards")
        alone = results[case.id].reading(time.metric) if case.id in results else None
        for reading in time.readings:
            what = f"{time.metric}: pair {reading.pair} contradicts"
            if abs(math.log(reading.work_us / reading.base_us) - reading.change) > _SAME_BLOCKS:
                change = format_change(math.exp(reading.change))
                raise LaneError(f"{what} itself: {reading.base_us:g} -> {reading.work_us:g} µs is not {change}")
            us = alone.value if alone is not None and alone.timer == time.timer else None
            if isinstance(us, int | float) and abs(math.log(reading.work_us / us)) > _SAME_CODE:
                raise LaneError(f"{what} the run: {reading.work_us:g} µs, and {us:g} µs alone")


def _check_result(result: CaseResult) -> None:
    """Check names, duplicates and times, which involve several values.

    Raises:
        LaneError: a value is invalid or contradicts another one; the message names it.
    """
    if not all(result.id) or not result.case.name:
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
        if reading.timed:
            _check_time(reading)
        if reading.rival and reading.rival < _MICROSECONDS[0]:
            raise LaneError(f"{reading.metric}: its rival's {reading.rival} is no time in µs")


def _check_time(reading: Reading) -> None:
    us = reading.value
    if not isinstance(us, int | float) or not _MICROSECONDS[0] <= us < _MICROSECONDS[1]:
        raise LaneError(f"{reading.metric}: {str(us)[:100]} is no time in µs")
    if reading.blocks and not math.isclose(middle := median(reading.blocks), us):
        raise LaneError(f"{reading.metric}: {us:g} µs, but the median of its blocks is {middle:g} µs")
