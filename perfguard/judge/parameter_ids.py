"""Ids of parameters that are positions or addresses instead of names.

pytest calls a parameter without an id `shape0`, so that a case inserted before others renames them. Therefore the
record of such a case is also found by its inputs and code.
"""

from __future__ import annotations

import re

from perfguard.model.records import Baseline, CaseBaseline, CaseResult
from perfguard.model.records.code import CODE, same_parts

_POSITION = re.compile(r"(?<=[\[-])([^\W\d]\w*?)\d+(?=[\]-])")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{8,}\b")  # Numbers that people write are shorter.


def key_of_record(file: Baseline | None, result: CaseResult) -> str:
    """The key of a case's record in a file: its own key, unless that record has other inputs or code, and exactly one
    other record of the same test has these."""
    key = result.case.key
    if file is None or not _POSITION.search(key):
        return key
    pattern = _POSITION.sub(r"\1", key)
    known = {key: file.cases[key]} if key in file.cases else {}
    known |= {other: case for other, case in file.cases.items() if _POSITION.sub(r"\1", other) == pattern}
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
    """Why the key of a case changes with each process; empty if it does not."""
    address = _ADDRESS.search(key)
    if address is None:
        return ""
    return (
        f"its id holds an address, {address[0]}, which is another one in every process; name its parameters: "
        "ids=lambda each: f'{each.rows}x{each.columns}', or pytest.param(each, id='64x48')"
    )
