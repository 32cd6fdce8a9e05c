"""The form of a baseline file: YAML by PyYAML, checked by msgspec.

A file may be hostile: its depth is bounded, and anchors and tags are refused, before objects are built from it. The job
that reads files of others bounds their size (`comment_limits`). People edit and merge files, so that each mistake is
one error that names file and place. Keys occur once, and the file ends with the line `...`, without which it counts as
truncated.

Plain git merges branches that change different cases: a case is a block of lines that ends with a blank line, and an
entry is one line. A block ends with the name of its recording, so that if two branches add a case at the same place,
the conflict has one block per side instead of mixed lines of two cases. Recordings are sorted by commit, so that two
branches seldom add adjacent ones.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import yaml
from msgspec import Meta, Struct

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.baseline import as_stored

SCHEMA = 3
#: Fields of a case's block other than metrics.
CASE_FIELDS = ("facts", "inputs", "recording")
#: Metrics of earlier versions, which only repeated others or depended on the process. Files that hold them are read
#: without them.
GONE = frozenset(
    {"fills", "gather_padding", "gathered_bytes_left", "growth_bytes", "reserved_bytes", "reserved_growth_bytes"}
)

_DEEPEST = 8  # Levels of nesting, of which perfguard writes five.
_SHORT = 40  # The most characters of a text among the facts.
_WIDTH = 1_000_000
_CONFLICT = re.compile(r"^(<{7}|\|{7}|={7}|>{7})( |$)", re.MULTILINE)

_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Decimal = Annotated[float, Meta(ge=-1e300, le=1e300)]  # This excludes infinities and NaN.
_Part = _Integer | _Decimal | str
_Fact = _Part | list[str] | dict[str, _Part]

T = TypeVar("T")


class _File(Struct, forbid_unknown_fields=True):
    schema: int
    hardware: str
    recordings: dict[str, Provenance]
    cases: dict[str, dict[str, Any]]


class _Fields(Struct, forbid_unknown_fields=True):
    """The fields of a case, except metrics that have a line of their own."""

    recording: str = ""
    inputs: str = ""
    facts: dict[str, Any] = {}


def parse(data: bytes, path: Path, folder: str, suite: str) -> Baseline:
    """Read the bytes of `<root>/<folder>/<suite>.yaml`.

    Raises:
        BaselineError: the file has a mistake; the message names file, place, expected content and next step.
    """
    text = _text_of(data, path)
    content = _loaded(text, path)
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema != SCHEMA:
        step = "update perfguard" if schema > SCHEMA else "record anew, without this file"
        raise _mistake(path, f"schema {schema}, expected {SCHEMA}", step)
    file = _converted(content, _File, path, "")
    if file.hardware != folder:
        step = f"move the file to the folder of {file.hardware}, or remove it and record with --perfguard-update"
        raise _mistake(path, f"hardware {file.hardware}, expected {folder}, as the folder says", step)
    cases = {key: _case(key, case, path) for key, case in file.cases.items()}
    for key, case in cases.items():
        if case.recording and case.recording not in file.recordings:
            step = f"take its line from the other side of the merge, or remove {key} and record it again"
            raise _mistake(path, f"cases.{key}: no {case.recording} in recordings", step)
    return Baseline(folder, suite, file.recordings, cases)


def _mistake(path: Path, what: str, step: str = "") -> BaselineError:
    """The error of a file with a mistake."""
    return BaselineError(f"{path}: {what}; {step or f'mend it, or restore the file with: git checkout -- {path}'}")


def _text_of(data: bytes, path: Path) -> str:
    """The text of a complete file without anchors, tags or deep nesting.

    Raises:
        BaselineError: the data is no such text.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _mistake(path, f"line {line}: the byte 0x{data[error.start]:02x}, expected UTF-8 text") from error
    if conflict := _CONFLICT.search(text):
        line = text.count("\n", 0, conflict.start()) + 1
        step = "resolve the merge: keep the recordings and cases of both sides, or record cases named on both again"
        raise _mistake(path, f"line {line}: a conflict marker of git", step)
    if not text.rstrip().endswith("\n..."):
        line = len(text.splitlines()) or 1
        raise _mistake(path, f"line {line}: the end of the file, expected more cases or the line '...'")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            mark = getattr(event, "anchor", None) or getattr(event, "tag", None)  # An alias has an anchor.
            if mark is not None:
                raise _mistake(path, f"line {line}: the anchor, alias or tag {mark!r}, expected plain values")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise _mistake(path, f"line {line}: deeper nesting, expected one baseline")
    except yaml.YAMLError as error:
        raise _no_yaml(error, path) from error
    return text


def _loaded(text: str, path: Path) -> Any:
    """The content of a file that `_text_of` has checked.

    Raises:
        BaselineError: a name occurs twice.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _no_yaml(error, path) from error


def _no_yaml(error: yaml.YAMLError, path: Path) -> BaselineError:
    place, problem = "", str(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}: " if mark is not None else ""
        problem = ", ".join(filter(None, (error.context, error.problem)))
    return _mistake(path, f"{place}{problem}, expected the fields and cases of a baseline")


def _case(key: str, block: Mapping[str, Any], path: Path) -> CaseBaseline:
    place = f"cases.{key}"
    fields = _converted({name: block[name] for name in CASE_FIELDS if name in block}, _Fields, path, place)
    metrics = {metric: entry for metric, entry in block.items() if metric not in CASE_FIELDS}
    twice = sorted(metrics.keys() & fields.facts.keys() | fields.facts.keys() & set(CASE_FIELDS))
    if twice:
        raise _mistake(path, f"{place}: {twice[0]} among the facts and beside them, expected it once")
    metrics |= fields.facts
    entries = {
        metric: _entry_of(entry, path, f"{place}.{metric}") for metric, entry in metrics.items() if metric not in GONE
    }
    if not metrics:
        raise _mistake(path, f"{place}: no metric, expected one at least")
    return CaseBaseline(entries, fields.inputs, fields.recording)


def _entry_of(content: Any, path: Path, place: str) -> Entry:
    """The entry that YAML content describes.

    Raises:
        BaselineError: the content is no entry.
    """
    kind: Any = TimedEntry if _is_time(content) else _Fact
    entry: Entry = _converted(content, kind, path, place)
    return entry


def _is_time(entry: object) -> bool:
    """Whether YAML content is the entry of a time."""
    return isinstance(entry, dict) and isinstance(entry.get("sessions"), list)  # Parts are never lists.


def _converted(content: Any, kind: type[T], path: Path, place: str) -> T:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise _mistake(path, f"{place}: {error}" if place else str(error)) from error


def render(baseline: Baseline) -> str:
    """The whole file."""
    recordings = {name: _OneLine(msgspec.to_builtins(each)) for name, each in sorted(baseline.recordings.items())}
    head = _yaml({"schema": SCHEMA, "hardware": baseline.hardware, "recordings": recordings})
    blocks = [textwrap.indent(_yaml({key: _block(case)}), "  ") for key, case in sorted(baseline.cases.items())]
    return head + "cases:\n" + "".join(f"{block}\n" for block in blocks) + "...\n"


def _yaml(content: object) -> str:
    """YAML without broken lines."""
    text: str = yaml.dump(
        content, Dumper=_Dumper, allow_unicode=True, default_flow_style=False, sort_keys=False, width=_WIDTH
    )
    return text


def _block(case: CaseBaseline) -> dict[str, Any]:
    stored = {metric: as_stored(entry) for metric, entry in sorted(case.entries.items())}
    facts = {metric: entry for metric, entry in stored.items() if _is_fact(entry)}
    block = {metric: _line(entry) for metric, entry in stored.items() if metric not in facts}
    fields = {"facts": _OneLine(facts), "inputs": case.inputs, "recording": case.recording}
    return block | {name: field for name, field in fields.items() if field}


def _is_fact(entry: Entry) -> bool:
    """Whether an entry belongs on the line of facts: a number, a short text, or empty parts."""
    if isinstance(entry, str):
        return len(entry) <= _SHORT
    return isinstance(entry, int | float) or entry == {}


def _line(entry: Entry) -> Any:
    if isinstance(entry, TimedEntry):
        anchor = {} if entry.anchor is None else {"anchor": entry.anchor}
        return _OneLine(timer=entry.timer, sessions=entry.sessions, **anchor)
    return _OneLine(entry) if isinstance(entry, dict) else entry


# -- YAML --------------------------------------------------------------------------------------------------------------


_TEXT = "tag:yaml.org,2002:str"


class _OneLine(dict[str, Any]):
    """Fields on one line."""


class _Dumper(yaml.SafeDumper):  # libyaml's dumper writes some names differently, and may be missing.
    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    _OneLine, lambda dumper, fields: dumper.represent_mapping("tag:yaml.org,2002:map", fields.items(), flow_style=True)
)
_Dumper.add_representer(  # PyYAML reads some unquoted line breaks of Unicode as spaces.
    str, lambda dumper, text: dumper.represent_scalar(_TEXT, text, style=None if text.isprintable() else '"')
)
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses repeated keys, and reads only numbers as `render` writes them: no other base or notation, no dates, and
    no number whose length makes reading slow."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":bool"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        known = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
                raise yaml.constructor.ConstructorError(None, None, "a name that is no text", key.start_mark)
            if key.value in known:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} twice", key.start_mark)
            known.add(key.value)
        mapping: dict[str, Any] = super().construct_mapping(node, deep)
        return mapping


for _tag, _number in (
    ("int", r"-?(0|[1-9][0-9]{0,18})$"),
    ("float", r"-?(0|[1-9][0-9]{0,29})\.[0-9]{0,29}(e[-+][0-9]{1,3})?$"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_number), list("-0123456789"))
