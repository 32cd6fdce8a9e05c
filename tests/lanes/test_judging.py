"""Judged again: by the merge base, from raw readings; what a report says in its own favour is not heard."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.judge import Lane
from perfguard.lanes.judging import judge_again, unmeasured
from perfguard.lanes.reading import read_report_of_stranger
from perfguard.records import Accuracy, Better, Reading, Report, TimedEntry, Verdict, Word, dump_report
from perfguard.units import Unit
from tests.lanes.reports import CODE, HARDWARE, TIMER, TOOLCHAIN, entries, key, measured, remembered, report, slower

OTHER = "fedcba9876543210"


def lane(**cases: dict) -> Lane:  # type: ignore[type-arg]
    return remembered(cases).lane(HARDWARE, TOOLCHAIN, 3)


def words(judged: Report, metric: str = "device_time_us") -> dict[str, set[Word]]:
    return {
        result.case.name: {verdict.word for verdict in result.verdicts if verdict.metric == metric}
        for result in judged.results
    }


def test_a_slower_case_is_judged_slower_whatever_the_report_says() -> None:
    results, fresh = slower("f")
    lies = [msgspec.structs.replace(results[0], verdicts=[Verdict(Word.PASS, "device_time_us")])]
    judged = judge_again(report([*lies, measured("g")], fresh), lane(f=entries(), g=entries()))
    assert words(judged) == {"f": {Word.SLOWER}, "g": {Word.PASS}}
    verdict = next(verdict for verdict in judged.results[0].verdicts if verdict.metric == "device_time_us")
    assert verdict.ratio == pytest.approx(1.1, rel=0.01)
    assert "in 3 fresh processes" in verdict.reason
    assert (judged.guarded, judged.remembered) == (2, 2)


def test_what_the_report_calls_slower_is_judged_by_its_readings() -> None:
    lies = [msgspec.structs.replace(measured("f"), verdicts=[Verdict(Word.SLOWER, "device_time_us")])]
    assert words(judge_again(report(lies), lane(f=entries()))) == {"f": {Word.PASS}}


@pytest.mark.parametrize(
    ("times", "said"), [([], "too few fresh"), ([55.0], "too few"), ([55.0, 50.0, 55.0], "CONFLICT")]
)
def test_a_suspicion_without_agreeing_fresh_processes_is_undecided(times: list[float], said: str) -> None:
    judged = judge_again(report([measured("f", 55.0)], {"f": times} if times else {}), lane(f=entries()))
    assert words(judged) == {"f": {Word.UNRESOLVED}}
    assert said in judged.results[0].verdicts[1].reason


def test_fresh_processes_of_another_device_confirm_nothing() -> None:
    results, fresh = slower("f")
    given = report(results, fresh)
    elsewhere = [msgspec.structs.replace(session, device=1) for session in given.fresh]
    judged = judge_again(msgspec.structs.replace(given, fresh=elsewhere), lane(f=entries()))
    assert words(judged) == {"f": {Word.UNRESOLVED}}


def test_what_speaks_against_a_case_stands() -> None:
    wrong = msgspec.structs.replace(measured("f"), readings=[], verdicts=[Verdict(Word.WRONG, "output", "off by one")])
    broken = msgspec.structs.replace(measured("g"), verdicts=[Verdict(Word.BROKEN, reason="hung")])
    judged = judge_again(report([wrong, broken]), lane(f=entries(), g=entries()))
    assert [result.word for result in judged.results] == [Word.WRONG, Word.BROKEN]
    assert unmeasured(judged, lane(f=entries(), g=entries())) == []


def test_numbers_beyond_their_limit_are_wrong_though_the_report_passes_them() -> None:
    off = msgspec.structs.replace(measured("f"), accuracy=[Accuracy("output", "float32", rmse=2e-3, limit=1e-3)])
    judged = judge_again(report([off]), lane(f=entries()))
    assert judged.results[0].word is Word.WRONG
    assert "RMSE 0.002, limit 0.001" in judged.results[0].verdicts[0].reason


def test_lenient_limits_are_not_obeyed() -> None:
    results, fresh = slower("f")
    reading = msgspec.structs.replace(results[0].readings[1], promise=5.0, floor=1e6, gated=False)
    launches = msgspec.structs.replace(results[0].readings[0], value=2, tolerance=10.0, floor=10.0)
    lenient = msgspec.structs.replace(results[0], readings=[launches, reading])
    judged = judge_again(report([lenient], fresh), lane(f=entries()))
    assert {verdict.word for verdict in judged.results[0].verdicts} == {Word.SLOWER, Word.CHANGED}


def test_row_39_what_is_remembered_and_not_measured_is_missing() -> None:
    held = lane(f=entries(), g=entries(), h=entries(), i=entries(code=CODE))
    declared = msgspec.structs.replace(measured("g"), readings=[], verdicts=[Verdict(Word.UNSUPPORTED, reason="no")])
    results = [declared, measured("h", us=0), measured("i", us=0, code=CODE)]
    judged = judge_again(report(results), held)
    missing = [("area", key("f"), ""), ("area", key("g"), ""), ("area", key("h"), "device_time_us")]
    assert unmeasured(judged, held) == missing
    assert words(judged)["i"] == {Word.UNCHANGED}  # the very code that was recorded need not be timed


def test_code_that_is_only_said_to_be_unchanged_is_missing() -> None:
    held = lane(f=entries(code=CODE))
    for code in (OTHER, "unknown"):
        judged = judge_again(report([measured("f", us=0, code=code)]), held)
        assert unmeasured(judged, held) == [("area", key("f"), "device_time_us")]
    unknown = lane(f=entries(code="unknown"))
    judged = judge_again(report([measured("f", us=0, code="unknown")]), unknown)
    assert unmeasured(judged, unknown) == [("area", key("f"), "device_time_us")]


def test_a_new_case_and_another_toolchain_are_not_judged() -> None:
    judged = judge_again(report([measured("new")]), lane(f=entries()))
    assert words(judged) == {"new": {Word.NEW}}
    newer = msgspec.structs.replace(TOOLCHAIN, driver="590.1")
    drifted = report([measured("f", 80.0)], toolchain=newer)
    judged = judge_again(drifted, remembered({"f": entries()}).lane(HARDWARE, newer, 3))
    assert words(judged) == {"f": {Word.DRIFT}}


SMALL = st.sampled_from([0.0, 1e-300, 1e-9, 0.03, 1.0, 50.0, 1e11])
TIMES = st.sampled_from([1e-300, 1e-9, 0.5, 49.0, 50.0, 55.0, 9e11])
READING = st.builds(
    Reading,
    metric=st.sampled_from(["device_time_us", "launches", "fingerprint", "theirs"]),
    unit=st.sampled_from(list(Unit)),
    value=TIMES | st.integers(-5, 5) | st.text(max_size=3) | st.lists(st.text(max_size=2), max_size=2),
    better=st.sampled_from(list(Better)),
    timer=st.sampled_from([None, TIMER, "theirs"]),
    blocks=st.lists(TIMES, max_size=3),
    rejected_blocks=st.integers(0, 9),
    spread=SMALL,
    promise=SMALL,
    floor=SMALL,
    tolerance=SMALL,
    gated=st.booleans(),
    portable=st.booleans(),
    covers=st.lists(st.sampled_from(["device_time_us", "launches", "theirs"]), max_size=2),
    drifts=st.booleans(),
)
VERDICT = st.builds(Verdict, st.sampled_from(list(Word)), st.sampled_from(["", "device_time_us"]), st.text(max_size=3))


@given(st.lists(READING, max_size=4, unique_by=lambda reading: reading.metric), st.lists(VERDICT, max_size=2), TIMES)
@settings(max_examples=200, deadline=None)
def test_whatever_is_let_in_is_judged(readings: list[Reading], verdicts: list[Verdict], us: float) -> None:
    result = msgspec.structs.replace(measured("f"), readings=readings, verdicts=verdicts)
    fresh = {"f": [us] * 3}
    data = dump_report(report([result, measured("g")], fresh))
    received = read_report_of_stranger(data)
    stored = entries(code=CODE) | {"theirs": TimedEntry([1.0] * 5, "theirs")}
    held = lane(f=stored, g=entries())
    judged = judge_again(received.report, held)
    assert Word.SUSPECT not in {verdict.word for result in judged.results for verdict in result.verdicts}
    unmeasured(judged, held)
