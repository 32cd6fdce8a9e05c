"""Finds the causes of failing findings: kernels, or lines of Python, that differ from the base.

A change of a kernel affects every case that launches it. It is reported once, with the number of cases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfguard.model.records import Better, CaseId, CaseResult, Reading, Report, Value, Verdict, Word
from perfguard.model.records.code import CODE, CONFIGURATION, kernel_of, same_code
from perfguard.model.units import Unit, format_move
from perfguard.render.findings import Cause, Finding
from perfguard.render.words import MOST_OF_A_VALUE, because, cause

#: Metrics whose details (kernels, guards, breaks) are causes. Names of operators are not: they point to no line.
NAMED = {"launches", "recompiles", "graph_breaks"}
LINE = re.compile(r"\S+\.py:\d+ in [\w<>]+")
_NUMBER = re.compile(r":\d+(?= in )")
_PLACE = re.compile(r"[\w+-][\w./+-]*\.py(:[1-9]\d{0,8})?", re.ASCII)
_OF_A_KERNEL = re.compile(r"`(.+)`: (.+)", re.DOTALL)  # A part of `configuration`.
_ITS_CODE = "its code"
_MOST_APART = 3  # Findings of one unknown cause that are shown one by one.
_Changes = dict[str, list[str]]  # Kernel or line -> what changed in it.


@dataclass(frozen=True)
class Move:
    """A change of one metric in one test, as a whole or in one part."""

    metric: str  # The name has no target.
    before: int | float | str
    after: int | float | str
    unit: Unit
    better: Better = Better.LOWER
    parts: tuple[str, ...] = ()  # Details with more entries than before, if they are not causes themselves.
    pairs: Verdict | None = None  # The verdict on the time of a kernel by process pairs.

    def __str__(self) -> str:
        """`0 -> 12`."""
        return format_move(self.before, self.after, self.unit, MOST_OF_A_VALUE)

    @property
    def ratio(self) -> float | None:
        """The value after over that before; None if either is not a positive number."""
        if isinstance(self.before, int | float) and isinstance(self.after, int | float):
            return self.after / self.before if min(self.before, self.after) > 0 else None
        return None


def short_name(reading: Reading) -> str:
    """The metric without its target."""
    return reading.metric.removeprefix(f"{reading.target}.") if reading.target else reading.metric


def added(result: CaseResult, detail: Reading) -> Iterator[str]:
    """The entries of a detail (places, operators, reasons) that its record lacks or has fewer of."""
    verdict = next((each for each in result.verdicts if each.metric == detail.metric), None)
    before = None if verdict is None else verdict.before
    if isinstance(detail.value, dict):
        known = before if isinstance(before, dict) else {}
        for part, count in detail.value.items():
            then = known.get(part, 0)
            if isinstance(count, int | float) and isinstance(then, int | float) and count > then:
                yield detail.lines.get(part, part)
    elif isinstance(detail.value, list):
        rest = Counter(before if isinstance(before, list) else [])
        for entry in detail.value:
            if rest[entry] > 0:
                rest[entry] -= 1
            else:
                yield detail.lines.get(entry, entry)


def moved_parts(
    before: Value | None, after: Value | None, better: Better, *, for_the_worse: bool
) -> Iterator[tuple[str, int | float | str, int | float | str]]:
    """(part, before, now) for each part that changed for the worse, or for the better; for all without a direction."""
    then, now = (value if isinstance(value, dict) else {} for value in (before, after))
    for part in dict.fromkeys((*now, *then)):
        old, new = then.get(part, 0), now.get(part, 0)
        if old == new:
            continue
        if isinstance(old, int | float) and isinstance(new, int | float) and better is not Better.SAME:
            worse = (new > old) is (better is Better.LOWER)
            if worse is not for_the_worse:
                continue
        yield part, old, new


def whole(verdict: Verdict, metric: str) -> Move:
    """The change of a whole metric; a list counts as the number of its entries."""
    return Move(metric, _plain(verdict.before), _plain(verdict.after), verdict.unit)


def _plain(value: Value | None) -> int | float | str:
    if isinstance(value, list):
        return f"{len(value)} entries"
    return value if isinstance(value, int | float | str) else 0


@dataclass(frozen=True)
class _Evidence:
    """The differences of one case from its base that may be causes.

    Attributes:
        kernels: Triton kernels with other configurations or code, the most precise evidence only.
        lines: lines of Python with more copies, host reads, graph breaks …
        launched: kernels, of any kind, that are launched more often than before.
        places: kernel -> the file and line of its definition.
    """

    kernels: _Changes
    lines: _Changes
    launched: _Changes
    places: dict[str, str]

    def suspects(self, reading: Reading | None) -> _Changes:
        """The possible causes of a verdict on `reading`. A kernel explains times, results and properties of binaries; a
        line explains what the host counts."""
        if reading is None or reading.timed or reading.target:
            return self.kernels or self.lines or self.launched
        return self.lines or self.launched or self.kernels


def bases_of(lane: str, report: Report) -> dict[tuple[str, CaseId], CaseResult]:
    """(lane, case) -> the base's readings, for the cases about which a run asked its base."""
    cases = (case for pairing in report.pairings for case in pairing.cases)
    return {(lane, case.id): case.base for case in cases if case.base is not None}


def causes_of(findings: Sequence[Finding], bases: Mapping[tuple[str, CaseId], CaseResult] | None = None) -> list[Cause]:
    """The causes of failing findings, the most urgent first.

    Each finding has one cause: that of an observed test its own; otherwise, of the kernels or lines that differ in its
    case, the one that differs in most findings.

    A case without such a difference shares the cause of its test's other cases, since a wrong result ends a case before
    its kernels are read. If these have none either, the test itself is named, once for each worst metric of its cases.

    Args:
        bases: those of all lanes (`bases_of`).
    """
    known: dict[int, _Evidence] = {}
    suspects: list[_Changes] = []
    for finding in findings:
        result = finding.result
        if id(result) not in known:
            known[id(result)] = _evidence(result, (bases or {}).get((finding.lane, result.id)))
        suspects.append(_suspects(finding, known[id(result)]))
    counts = Counter(name for each in suspects for name in each)
    names = [max(each, key=counts.__getitem__, default="") for each in suspects]
    of_test: dict[str, Counter[str]] = {}
    places: dict[str, str] = {}
    for finding, name in zip(findings, names, strict=True):
        if name and finding.verdict.word is not Word.BROKEN:
            of_test.setdefault(finding.kernel, Counter())[name] += 1
            if place := _place(name, known[id(finding.result)]):
                places.setdefault(name, place)
    leading: dict[tuple[str, CaseId], Finding] = {}  # The worst finding of each case.
    for finding in sorted(findings, key=lambda each: each.urgency):
        leading.setdefault((finding.lane, finding.result.id), finding)
    causes: dict[tuple[str, ...], Cause] = {}
    for finding, found, changes in zip(findings, names, suspects, strict=True):
        shared = of_test.get(finding.kernel)
        name = found or (shared.most_common(1)[0][0] if shared else "")
        place = _place(name, known[id(finding.result)]) or places.get(name, "")
        key: tuple[str, ...] = name, place  # Two files may have kernels of one name.
        if not name:
            name, place = finding.kernel, finding.result.case.nodeid.partition("::")[0]
            first = leading[finding.lane, finding.result.id].verdict
            key = name, place, first.word, first.metric
        row = causes.setdefault(key, Cause(name, [], place if _is_safe(place) else ""))
        # Tests have other numbers of one change: those of the worst test are shown.
        known_word = finding.cause and any(each.verdict.word is finding.verdict.word for each in row.findings)
        row.findings.append(finding)
        if not known_word:
            row.changes.extend(change for change in changes.get(name, []) if change not in row.changes)
    for row in causes.values():
        row.findings.sort(key=lambda finding: finding.urgency)
    return sorted(causes.values(), key=lambda row: row.worst.urgency)


def rows_of(findings: Sequence[Finding], causes: Sequence[Cause]) -> list[Cause]:
    """Some of the findings of `causes` by their causes, the most urgent first. Few findings whose cause is unknown stay
    apart, since their reasons may differ."""
    cause_of = {id(finding): each for each in causes for finding in each.findings}
    by_cause: dict[int, list[Finding]] = {}
    for finding in findings:
        by_cause.setdefault(id(cause_of[id(finding)]), []).append(finding)
    rows = []
    for found in by_cause.values():
        row = cause_of[id(found[0])]
        apart = not row.changes and len(found) <= _MOST_APART
        rows += [replace(row, findings=each) for each in ([[one] for one in found] if apart else [found])]
    return sorted(rows, key=lambda row: row.worst.urgency)


def reasons_of(findings: Sequence[Finding]) -> list[Cause]:
    """Findings that fail nothing by verdict and reason, the most urgent first; each reason is named as a cause."""
    rows: dict[tuple[Word, str], Cause] = {}
    for finding in sorted(findings, key=lambda each: each.urgency):
        verdict = finding.verdict
        name = cause(verdict.reason) or verdict.word.value
        rows.setdefault((verdict.word, name), Cause(name, [])).findings.append(finding)
    return list(rows.values())


def _suspects(finding: Finding, evidence: _Evidence) -> _Changes:
    if finding.cause:
        why = because(finding.verdict)
        return {finding.cause: [why] if why else finding.verdict.reason.splitlines()}
    if finding.verdict.word is Word.BROKEN:
        return {text: []} if (text := cause(finding.verdict.reason)) else {}
    return evidence.suspects(finding.reading)


def _place(name: str, evidence: _Evidence) -> str:
    """`kernels/rows.py:44` of a kernel or line; "" if unknown."""
    text = name if LINE.fullmatch(name) else evidence.places.get(name, "")
    return text.partition(" in ")[0]


def _is_safe(place: str) -> bool:
    """Whether a place can be a part of a link: a relative path without steps upwards."""
    return _PLACE.fullmatch(place) is not None and ".." not in place.split("/")


def _evidence(result: CaseResult, base: CaseResult | None) -> _Evidence:
    lines, launched = _Changes(), _Changes()
    for verdict in result.verdicts:
        reading = result.reading(verdict.metric)
        if reading is None or reading.timed or reading.target or verdict.word is not Word.CHANGED:
            continue
        text = f"{verdict.metric} {whole(verdict, verdict.metric)}"
        details = [each for each in result.readings if each.details == verdict.metric]
        entries = [entry for detail in details for entry in added(result, detail)]
        places = [match[0] for entry in entries if (match := LINE.search(entry))]
        places = places or _noted(reading, None if base is None else base.reading(verdict.metric), verdict.before)
        for place in dict.fromkeys(places):
            lines.setdefault(place, []).append(text)
        for name in dict.fromkeys(entries if verdict.metric in NAMED else []):
            launched.setdefault(name, []).append(text)
    code = result.reading(CODE)
    return _Evidence(_kernels(result), lines, launched, {} if code is None else code.lines)


def _noted(reading: Reading, base: Reading | None, before: Value | None) -> list[str]:
    """The places in the note of a reading that the base's note lacks, or all if nothing was counted before or there is
    only one. Line numbers change with any edit above the line, so that functions are compared."""
    noted = list(dict.fromkeys(LINE.findall(reading.note)))
    if base is not None and base.note:
        then = {_NUMBER.sub("", place) for place in LINE.findall(base.note)}
        new = [place for place in noted if _NUMBER.sub("", place) not in then]
        return new or noted[: len(noted) == 1]
    return noted if len(noted) == 1 or not before else []


def _kernels(result: CaseResult) -> _Changes:
    """Kernels whose configuration differs from the base's; otherwise those with other code, if possible only such whose
    binaries got worse; otherwise those with worse binaries."""
    configured, code = _Changes(), _Changes()
    compiled: dict[str, dict[str, list[str]]] = {}  # kernel -> change -> targets
    for verdict in result.verdicts:
        reading, before, after = result.reading(verdict.metric), verdict.before, verdict.after
        if (
            reading is None
            or verdict.word is Word.UNCHANGED
            or not (isinstance(before, dict) and isinstance(after, dict))
        ):
            continue
        for part, now in after.items():
            then = before.get(part)
            if reading.metric == CODE and not same_code(str(then), str(now)):
                code[kernel_of(part)] = [_ITS_CODE]
            elif (
                reading.metric == CONFIGURATION and then not in (None, now) and (found := _OF_A_KERNEL.fullmatch(part))
            ):
                change = f"{found[2]} {format_move(str(then), str(now), Unit.TEXT, MOST_OF_A_VALUE)}"
                configured.setdefault(found[1], []).append(change)
        for part, then, now in moved_parts(before, after, reading.better, for_the_worse=True) if reading.target else ():
            change = f"{short_name(reading)} {format_move(then, now, reading.unit, MOST_OF_A_VALUE)}"
            compiled.setdefault(kernel_of(part), {}).setdefault(change, []).append(reading.target)
    worse = {
        kernel: [f"{change} on {', '.join(targets)}" for change, targets in changes.items()]
        for kernel, changes in compiled.items()
    }
    return configured or {kernel: worse[kernel] for kernel in code if kernel in worse} or code or worse
