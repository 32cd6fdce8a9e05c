"""JUnit XML: one test a case, failures as pytest's own file has them, and never an empty green lane."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from perfguard.render.outputs import junit
from perfguard.render.overview import Headline, Overview
from tests.render.examples import EXAMPLES, FASTER, NOISY, WRONG, lane, overview, result
from tests.render.test_markdown import hostile_overviews


def suites(whole: Overview) -> list[ET.Element]:
    return list(ET.fromstring(junit.render(whole, {})))


def outcomes(suite: ET.Element) -> dict[str, str]:
    """What each test came to: `passed`, or the name of the element that says otherwise."""
    found = {}
    for test in suite.findall("testcase"):
        kinds = [child.tag for child in test if child.tag in ("failure", "error", "skipped")]
        found[test.get("name", "")] = kinds[0] if kinds else "passed"
    return found


def test_regressions_fail_with_their_reason() -> None:
    slow, _ = suites(EXAMPLES[Headline.WORSE])
    assert slow.attrib["name"] == "nvidia-h200"
    (first, *_) = suites(EXAMPLES[Headline.WRONG])[0].iterfind("testcase/failure")
    assert first.get("message", "").startswith("WRONG output")
    assert {key: slow.get(key) for key in ("tests", "failures", "errors", "skipped", "time")} == {
        "tests": "2", "failures": "1", "errors": "0", "skipped": "0", "time": "3.000",
    }  # fmt: skip
    failure = slow.find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "SLOWER"
    assert failure.get("message") == "SLOWER device_time_us: 61.2 µs -> 64.93 µs (+6.1 %, 95 % +5.5 to +6.7)"
    assert "\n  in 3 process pairs; because: launches 1 -> 2 (+100.0 %)\n" in (failure.text or "")
    assert "CHANGED launches: 1 -> 2" in (failure.text or "")


def test_what_was_not_measured_is_an_error() -> None:
    silent, broken = suites(EXAMPLES[Headline.INCOMPLETE])
    assert outcomes(silent) == {"report": "error"}
    assert outcomes(broken) == {
        "softmax/forward": "error", "gelu[64]/forward": "error", "silu[64]/forward": "error",
    }  # fmt: skip
    view = lane("nvidia-h200", result("fine"))
    assert view.report is not None
    cut = msgspec.structs.replace(view, report=msgspec.structs.replace(view.report, complete=False))
    assert outcomes(*suites(overview(cut))) == {"fine/forward": "passed", "run": "error"}


def test_undecided_is_skipped_and_better_passes() -> None:
    (suite,) = suites(overview(lane("nvidia-h200", result("noisy", NOISY), result("fast", FASTER), result("fine"))))
    assert outcomes(suite) == {"noisy/forward": "skipped", "fast/forward": "passed", "fine/forward": "passed"}
    assert "NOISY" in (suite.findtext("testcase/skipped") or "")


def test_an_accepted_finding_passes() -> None:
    accepted, _ = suites(EXAMPLES[Headline.ACCEPTED])
    assert set(outcomes(accepted).values()) == {"passed"}


@pytest.mark.parametrize("text", ["\x00\x1b[31m", "\ud800", "]]>", "<x>&amp;", "\ufffe"])
def test_any_text_is_legal(text: str) -> None:
    (suite,) = suites(overview(lane("nvidia-h200", result(text, msgspec.structs.replace(WRONG, reason=text)))))
    assert outcomes(suite).popitem()[1] == "failure"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(whole=hostile_overviews())
def test_whatever_the_names_it_can_be_read(whole: Overview) -> None:
    found = suites(whole)
    assert len(found) == len(whole.lanes)
    assert all(int(suite.attrib["tests"]) == len(suite.findall("testcase")) for suite in found)
