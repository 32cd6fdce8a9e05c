"""Ids of parameters that are places or addresses, and no names.

pytest calls a parameter that has no id of its own `shape0`: a case put in front renames all that follow. So the record
of such a case is found by its inputs and code, too.
"""

from __future__ import annotations

import re

from perfguard.model.records import Baseline, CaseBaseline, CaseResult
from perfguard.model.records.code import CODE, same_parts

_PLACE = re.compile(r"(?<=[\[-])([^\W\d]\w*?)\d+(?=[\]-])")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{8,}\b")  # of an object; a number that somebody wrote is shorter


def key_of_record(file: Baseline | None, result: CaseResult) -> str:
    """The key under which a file holds the record of a case: its own, but where that record is of other inputs or code,
    and exactly one of the same test, in another place, is of these."""
    key = result.case.key
    if file is None or not _PLACE.search(key):
        return key
    pattern = _PLACE.sub(r"\1", key)
    known = {key: file.cases[key]} if key in file.cases else {}
    known |= {other: case for other, case in file.cases.items() if _PLACE.sub(r"\1", other) == pattern}
    fitting = [other for other, case in known.items() if case.inputs == result.inputs]
    alike = [other for other in fitting if _has_code_of(known[other], result)]
    for candidates in (alike, fitting):
        if key in candidates:
            return key
        if len(candidates) == 1:
            return candidates[0]
    return key


def _has_code_of(case: CaseBaseline, result: CaseResult) -> bool:
    reading, stored = result.reading(CODE), case.entries.get(CODE, {})
    now = {} if reading is None else reading.value
    return isinstance(stored, dict) and isinstance(now, dict) and same_parts(stored, now)


def unstable_id(key: str) -> str:
    """Why a case of this key has no name that lasts; empty if it has."""
    address = _ADDRESS.search(key)
    if address is None:
        return ""
    return (
        f"its id holds an address, {address[0]}, which is another one in every process; name its parameters: "
        "ids=lambda each: f'{each.rows}x{each.columns}', or pytest.param(each, id='64x48')"
    )
