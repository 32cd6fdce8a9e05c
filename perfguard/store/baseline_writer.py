"""Writes a `Baseline` as text: readable, stable, and in a layout that plain git merges.

Every case is a block of lines, closed by a blank line, so two branches that change different cases never change
neighbouring lines. The provenance on top does not depend on the cases (no count, no checksum), and a row of the tables
only on its own content. The file ends with `...`, which reveals a truncated one. The last line of a block is its own
provenance, if it has one: if two branches add a case at the same place, the conflict is then one block per side, and
not a mixture of lines of two cases.

Tables above the cases hold once what many cases share: kernels with their facts, and long names. A row is named by a
digest of its content. So a row never changes: another fact is another row, and the lines of other cases stay as they
are. Two branches that add the same row add the same line.

A block holds a line for each time and for each long text, one line (`facts`) for what rarely moves, and one
(`binaries`) that names the rows of its kernels.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.baseline import as_stored
from perfguard.model.records.case import kernel_of
from perfguard.store.baseline_parser import CASE_FIELDS, REFERENCE, SCHEMA, Row, identity, prefix_of

_WIDTH = 150
_SHORT = 40  # most characters of a text among the facts
_KEY_LIMIT = 1000  # longer keys need a line of their own: YAML wants the colon within 1024 characters
_LONG = 100  # most characters of a name in a list
_DIGEST = 8
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RESERVED = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
# Narrower than YAML's plain scalars, so that all YAML readers agree on them.
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w\[\](){}.,/+=<>@*-]*", re.ASCII)
_PLAIN_ITEM = re.compile(r"[A-Za-z_][\w()./+=<>@*-]*", re.ASCII)
_PLAIN_VERSION = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
# Characters that YAML wants escaped. Halves of surrogate pairs are invalid in any spelling: encoding refuses them.
_ESCAPED = re.compile("[^\x09\x20-\x7e\xa0-\u2027\u202a-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def render(baseline: Baseline) -> str:
    """The whole file."""
    cases = {key: _stored(case) for key, case in sorted(baseline.cases.items())}
    blocks = [_block(key, case, prefix_of(baseline.hardware)) for key, case in cases.items()]
    tables = _tables(baseline.hardware, cases.values())
    return _head(baseline) + tables + "cases:\n" + "".join(f"{block}\n" for block in blocks) + "...\n"


def _head(baseline: Baseline) -> str:
    name, value = identity(baseline.hardware)
    lines = [
        f"schema: {SCHEMA}",
        f"{name}: {_scalar(value, _PLAIN_VERSION)}",
        f"provenance: {_provenance(baseline.provenance)}",
    ]
    return "\n".join(lines) + "\n"


def _tables(folder: str, cases: Iterable[CaseBaseline]) -> str:
    """The long names and the kernels that the cases refer to."""
    names: dict[str, str] = {}
    kernels: dict[str, dict[str, Row]] = {}
    for case in cases:
        names |= _long_names(case.entries.values())
        for part, row in rows_of(case, prefix_of(folder))[0].items():
            kernels.setdefault(kernel_of(part), {})[_row_key(kernel_of(part), row)] = row
    lines = ["names:"] * bool(names)
    lines += [f"  {short}: {_quoted(name)}" for short, name in sorted(names.items())]
    lines += ["kernels:"] * bool(kernels)
    for kernel, found in sorted(kernels.items()):
        lines.append(_named(kernel, "  "))
        lines += [f"    {key}: {{{_row(row)}}}" for key, row in sorted(found.items())]
    return "".join(f"{line}\n" for line in lines)


def _row(row: Row) -> str:
    """On one line, so that a merge cannot mix two rows; numbers first."""
    facts = sorted(row.items(), key=lambda fact: isinstance(fact[1], str))
    return ", ".join(f"{_scalar(name, _PLAIN_ITEM)}: {_part(part)}" for name, part in facts)


def _block(key: str, case: CaseBaseline, prefix: str) -> str:
    rows, held = rows_of(case, prefix)
    lines = [_named(key, "  ")]
    facts = {metric: entry for metric, entry in case.entries.items() if metric not in held and _is_fact(entry)}
    facts = facts if len(facts) > 1 else {}
    for metric, entry in sorted(case.entries.items()):
        assert metric not in CASE_FIELDS, f"{metric}: a metric may not have the name of a field of its case"
        if metric not in held and metric not in facts:
            lines += _entry(_scalar(metric, _PLAIN_KEY), entry)
    if rows:
        parts = [f"{_scalar(part, _PLAIN_ITEM)}: {_row_key(kernel_of(part), row)}" for part, row in rows.items()]
        lines += _flow("    binaries: {", parts, "}")
    if facts:
        shown = [f"{_scalar(metric, _PLAIN_ITEM)}: {_fact(entry)}" for metric, entry in sorted(facts.items())]
        lines += _flow("    facts: {", shown, "}")
    if case.inputs:
        lines.append(f"    inputs: {_scalar(case.inputs, _PLAIN_KEY)}")
    if case.reasons:
        lines += ["    reasons:", *_reasons(case.reasons)]
    if case.provenance is not None:
        lines.append(f"    provenance: {_provenance(case.provenance)}")
    return "\n".join(lines) + "\n"


def _stored(case: CaseBaseline) -> CaseBaseline:
    return replace(case, entries={metric: as_stored(entry) for metric, entry in case.entries.items()})


def _named(name: str, indent: str) -> str:
    """The first line of a case's or a kernel's lines."""
    name = _scalar(name, _PLAIN_KEY)
    return f"{indent}{name}:" if len(name) <= _KEY_LIMIT else f"{indent}? {name}\n{indent}:"


def _is_fact(entry: Entry) -> bool:
    """Whether it goes onto the line of facts: a number, a short text, parts of which there are none."""
    if isinstance(entry, str):
        return len(entry) <= _SHORT
    return isinstance(entry, int | float) or entry == {}


def _fact(entry: Entry) -> str:
    return _part(entry) if isinstance(entry, str | int | float) else "{}"


def _reasons(reasons: Mapping[str, str]) -> list[str]:
    """A line for each reason, with all its metrics."""
    by_text: dict[str, list[str]] = {}
    for metric, why in sorted(reasons.items()):
        by_text.setdefault(why, []).append(_scalar(metric, _PLAIN_ITEM))
    if len(by_text) == len(reasons):
        return [f"      {_scalar(metric, _PLAIN_KEY)}: {_quoted(why)}" for metric, why in sorted(reasons.items())]
    return [f"      - {{of: [{', '.join(metrics)}], why: {_quoted(why)}}}" for why, metrics in by_text.items()]


def _entry(metric: str, entry: Entry) -> list[str]:
    if isinstance(entry, TimedEntry):
        sessions = ", ".join(_number(value) for value in entry.sessions)
        anchor = "" if entry.anchor is None else f", anchor: {_number(entry.anchor)}"
        return [f"    {metric}: {{sessions: [{sessions}], timer: {_scalar(entry.timer, _PLAIN_ITEM)}{anchor}}}"]
    if isinstance(entry, list):
        return _flow(f"    {metric}: [", [_short_of(item) or _scalar(item, _PLAIN_ITEM) for item in entry], "]")
    if isinstance(entry, dict):
        parts = [f"{_scalar(name, _PLAIN_ITEM)}: {_part(part)}" for name, part in entry.items()]
        line = f"    {metric}: {{{', '.join(parts)}}}"
        return [line] if len(line) <= _WIDTH else [f"    {metric}:", *(f"      {part}" for part in parts)]
    return [f"    {metric}: {_part(entry)}"]


def _flow(start: str, items: list[str], end: str) -> list[str]:
    """`start`, the items and `end`, on as many lines as it takes."""
    lines = [start]
    for index, item in enumerate(items):
        text = item + (end if index == len(items) - 1 else ",")
        if len(lines[-1]) + 1 + len(text) > _WIDTH and lines[-1] != start:
            lines.append(f"      {text}")
        else:
            lines[-1] += text if lines[-1] == start else f" {text}"
    return lines if items else [start + end]


def _part(part: int | float | str) -> str:
    return _quoted(part) if isinstance(part, str) else _number(part)


def _provenance(provenance: Provenance) -> str:
    shown = []
    for name in Provenance.__struct_fields__:
        value = getattr(provenance, name)
        if value is not None:
            text = _scalar(value, _PLAIN_VERSION) if isinstance(value, str) else _number(value)
            shown.append(f"{name}: {text}")
    return f"{{{', '.join(shown)}}}"


def _number(value: int | float) -> str:
    text = repr(value)
    mantissa, exponent, power = text.partition("e")
    # YAML 1.1 takes 1e-05 for text; 1.0e-05 is a number to every reader.
    return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else text


def _scalar(text: str, plain: re.Pattern[str]) -> str:
    return text if plain.fullmatch(text) and text.lower() not in _RESERVED else _quoted(text)


def _quoted(text: str) -> str:
    """Double-quoted YAML, which is JSON except for the characters that YAML wants escaped."""
    return _ESCAPED.sub(lambda found: f"\\U{ord(found[0]):08x}", json.dumps(text, ensure_ascii=False))


def rows_of(case: CaseBaseline, prefix: str) -> tuple[dict[str, Row], set[str]]:
    """The case's parts by kernel: part -> its row; and the metrics that the rows hold.

    Rows keep the order of the parts in every metric. A metric whose parts are in another order than the others' is left
    out, as is one without any part.
    """
    metrics = {
        metric: entry
        for metric, entry in case.entries.items()
        if prefix and metric.startswith(prefix) and metric != prefix and isinstance(entry, dict) and entry
    }
    rows: dict[str, Row] = {}
    held = set()
    for metric, entry in sorted(metrics.items(), key=lambda item: (-len(item[1]), item[0])):
        merged = _merged(list(rows), list(entry))
        if merged is not None:
            held.add(metric)
            rows = {part: rows.get(part, {}) for part in merged}
    for metric in sorted(held):
        for part, value in metrics[metric].items():
            rows[part][metric.removeprefix(prefix)] = value
    return rows, held


def _merged(known: list[str], more: list[str]) -> list[str] | None:
    """`known` with the further names of `more`, each behind the one before it; None where the orders disagree."""
    merged, place, seen = list(known), 0, set(known)
    for name in more:
        if name not in seen:
            merged.insert(place, name)
        else:
            try:
                place = merged.index(name, place)
            except ValueError:  # it stands before its forerunner
                return None
        place += 1
    return merged


def _row_key(kernel: str, row: Row) -> str:
    """The name of a row: eight letters, which no YAML reader takes for a number."""
    return _letters(json.dumps([kernel, sorted(row.items())]))


def _short_of(name: str) -> str | None:
    """The short form of a long name, with a word to recognise it by; None for a name that is short enough."""
    if len(name) <= _LONG:
        return None
    words = _WORD.findall(name)
    return f"{REFERENCE}{words[-1][:24] if words else ''}.{_letters(name)}"


def _long_names(entries: Iterable[Entry]) -> Mapping[str, str]:
    """Short form -> name, of the long names in lists."""
    lists = [entry for entry in entries if isinstance(entry, list)]
    return {short: name for entry in lists for name in entry if (short := _short_of(name)) is not None}


def _letters(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), "big")
    letters = ""
    for _ in range(_DIGEST):
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
    return letters
