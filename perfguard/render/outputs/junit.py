"""JUnit XML, for CI systems that show tests: a suite per lane, a test per guarded case.

It agrees with pytest's own `--junitxml`: WRONG, SLOWER and CHANGED are failures. Cases that could not be measured are
errors. Cases that were not judged are skipped, with a reason. A lane without a report is an error, not an empty suite.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from perfguard.model.records import CaseResult, Verdict, Word
from perfguard.render.findings import QUIET
from perfguard.render.overview import Histories, LaneView, Overview
from perfguard.render.words import describe_verdict, environment, tally

# Characters that XML 1.0 does not allow, not even as entities.
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ERROR, _FAILURE, _SKIPPED = "error", "failure", "skipped"


def render(overview: Overview, histories: Histories) -> str:
    """The whole document. Times are in seconds."""
    root = ET.Element("testsuites", name="perfguard")
    for lane in overview.lanes:
        suite = _suite(lane)
        _count(suite)
        root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode")


def _suite(lane: LaneView) -> ET.Element:
    report = lane.report
    suite = ET.Element("testsuite", name=_legal(lane.name))
    if report is None:
        _outcome(_test(suite, "", "report"), _ERROR, "no result", lane.problem or "no report came")
        return suite
    suite.set("timestamp", _legal(report.started))
    properties = ET.SubElement(suite, "properties")
    ET.SubElement(properties, "property", name="environment", value=_legal(environment(report)))
    ET.SubElement(properties, "property", name="verdicts", value=tally(lane.counts))
    ET.SubElement(properties, "property", name="guarded", value=lane.guarded)
    if lane.undecided.findings:
        ET.SubElement(properties, "property", name="undecided", value=str(lane.undecided))
    if report.commit:
        ET.SubElement(properties, "property", name="commit", value=_legal(report.commit))
    findings: dict[tuple[str, str], list[Verdict]] = {}
    for finding in lane.findings:
        case = finding.result.case
        findings.setdefault((case.suite, case.key), []).append(finding.verdict)
    for result, word in lane.cases:
        case = result.case
        _case(_test(suite, case.suite, case.key, result), word, findings.get((case.suite, case.key), []))
    for name, why in lane.missing:
        if not any(name == result.case.key for result, _ in lane.cases):
            _outcome(_test(suite, "", name), _ERROR, "not measured", why)
    if not report.complete:
        _outcome(_test(suite, "", "run"), _ERROR, "the run was cut short", "cases may be missing; run it again")
    return suite


def _test(suite: ET.Element, classname: str, name: str, result: CaseResult | None = None) -> ET.Element:
    seconds = f"{result.seconds:.3f}" if result else "0.000"
    return ET.SubElement(suite, "testcase", classname=_legal(classname), name=_legal(name), time=seconds)


def _case(test: ET.Element, word: Word, verdicts: list[Verdict]) -> None:
    text = "\n".join(line for verdict in verdicts for line in describe_verdict(verdict))
    if word is Word.BROKEN:
        _outcome(test, _ERROR, word.value, text)
    elif word.fails:
        _outcome(test, _FAILURE, word.value, text)
    elif word.unguarded or word is Word.UNSUPPORTED:
        _outcome(test, _SKIPPED, word.value, text)
    elif word not in QUIET:
        ET.SubElement(test, "system-out").text = _legal(text)


def _outcome(test: ET.Element, kind: str, message: str, text: str) -> None:
    first = next(iter(text.splitlines()), "")
    told = first if first.startswith(message) else f"{message}: {first}".removesuffix(": ")
    ET.SubElement(test, kind, message=_legal(told), type=message).text = _legal(text)


def _count(suite: ET.Element) -> None:
    tests = suite.findall("testcase")
    suite.set("tests", str(len(tests)))
    for attribute, kind in (("failures", _FAILURE), ("errors", _ERROR), ("skipped", _SKIPPED)):
        suite.set(attribute, str(sum(1 for test in tests if test.find(kind) is not None)))
    suite.set("time", f"{sum(float(test.get('time', '0')) for test in tests):.3f}")


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)
