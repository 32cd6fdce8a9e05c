"""Parses the text of a baseline file into a `Baseline`, or reports a mistake in it as one error with its line.

Files are edited and merged by people, so nothing is guessed: text in an entry has quotes, numbers have none, and keys
occur once. The file ends with the line `...`; without it, the file counts as cut short.

Files of schema 1 spell out what a file of schema 2 may hold once, or on one line (`perfguard.store.baseline_tables`).
Both are read alike, block by block, so a block of the old form may stand in a file of the new one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.store.baseline_tables import REFERENCE, kernel_of, prefix_of

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_BYTES = 1_000_000
_MOST_REPEATED = 1_000_000  # characters that rows and names stand for, over all their uses: as many as without tables
_DEEPEST = 8  # levels of nesting; a file of ours has five
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,29})(\.[0-9]*)?(e[-+]?[0-9]{1,3})?", re.IGNORECASE)
_NOTHING = ("", "~", "null")
_FILE_FIELDS = ("schema", "hardware", "target", "provenance", "names", "kernels", "cases")
_CONFLICT = re.compile(r"^(<{7}|\|{7}|={7}|>{7})( |$)", re.MULTILINE)
_TARGETS = "targets/"

#: The form of the files that are written, and the forms that are read.
SCHEMA = 2
READ = (1, 2)
#: Fields of a case's block other than metrics.
CASE_FIELDS = ("inputs", "reasons", "provenance", "facts", "binaries")


@dataclass(frozen=True)
class Document:
    """A parsed file: its content, and its text in pieces, so that unchanged pieces stay as they are.

    `head` runs up to the tables, `blocks` holds each case's lines (with comments right above it).
    """

    schema: int
    baseline: Baseline
    head: str
    blocks: dict[str, str]


def identity(folder: str) -> tuple[str, str]:
    """The field that identifies the files of a folder, and its value: ("hardware", "nvidia-h200")."""
    return ("target", folder.removeprefix(_TARGETS)) if folder.startswith(_TARGETS) else ("hardware", folder)


def parse(data: bytes, path: Path, folder: str, suite: str) -> Document:
    """Read the bytes of `<root>/<folder>/<suite>.yaml`.

    Raises:
        BaselineError: any mistake, with file, line, found and expected text, and the next step.
    """
    return _Parser(path, folder, suite).document(data)


class _Parser:
    def __init__(self, path: Path, folder: str, suite: str) -> None:
        self.path, self.folder, self.suite = path, folder, suite
        self.names: dict[str, str] = {}
        self.rows: dict[str, tuple[str, dict[str, int | float | str]]] = {}  # key -> kernel, facts
        self.repeated = 0

    def error(self, line: int, found: str, expected: str, step: str = "") -> BaselineError:
        step = step or f"mend line {line}, or restore the file with: git checkout -- {self.path}"
        return BaselineError(f"{self.path}, line {line}: found {found}; expected {expected}; {step}")

    def at(self, node: yaml.Node, found: str, expected: str, step: str = "") -> BaselineError:
        return self.error(_line(node), found, expected, step)

    # -- the file as a whole -------------------------------------------------------------------------------------

    def document(self, data: bytes) -> Document:
        text = self.text_of(data)
        self.check_structure(text)
        root = self.composed(text)
        fields = self.fields(root, "the file", _FILE_FIELDS)
        schema = self.check_identity(fields)
        for name in ("provenance", "cases"):
            if name not in fields:
                raise self.error(1, f"no field {name}", f"the fields {', '.join(self.required)}")
        provenance = self.provenance(fields["provenance"])
        self.read_tables(fields)
        pairs = self.pairs(fields["cases"], "cases")
        cases = {key: self.case(key, value) for key, (_, value) in pairs.items()}
        baseline = Baseline(hardware=self.folder, suite=self.suite, provenance=provenance, cases=cases)
        starts = {key: _line(node) - 1 for key, (node, _) in pairs.items()}
        top = {name: _line(key) - 1 for name, (key, _) in self.pairs(root, "the file").items()}
        head, blocks = _pieces(text, min(top[name] for name in ("names", "kernels", "cases") if name in top), starts)
        return Document(schema, baseline, head, blocks)

    @property
    def required(self) -> tuple[str, ...]:
        return "schema", identity(self.folder)[0], "provenance", "cases"

    def text_of(self, data: bytes) -> str:
        if len(data) > _MOST_BYTES:
            step = "split the suite into several test files"
            raise self.error(1, f"{len(data)} bytes", f"at most {_MOST_BYTES}", step)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self.error(line, f"the byte 0x{data[error.start]:02x}", "UTF-8 text") from error
        if not text.strip():
            raise self.error(1, "an empty file", f"the fields {', '.join(self.required)}")
        conflict = _CONFLICT.search(text)
        if conflict:
            line = text.count("\n", 0, conflict.start()) + 1
            step = "resolve the merge: keep the rows and cases of both sides, or record cases named on both again"
            raise self.error(line, "a conflict marker of git", "a merged file", step)
        return text

    def check_structure(self, text: str) -> None:
        """Check, before any tree is built, for one document without aliases or tags, not too deep, closed by `...`."""
        depth = documents = 0
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                line = _line(event)
                for kind in ("anchor", "tag"):  # an alias has an anchor, too
                    mark = getattr(event, kind, None)
                    if mark is not None:
                        raise self.error(line, f"the {kind} {mark!r}", "plain values")
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                elif isinstance(event, yaml.CollectionStartEvent):
                    depth += 1
                elif isinstance(event, yaml.CollectionEndEvent):
                    depth -= 1
                elif isinstance(event, yaml.DocumentEndEvent) and not event.explicit:
                    raise self.error(len(text.splitlines()), "the end of the file", "more cases or the line '...'")
                if depth > _DEEPEST or documents > 1:
                    raise self.error(line, "deeper nesting" if depth else "a second document", "one baseline")
        except yaml.YAMLError as error:
            raise self.not_yaml(error, text) from error

    def composed(self, text: str) -> yaml.Node:
        node = yaml.compose(text, Loader=_LOADER)
        if node is None:
            raise self.error(1, "no content", f"the fields {', '.join(self.required)}")
        return node

    def not_yaml(self, error: yaml.YAMLError, text: str) -> BaselineError:
        line, found = len(text.splitlines()), str(error)
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
            line = min(mark.line + 1, line) if mark is not None else line
            found = ", ".join(part for part in (error.context, error.problem) if part)
        elif isinstance(error, yaml.reader.ReaderError):
            line, found = _line_of_control(text, line), error.reason
        return self.error(line, f"no YAML ({found})", "the fields and cases of a baseline")

    def check_identity(self, fields: dict[str, yaml.Node]) -> int:
        """Check that the file is of this folder, in a form that is read; answers the form."""
        schema = fields.get("schema")
        if schema is None:
            raise self.error(1, "no field schema", f"schema: {SCHEMA}")
        number = self.number(schema)
        if number not in READ:
            step = "update perfguard" if number > SCHEMA else ""
            known = " or ".join(map(str, READ))
            raise self.at(schema, f"schema {number}", f"schema {known}, which this perfguard reads", step)
        name, wanted = identity(self.folder)
        other = fields.get("target" if name == "hardware" else "hardware")
        if other is not None or name not in fields:
            found = f"no field {name}" if other is None else "a file of another kind of folder"
            raise self.error(1 if other is None else _line(other), found, f"{name}: {wanted}")
        named = self.text(fields[name])
        if named != wanted:
            step = f"move the file to the folder of {named}, or remove it and record with --perfguard-update"
            raise self.at(fields[name], f"{name} {named}", f"{name} {wanted}, as the folder says", step)
        return int(number)

    # -- what many cases share -----------------------------------------------------------------------------------

    def read_tables(self, fields: dict[str, yaml.Node]) -> None:
        if "names" in fields:
            self.names = {short: self.text(name) for short, (_, name) in self.pairs(fields["names"], "names").items()}
        kernels = self.pairs(fields["kernels"], "kernels") if "kernels" in fields else {}
        if kernels and not prefix_of(self.folder):
            raise self.at(fields["kernels"], "kernels in a file of a hardware", "them in the files of targets/")
        for kernel, (_, rows) in kernels.items():
            for key, (place, facts) in self.pairs(rows, f"the kernel {kernel}").items():
                if key in self.rows:
                    raise self.at(place, f"the row {key} twice in kernels", "each name once")
                pairs = self.pairs(facts, f"the row {key}")
                self.rows[key] = kernel, {name: self.part(value) for name, (_, value) in pairs.items()}

    def kernels_of(self, case: str, node: yaml.Node) -> dict[str, Entry]:
        """The metrics of the case that its kernels' rows hold."""
        found: dict[str, dict[str, int | float | str]] = {}
        for part, (_, value) in self.pairs(node, "binaries").items():
            key = self.text(value)
            kernel, facts = self.rows.get(key, (None, {}))
            if kernel != kernel_of(part):
                other = f"no row {key} in kernels" if kernel is None else f"the row {key} of {kernel}"
                # Two branches can come to this without a conflict: one records all cases of a row anew, and the row
                # goes; the other adds a case that names it.
                step = f"take the row from the other side of the merge, or remove {case} and record it again"
                raise self.at(value, f"{other} for {part}", f"a row of {kernel_of(part)}", step)
            self.repeat(value, sum(len(name) + len(str(fact)) + 1 for name, fact in facts.items()))
            for name, fact in facts.items():
                found.setdefault(f"{prefix_of(self.folder)}{name}", {})[part] = fact
        return dict(found)

    def repeat(self, node: yaml.Node, characters: int) -> None:
        """Bound what a small file can stand for."""
        self.repeated += characters
        if self.repeated > _MOST_REPEATED:
            found = f"more than {_MOST_REPEATED} characters in rows and names, over all their uses"
            raise self.at(node, found, "fewer", "split the suite into several test files")

    # -- one case ------------------------------------------------------------------------------------------------

    def case(self, key: str, node: yaml.Node) -> CaseBaseline:
        pairs = {name: value for name, (_, value) in self.pairs(node, f"the case {key}").items()}
        entries = {name: self.entry(value) for name, value in pairs.items() if name not in CASE_FIELDS}
        for field, read in (("facts", self.facts), ("binaries", self.kernels_of)):
            more = read(key, pairs[field]) if field in pairs else {}
            twice = next((name for name in more if name in entries), None)
            if twice is not None:
                raise self.at(pairs[field], f"{twice} in {field} and elsewhere in {key}", "each metric once")
            entries |= more
        if not entries:
            raise self.at(node, f"no metric in {key}", "at least one, such as launches: 1")
        return CaseBaseline(
            entries=entries,
            inputs=self.text(pairs["inputs"]) if "inputs" in pairs else "",
            reasons=self.reasons(pairs["reasons"]) if "reasons" in pairs else {},
            provenance=self.provenance(pairs["provenance"]) if "provenance" in pairs else None,
        )

    def facts(self, _: str, node: yaml.Node) -> dict[str, Entry]:
        return {name: self.entry(value) for name, (_, value) in self.pairs(node, "facts").items()}

    def reasons(self, node: yaml.Node) -> dict[str, str]:
        """Metric -> reason, from `metric: "…"`, or from a list of `{of: [metric, metric], why: "…"}`."""
        if not isinstance(node, yaml.SequenceNode):
            return {name: self.text(value) for name, (_, value) in self.pairs(node, "reasons").items()}
        reasons: dict[str, str] = {}
        for item in node.value:
            fields = self.fields(item, "a reason", ("of", "why"))
            of = fields.get("of")
            if "why" not in fields or not isinstance(of, yaml.SequenceNode):
                raise self.at(item, f"only {', '.join(fields) or 'nothing'}", '{of: [a_metric], why: "…"}')
            for metric in of.value:
                if self.text(metric) in reasons:
                    raise self.at(metric, f"{self.text(metric)} twice in reasons", "each metric once")
                reasons[self.text(metric)] = self.text(fields["why"])
                self.repeat(metric, len(reasons[self.text(metric)]))
        return reasons

    def entry(self, node: yaml.Node) -> Entry:
        if isinstance(node, yaml.SequenceNode):
            return [self.item(item) for item in node.value]
        if isinstance(node, yaml.ScalarNode):
            return str(node.value) if node.style else self.number(node)
        parts = self.pairs(node, "a metric")
        names_of_parts = all(_is_part(value) for _, value in parts.values())  # a kernel may be called `timer`
        if names_of_parts or not {"sessions", "timer"} & set(parts):
            return {name: self.part(value) for name, (_, value) in parts.items()}
        fields = self.fields(node, "a timed metric", ("sessions", "timer", "anchor"))
        if not {"sessions", "timer"} <= set(fields):
            raise self.at(node, f"only {', '.join(fields) or 'nothing'}", "{sessions: [61.2, 61.3], timer: name}")
        sessions, timer = fields["sessions"], self.text(fields["timer"])
        anchor = self.time(fields["anchor"]) if "anchor" in fields else None
        if not isinstance(sessions, yaml.SequenceNode):
            raise self.at(sessions, _named(sessions), "the session values in µs, as [61.2, 61.3]")
        values = [self.number(item) for item in sessions.value]
        try:
            return msgspec.convert({"sessions": values, "timer": timer, "anchor": anchor}, TimedEntry)
        except msgspec.ValidationError as error:
            wrong = next((item for item in sessions.value if not 0 < self.number(item) < 1e12), sessions)
            raise self.at(wrong, _named(wrong), "1 to 20 times in µs, each above 0") from error

    def item(self, node: yaml.Node) -> str:
        """An item of a list: a text, or the short form of a long name."""
        text = self.text(node)
        if getattr(node, "style", None) or not text.startswith(REFERENCE):
            return text
        if text not in self.names:
            raise self.at(node, f"no {text} in names", "a name of the table, or text in quotes")
        self.repeat(node, len(self.names[text]))
        return self.names[text]

    def time(self, node: yaml.Node) -> float:
        value = float(self.number(node))
        if not 0 < value < 1e12:
            raise self.at(node, _named(node), "a time in µs, above 0")
        return value

    def part(self, node: yaml.Node) -> int | float | str:
        return self.text(node) if isinstance(node, yaml.ScalarNode) and node.style else self.number(node)

    def provenance(self, node: yaml.Node) -> Provenance:
        fields = self.fields(node, "provenance", Provenance.__struct_fields__)
        watts, clock = fields.pop("power_limit_watts", None), fields.pop("clock_mhz", None)
        values = {name: self.text(value) for name, value in fields.items()}
        return Provenance(
            **values,
            power_limit_watts=None if watts is None else float(self.number(watts)),
            clock_mhz=None if clock is None else int(self.number(clock)),
        )

    # -- nodes ---------------------------------------------------------------------------------------------------

    def pairs(self, node: yaml.Node, what: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key -> its node and its value's node."""
        if not isinstance(node, yaml.MappingNode):
            raise self.at(node, f"{_named(node)} for {what}", "fields, one 'name: value' each")
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = self.text(key)
            if name in pairs:
                first = _line(pairs[name][0])
                raise self.at(key, f"{name} twice in {what} (first in line {first})", "each name once")
            pairs[name] = key, value
        return pairs

    def fields(self, node: yaml.Node, what: str, known: Sequence[str]) -> dict[str, yaml.Node]:
        pairs = self.pairs(node, what)
        for name, (key, _) in pairs.items():
            if name not in known:
                raise self.at(key, f"the unknown field {name} in {what}", f"only {', '.join(known)}")
        return {name: value for name, (_, value) in pairs.items()}

    def text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or not (node.style or node.value not in _NOTHING):
            raise self.at(node, _named(node), "text")
        return str(node.value)

    def number(self, node: yaml.Node) -> int | float:
        if isinstance(node, yaml.ScalarNode) and not node.style:
            if _INTEGER.fullmatch(node.value):
                return int(node.value)
            if _DECIMAL.fullmatch(node.value) and math.isfinite(float(node.value)):
                return float(node.value)
        raise self.at(node, _named(node), "a finite number (text as an entry stands in quotes)")


def _line(marked: yaml.Node | yaml.Event) -> int:
    return marked.start_mark.line + 1 if marked.start_mark is not None else 1


def _named(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        shown = node.value if len(node.value) <= 60 else f"{node.value[:59]}…"
        return f"the text {shown!r}" if node.style else f"'{shown}'" if shown else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "fields"


def _is_part(node: yaml.Node) -> bool:
    """Whether it is quoted text or a number, as parts are. The timer of a time is neither."""
    return isinstance(node, yaml.ScalarNode) and bool(
        node.style or _INTEGER.fullmatch(node.value) or _DECIMAL.fullmatch(node.value)
    )


def _line_of_control(text: str, otherwise: int) -> int:
    """The line of the first character that YAML forbids."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else otherwise


def _pieces(text: str, tables: int, starts: dict[str, int]) -> tuple[str, dict[str, str]]:
    """Cut the lines at the tables and at the cases' first lines. A comment right above a case belongs to it."""
    lines = text.split("\n")
    end = max((number for number, line in enumerate(lines) if line.rstrip() == "..."), default=len(lines))
    cuts = []
    for start in starts.values():
        while start > 0 and lines[start - 1].lstrip().startswith("#"):
            start -= 1
        cuts.append(start)
    blocks = {
        key: "\n".join(lines[start:stop]).rstrip() + "\n"
        for key, (start, stop) in zip(starts, itertools.pairwise([*cuts, end]), strict=True)
    }
    return "\n".join(lines[:tables]).rstrip() + "\n", blocks
