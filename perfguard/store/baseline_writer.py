"""Writes a `Baseline` as text: readable, stable, and in a layout that plain git merges.

Every case is a block of lines, closed by a blank line, so two branches that change different cases never change
neighbouring lines. The head does not depend on the cases (no count, no checksum). The file ends with `...`, which
reveals a truncated one. The last line of a block is its own provenance, if it has one: if two branches add a case at
the same place, the conflict is then one block per side, and not a mixture of lines of two cases.
"""

from __future__ import annotations

import json
import re

from perfguard.model.records import SCHEMA, Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.baseline import as_stored
from perfguard.store.baseline_parser import CASE_FIELDS, Document, identity

_WIDTH = 110
_KEY_LIMIT = 1000  # longer keys need a line of their own: YAML wants the colon within 1024 characters
_RESERVED = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
# Narrower than YAML's plain scalars, so that all YAML readers agree on them.
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w\[\](){}.,/+=<>@*-]*", re.ASCII)
_PLAIN_ITEM = re.compile(r"[A-Za-z_][\w()./+=<>@*-]*", re.ASCII)
_PLAIN_VERSION = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
# Characters that YAML wants escaped. Halves of surrogate pairs are invalid in any spelling: encoding refuses them.
_ESCAPED = re.compile("[^\x09\x20-\x7e\xa0-\u2027\u202a-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def render(baseline: Baseline) -> str:
    """The whole file."""
    blocks = [_block(key, case) for key, case in sorted(baseline.cases.items())]
    return _assembled(_head(baseline), blocks)


def revise(document: Document, baseline: Baseline) -> str:
    """The file with `baseline`'s content; lines of unchanged cases stay byte for byte."""
    old = document.baseline
    head = document.head if baseline.provenance == old.provenance else _head(baseline)
    blocks = [
        document.blocks[key] if case == old.cases.get(key) else _block(key, case)
        for key, case in sorted(baseline.cases.items())
    ]
    return _assembled(head, blocks)


def _assembled(head: str, blocks: list[str]) -> str:
    return head + "".join(f"{block}\n" for block in blocks) + "...\n"


def _head(baseline: Baseline) -> str:
    name, value = identity(baseline.hardware)
    lines = [
        f"schema: {SCHEMA}",
        f"{name}: {_scalar(value, _PLAIN_VERSION)}",
        f"provenance: {_provenance(baseline.provenance)}",
        "cases:",
    ]
    return "\n".join(lines) + "\n"


def _block(key: str, case: CaseBaseline) -> str:
    name = _scalar(key, _PLAIN_KEY)
    lines = [f"  {name}:" if len(name) <= _KEY_LIMIT else f"  ? {name}\n  :"]
    for metric, entry in sorted(case.entries.items()):
        assert metric not in CASE_FIELDS, f"{metric}: a metric may not have the name of a field of its case"
        lines += _entry(_scalar(metric, _PLAIN_KEY), entry)
    if case.inputs:
        lines.append(f"    inputs: {_scalar(case.inputs, _PLAIN_KEY)}")
    if case.reasons:
        lines.append("    reasons:")
        lines += [
            f"      {_scalar(metric, _PLAIN_KEY)}: {_quoted(why)}" for metric, why in sorted(case.reasons.items())
        ]
    if case.provenance is not None:
        lines.append(f"    provenance: {_provenance(case.provenance)}")
    return "\n".join(lines) + "\n"


def _entry(metric: str, entry: Entry) -> list[str]:
    entry = as_stored(entry)
    if isinstance(entry, TimedEntry):
        sessions = ", ".join(_number(value) for value in entry.sessions)
        anchor = "" if entry.anchor is None else f", anchor: {_number(entry.anchor)}"
        return [f"    {metric}: {{sessions: [{sessions}], timer: {_scalar(entry.timer, _PLAIN_ITEM)}{anchor}}}"]
    if isinstance(entry, list):
        items = [_scalar(item, _PLAIN_ITEM) for item in entry]
        line = f"    {metric}: [{', '.join(items)}]"
        return [line] if len(line) <= _WIDTH else [f"    {metric}:", *(f"      - {item}" for item in items)]
    if isinstance(entry, dict):
        parts = [
            f"{_scalar(name, _PLAIN_ITEM)}: {_quoted(part) if isinstance(part, str) else _number(part)}"
            for name, part in entry.items()
        ]
        line = f"    {metric}: {{{', '.join(parts)}}}"
        return [line] if len(line) <= _WIDTH else [f"    {metric}:", *(f"      {part}" for part in parts)]
    if isinstance(entry, str):
        return [f"    {metric}: {_quoted(entry)}"]
    return [f"    {metric}: {_number(entry)}"]


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
