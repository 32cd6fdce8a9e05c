"""Parses the text of a baseline file into a `Baseline`, or reports a mistake in it as one error with its line.

Files are edited and merged by people, so nothing is guessed: text in an entry has quotes, numbers have none, and keys
occur once. The file ends with the line `...`; without it, the file counts as cut short. Files may also be hostile: size
and depth are bounded before a tree is built, and anchors and tags are refused.

A file of schema 2 holds once what many cases share: `kernels` with their facts, and long `names`. Files of schema 1
spell these out. Both are read alike, block by block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.model.records.case import kernel_of

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_BYTES = 1_000_000
_MOST_FACTS = 1_000_000  # facts that rows stand for, over all their uses: a small file could stand for a huge one
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
REFERENCE = "$"  # begins the short form of a long name

Part = int | float | str
Row = dict[str, Part]  # metric, without its target -> the kernel's part of it


T = TypeVar("T")


class _Reason(msgspec.Struct, forbid_unknown_fields=True):
    """A reason of several metrics."""

    of: list[str]
    why: str


def identity(folder: str) -> tuple[str, str]:
    """The field that identifies the files of a folder, and its value: ("hardware", "nvidia-h200")."""
    return ("target", folder.removeprefix(_TARGETS)) if folder.startswith(_TARGETS) else ("hardware", folder)


def prefix_of(folder: str) -> str:
    """What the names of a target's metrics begin with, `sm_90.`; empty for a hardware, whose files have no kernels."""
    return f"{folder.removeprefix(_TARGETS)}." if folder.startswith(_TARGETS) else ""


def parse(data: bytes, path: Path, folder: str, suite: str) -> Baseline:
    """Read the bytes of `<root>/<folder>/<suite>.yaml`.

    Raises:
        BaselineError: any mistake, with file, line, found and expected text, and the next step.
    """
    return _Parser(path, folder, suite).baseline(data)


class _Parser:
    def __init__(self, path: Path, folder: str, suite: str) -> None:
        self.path, self.folder, self.suite = path, folder, suite
        self.names: dict[str, str] = {}
        self.rows: dict[str, tuple[str, Row]] = {}  # key -> kernel, facts
        self.facts = 0  # that rows have stood for so far

    def error(self, line: int, found: str, expected: str, step: str = "") -> BaselineError:
        step = step or f"mend line {line}, or restore the file with: git checkout -- {self.path}"
        return BaselineError(f"{self.path}, line {line}: found {found}; expected {expected}; {step}")

    def at(self, node: yaml.Node, found: str, expected: str, step: str = "") -> BaselineError:
        return self.error(_line(node), found, expected, step)

    # -- the file as a whole -------------------------------------------------------------------------------------

    def baseline(self, data: bytes) -> Baseline:
        root = self.root(data)
        fields = self.fields(root, "the file", _FILE_FIELDS)
        for name in ("schema", identity(self.folder)[0], "provenance", "cases"):
            if name not in fields:
                raise self.at(root, f"no field {name}", f"one in a file of {self.folder}")
        self.check_identity(fields)
        self.read_tables(fields)
        return Baseline(
            hardware=self.folder,
            suite=self.suite,
            provenance=self.provenance(fields["provenance"]),
            cases={key: self.case(key, node) for key, node in self.pairs(fields["cases"], "cases").items()},
        )

    def root(self, data: bytes) -> yaml.Node:
        text = self.text_of(data)
        try:
            self.check_structure(text)
            root = yaml.compose(text, Loader=_LOADER)
        except yaml.YAMLError as error:
            line, found = 1, str(error)
            if isinstance(error, yaml.MarkedYAMLError):
                mark = error.problem_mark or error.context_mark
                line = mark.line + 1 if mark is not None else line
                found = ", ".join(filter(None, (error.context, error.problem)))
            elif isinstance(error, yaml.reader.ReaderError):
                line, found = data.count(b"\n", 0, error.position) + 1, error.reason
            raise self.error(line, f"no YAML ({found})", "the fields and cases of a baseline") from error
        if root is None:
            raise self.error(1, "no content", "the fields and cases of a baseline")
        return root

    def text_of(self, data: bytes) -> str:
        if len(data) > _MOST_BYTES:
            step = "split the suite into several test files"
            raise self.error(1, f"{len(data)} bytes", f"at most {_MOST_BYTES}", step)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self.error(line, f"the byte 0x{data[error.start]:02x}", "UTF-8 text") from error
        if conflict := _CONFLICT.search(text):
            line = text.count("\n", 0, conflict.start()) + 1
            step = "resolve the merge: keep the rows and cases of both sides, or record cases named on both again"
            raise self.error(line, "a conflict marker of git", "a merged file", step)
        if not text.rstrip().endswith("\n..."):
            raise self.error(len(text.splitlines()) or 1, "the end of the file", "more cases or the line '...'")
        return text

    def check_structure(self, text: str) -> None:
        """Check, before any tree is built, that there are no anchors, aliases or tags, and that it is not too deep."""
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            mark = getattr(event, "anchor", None) or getattr(event, "tag", None)  # an alias has an anchor, too
            if mark is not None:
                raise self.error(_line(event), f"the anchor, alias or tag {mark!r}", "plain values")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                raise self.error(_line(event), "deeper nesting", "one baseline")

    def check_identity(self, fields: Mapping[str, yaml.Node]) -> None:
        """Check that the file is of this folder, in a form that is read."""
        number = self.number(fields["schema"])
        if number not in READ:
            step = "update perfguard" if number > SCHEMA else ""
            known = " or ".join(map(str, READ))
            raise self.at(fields["schema"], f"schema {number}", f"schema {known}, which this perfguard reads", step)
        name, wanted = identity(self.folder)
        named = self.text(fields[name])
        if named != wanted:
            step = f"move the file to the folder of {named}, or remove it and record with --perfguard-update"
            raise self.at(fields[name], f"{name} {named}", f"{name} {wanted}, as the folder says", step)

    # -- what many cases share -----------------------------------------------------------------------------------

    def read_tables(self, fields: Mapping[str, yaml.Node]) -> None:
        if "names" in fields:
            self.names = {short: self.text(name) for short, name in self.pairs(fields["names"], "names").items()}
        kernels = self.pairs(fields["kernels"], "kernels") if "kernels" in fields else {}
        if kernels and not prefix_of(self.folder):
            raise self.at(fields["kernels"], "kernels in a file of a hardware", "them in the files of targets/")
        for kernel, rows in kernels.items():
            for key, facts in self.pairs(rows, f"the kernel {kernel}").items():
                if key in self.rows:
                    raise self.at(facts, f"the row {key} twice in kernels", "each name once")
                self.rows[key] = kernel, {name: self.part(each) for name, each in self.pairs(facts, key).items()}

    def kernels_of(self, case: str, node: yaml.Node) -> dict[str, Entry]:
        """The metrics of the case that its kernels' rows hold."""
        found: dict[str, dict[str, Part]] = {}
        for part, value in self.pairs(node, "binaries").items():
            key = self.text(value)
            kernel, facts = self.rows.get(key, (None, {}))
            if kernel != kernel_of(part):
                other = f"no row {key} in kernels" if kernel is None else f"the row {key} of {kernel}"
                # Two branches can come to this without a conflict: one records all cases of a row anew, and the row
                # goes; the other adds a case that names it.
                step = f"take the row from the other side of the merge, or remove {case} and record it again"
                raise self.at(value, f"{other} for {part}", f"a row of {kernel_of(part)}", step)
            self.facts += len(facts)
            if self.facts > _MOST_FACTS:
                raise self.at(value, f"rows of more than {_MOST_FACTS} facts", "fewer", "split the suite")
            for name, fact in facts.items():
                found.setdefault(f"{prefix_of(self.folder)}{name}", {})[part] = fact
        return dict(found)

    # -- one case ------------------------------------------------------------------------------------------------

    def case(self, key: str, node: yaml.Node) -> CaseBaseline:
        pairs = self.pairs(node, f"the case {key}")
        entries = {name: self.entry(value) for name, value in pairs.items() if name not in CASE_FIELDS}
        for name, read in (("facts", self.facts_of), ("binaries", self.kernels_of)):
            more = read(key, pairs[name]) if name in pairs else {}
            if twice := sorted(more.keys() & entries.keys()):
                raise self.at(pairs[name], f"{twice[0]} in {name} and elsewhere in {key}", "each metric once")
            entries |= more
        if not entries:
            raise self.at(node, f"no metric in {key}", "at least one, such as launches: 1")
        return CaseBaseline(
            entries=entries,
            inputs=self.text(pairs["inputs"]) if "inputs" in pairs else "",
            reasons=self.reasons(pairs["reasons"]) if "reasons" in pairs else {},
            provenance=self.provenance(pairs["provenance"]) if "provenance" in pairs else None,
        )

    def facts_of(self, _: str, node: yaml.Node) -> dict[str, Entry]:
        return {name: self.entry(value) for name, value in self.pairs(node, "facts").items()}

    def reasons(self, node: yaml.Node) -> dict[str, str]:
        """Metric -> reason, from `metric: "…"`, or from a list of `{of: [metric, metric], why: "…"}`."""
        if isinstance(node, yaml.SequenceNode):
            reasons = self.converted(node, list[_Reason], "reasons")
            return {metric: reason.why for reason in reasons for metric in reason.of}
        return {name: self.text(value) for name, value in self.pairs(node, "reasons").items()}

    def entry(self, node: yaml.Node) -> Entry:
        if isinstance(node, yaml.SequenceNode):
            return [self.item(item) for item in node.value]
        if isinstance(node, yaml.ScalarNode):
            return self.part(node)
        parts = self.pairs(node, "a metric")
        if isinstance(parts.get("sessions"), yaml.SequenceNode):  # a part is no list: a kernel may have any name
            return self.converted(node, TimedEntry, "a time {sessions: [61.2, 61.3], timer: name}, in µs")
        return {name: self.part(value) for name, value in parts.items()}

    def item(self, node: yaml.Node) -> str:
        """An item of a list: a text, or the short form of a long name."""
        text = self.text(node)
        if getattr(node, "style", None) or not text.startswith(REFERENCE):
            return text
        if text not in self.names:
            raise self.at(node, f"no {text} in names", "a name of the table, or text in quotes")
        return self.names[text]

    def part(self, node: yaml.Node) -> Part:
        return str(node.value) if isinstance(node, yaml.ScalarNode) and node.style else self.number(node)

    def provenance(self, node: yaml.Node) -> Provenance:
        self.fields(node, "provenance", Provenance.__struct_fields__)
        return self.converted(node, Provenance, "a provenance")

    # -- nodes ---------------------------------------------------------------------------------------------------

    def converted(self, node: yaml.Node, kind: type[T], what: str) -> T:
        """The content of a node as `kind`, which says what is a number."""
        try:
            return msgspec.convert(self.plain(node), kind, strict=False)
        except msgspec.ValidationError as error:
            raise self.at(node, str(error), what) from error

    def plain(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item) for item in node.value]
        if isinstance(node, yaml.MappingNode):
            return {name: self.plain(value) for name, value in self.pairs(node, "fields").items()}
        return self.text(node)

    def pairs(self, node: yaml.Node, what: str) -> dict[str, yaml.Node]:
        """Key -> the node of its value."""
        if not isinstance(node, yaml.MappingNode):
            raise self.at(node, f"{_named(node)} for {what}", "fields, one 'name: value' each")
        pairs: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self.text(key)
            if name in pairs:
                raise self.at(key, f"{name} twice in {what}", "each name once")
            pairs[name] = value
        return pairs

    def fields(self, node: yaml.Node, what: str, known: Sequence[str]) -> dict[str, yaml.Node]:
        pairs = self.pairs(node, what)
        for name, value in pairs.items():
            if name not in known:
                raise self.at(value, f"the unknown field {name} in {what}", f"only {', '.join(known)}")
        return pairs

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
