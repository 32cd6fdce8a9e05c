"""A time whose code on the device is the same is not judged, whether it was read or not; nothing else is excused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.lane import Lane
from perfguard.judge.run_verdicts import count_guarded
from perfguard.judge.screen import covered, covered_beside
from perfguard.model.records import (
    NO_BASE,
    Baseline,
    BaseTree,
    Case,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Word,
)
from perfguard.model.units import Unit

HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1", power_limit_watts=700)
TOOLCHAIN = Toolchain(torch="2.11.0", driver="580.1")
PROVENANCE = Provenance(torch="2.11.0", driver="580.1", power_limit_watts=700)
ENTRIES: dict[str, Entry] = {
    "span": TimedEntry([100.0] * 5, "clock"),
    "wait": TimedEntry([30.0] * 5, "host"),
    "code": "a1b2",
}
CODE = Reading("code", Unit.TEXT, "a1b2", gated=False, covers=["span"])
SPAN = Reading("span", Unit.MICROSECONDS, 101.0, timer="clock")
WAIT = Reading("wait", Unit.MICROSECONDS, 30.0, timer="host", promise=0.5)


def lane(entries: dict[str, Entry] = ENTRIES, **fields: Any) -> Lane:
    case = CaseBaseline(entries, "f32[64]")
    files = {"area": Baseline("here", "area", PROVENANCE, {"f/forward": case})}
    fields = {"base": BaseTree(commit="c" * 40), **fields}
    return Lane(**{"hardware": HARDWARE, "toolchain": TOOLCHAIN, "baselines": files, **fields})


def result(*readings: Reading, inputs: str = "f32[64]") -> CaseResult:
    return CaseResult(Case("area", "f", "forward"), inputs, readings=list(readings))


def words(found: CaseResult, where: Lane) -> dict[str, Word]:
    return {verdict.metric: verdict.word for verdict in judge_case(found, where)}


def test_a_time_that_was_not_read_is_unchanged_not_missing() -> None:
    found = result(CODE, WAIT)
    assert covered(found, lane()) == {"span"}
    assert words(found, lane()) == {"code": Word.PASS, "wait": Word.PASS, "span": Word.UNCHANGED}
    verdict = judge_case(found, lane())[-1]
    assert (verdict.reason, verdict.before, verdict.after) == (
        "code is as recorded; not timed",
        pytest.approx(100),
        None,
    )


@pytest.mark.parametrize("value", [101.0, 170.0])
def test_an_audited_time_is_shown_and_not_judged(value: float) -> None:
    [_, span, _] = judge_case(result(CODE, msgspec.structs.replace(SPAN, value=value), WAIT), lane())
    assert (span.word, span.after, span.ratio) == (Word.UNCHANGED, value, pytest.approx(value / 100))


def test_an_unchanged_case_is_guarded() -> None:
    for readings in ([CODE, WAIT], [CODE, SPAN, WAIT]):
        found = result(*readings)
        assert count_guarded([msgspec.structs.replace(found, verdicts=judge_case(found, lane()))]) == 1


@pytest.mark.parametrize("value", ["c3d4", "", ["a1b2"], 1])
def test_other_code_covers_nothing(value: str | list[str] | int) -> None:
    other = msgspec.structs.replace(CODE, value=value)
    assert covered(result(other), lane()) == frozenset()
    assert words(result(other, WAIT), lane())["span"] is Word.UNRESOLVED
    assert words(result(other, msgspec.structs.replace(SPAN, value=150.0)), lane())["span"] is Word.SUSPECT


@pytest.mark.parametrize(
    ("fields", "alone"),
    [
        ({"toolchain": Toolchain(torch="2.12.0", driver="580.1")}, Word.DRIFT),
        ({"toolchain": Toolchain(torch="2.11.0", driver="590.1")}, Word.DRIFT),
        ({"hardware": msgspec.structs.replace(HARDWARE, power_limit_watts=350.0)}, Word.OTHER_HARDWARE),
        ({"entries": {"code": "a1b2"}}, Word.NEW),
        ({"entries": {"span": ENTRIES["span"]}}, Word.UNRESOLVED),
    ],
    ids=["torch", "driver", "power", "new time", "new code"],
)
def test_the_same_code_under_other_conditions_is_judged_as_ever(fields: dict[str, Any], alone: Word) -> None:
    assert words(result(CODE, SPAN), lane(**fields))["span"] is Word.SUSPECT
    assert words(result(CODE, SPAN), lane(**fields, base=NO_BASE))["span"] is alone


def test_what_the_base_runs_too_is_covered_beside_it() -> None:
    base = result(CODE, SPAN)
    assert covered_beside(base, result(CODE, SPAN, WAIT)) == {"span"}
    assert covered_beside(base, result(msgspec.structs.replace(CODE, value="c3d4"), SPAN)) == frozenset()
    assert covered_beside(result(SPAN), result(CODE, SPAN)) == frozenset()


def test_other_inputs_cover_nothing() -> None:
    found = result(CODE, SPAN, inputs="f32[65]")
    assert covered(found, lane()) == frozenset()
    assert words(found, lane())["span"] is Word.SUSPECT
    assert words(found, lane(base=NO_BASE))["span"] is Word.METHOD_CHANGED


def test_a_case_that_nobody_remembers_covers_nothing() -> None:
    assert covered(result(CODE), Lane(HARDWARE, TOOLCHAIN)) == frozenset()
