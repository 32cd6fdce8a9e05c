"""Judged again: by the merge base, from raw readings; what a report says in its own favour is not heard."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.github.lanes.judge_again import judge_again, unmeasured
from perfguard.github.lanes.untrusted_report import read_untrusted_report
from perfguard.judge.lane import Lane
from perfguard.model.records import (
    Accuracy,
    BaseTree,
    Better,
    CaseResult,
    PairedCase,
    PairedTime,
    Pairing,
    PairReading,
    Reading,
    Report,
    TimedEntry,
    Verdict,
    Word,
    dump_report,
)
from perfguard.model.units import Unit
from tests.github.fake import sha
from tests.github.reports import (
    CODE,
    HARDWARE,
    SUITE,
    TIMER,
    TOOLCHAIN,
    compared,
    entries,
    key,
    measured,
    paired,
    remembered,
    report,
)

OTHER = "fedcba9876543210"


def lane(**cases: dict) -> Lane:  # type: ignore[type-arg]
    return remembered(cases).lane(HARDWARE, TOOLCHAIN)


def words(judged: Report, metric: str = "device_time_us") -> dict[str, set[Word]]:
    return {
        result.case.name: {verdict.word for verdict in result.verdicts if verdict.metric == metric}
        for result in judged.results
    }


def reason(judged: Report, name: str = "f") -> str:
    return next(
        verdict.reason
        for result in judged.results
        for verdict in result.verdicts
        if (result.case.name, verdict.metric) == (name, "device_time_us")
    )


def with_time(result: CaseResult, **fields: object) -> CaseResult:
    readings = [msgspec.structs.replace(each, **fields) if each.timed else each for each in result.readings]
    return msgspec.structs.replace(result, readings=readings)


def test_a_rival_does_not_replace_a_record() -> None:
    given = compared({"f": 55.0, "g": 50.0})
    claims = [with_time(given.results[0], rival=60.0), given.results[1]]
    judged = judge_again(msgspec.structs.replace(given, results=claims), lane(f=entries(), g=entries()))
    assert words(judged) == {"f": {Word.SLOWER}, "g": {Word.PASS}}


def test_a_reading_far_below_its_record_does_not_widen_its_own_limit() -> None:
    """Its timer's resolution is a large part of it, but not of what is recorded."""
    wide = with_time(measured("f", 0.01), promise=300.0, floor=1.0)
    judged = judge_again(report([wide], base=BaseTree(sha("fork-point"))), lane(f=entries()))
    assert words(judged) == {"f": {Word.UNRESOLVED}}
    assert "UNPAIRED" in reason(judged)


def test_a_base_that_its_pair_contradicts_does_not_widen_the_limit() -> None:
    """Half the base's time, as its own change does not allow, and the floor of 0.8 µs would be 6 %."""
    given = compared({"f": 26.3, "g": 25.0})
    (pairing,) = given.pairings
    halved = [
        msgspec.structs.replace(
            case,
            times=[
                msgspec.structs.replace(
                    time,
                    readings=[
                        msgspec.structs.replace(
                            each, change=each.change + math.log(2), base_us=12.5 if case.key == key("f") else 25.0
                        )
                        for each in time.readings
                    ],
                )
                for time in case.times
            ],
        )
        for case in pairing.cases
    ]
    results = [with_time(each, floor=0.8) for each in given.results]
    claim = msgspec.structs.replace(given, results=results, pairings=[msgspec.structs.replace(pairing, cases=halved)])
    judged = judge_again(claim, lane(f=entries(25.0), g=entries(25.0)))
    assert words(judged) == {"f": {Word.SLOWER}, "g": {Word.PASS}}


@pytest.mark.parametrize("claim", [{"ranks": 2}, {"target": "elsewhere"}])
def test_a_report_that_names_another_folder_has_not_measured_the_case(claim: dict[str, Any]) -> None:
    held = lane(f=entries())
    result = measured("f", **{name: value for name, value in claim.items() if name == "ranks"})
    given = report([result], base=BaseTree(sha("fork-point"), equal=True))
    if "target" in claim:
        portable = [msgspec.structs.replace(each, portable=True) for each in result.readings]
        given = report(
            [msgspec.structs.replace(result, readings=portable)],
            hardware=msgspec.structs.replace(HARDWARE, **claim),
            base=given.base,
        )
        held = remembered({"f": entries()}).lane(given.hardware, TOOLCHAIN)
    assert "launches" in {metric for _, _, metric in unmeasured(judge_again(given, held), held)}


def test_a_slower_case_is_judged_slower_whatever_the_report_says() -> None:
    given = compared({"f": 55.0, "g": 50.0})
    lies = [msgspec.structs.replace(given.results[0], verdicts=[Verdict(Word.PASS, "device_time_us")])]
    judged = judge_again(
        msgspec.structs.replace(given, results=[*lies, given.results[1]]), lane(f=entries(), g=entries())
    )
    assert words(judged) == {"f": {Word.SLOWER}, "g": {Word.PASS}}
    verdict = next(verdict for verdict in judged.results[0].verdicts if verdict.metric == "device_time_us")
    assert verdict.ratio == pytest.approx(1.1, rel=0.01)
    assert verdict.interval is not None
    assert 1.09 < verdict.interval[0] < verdict.interval[1] < 1.11
    assert "in 3 process pairs" in verdict.reason
    assert (judged.guarded, judged.remembered) == (2, 2)


@pytest.mark.parametrize("word", [Word.SLOWER, Word.UNRESOLVED, Word.SUSPECT])
def test_what_the_report_says_of_a_time_that_it_read_is_judged_by_its_readings(word: Word) -> None:
    given = compared({"f": 50.0})
    lies = [msgspec.structs.replace(given.results[0], verdicts=[Verdict(word, "device_time_us", "UNPAIRED: so there")])]
    assert words(judge_again(msgspec.structs.replace(given, results=lies), lane(f=entries()))) == {"f": {Word.PASS}}


def test_too_few_process_pairs_and_those_of_another_device_leave_it_undecided() -> None:
    short = paired({"f": 55.0}, pairs=2, problem="the 10 minutes of pair_minutes are over")
    elsewhere = paired({"f": 55.0}, device=1)
    for pairing, said in (
        (short, "UNDECIDED: the 10 minutes of pair_minutes are over; in 2 process pairs"),
        (elsewhere, "UNPAIRED: no process pair measured it"),
    ):
        judged = judge_again(msgspec.structs.replace(compared({"f": 55.0}), pairings=[pairing]), lane(f=entries()))
        assert words(judged) == {"f": {Word.UNRESOLVED}}
        assert reason(judged).startswith(said)


def test_fresh_processes_judge_what_stands_beside_a_rival() -> None:
    def beside(us: float) -> Reading:
        return Reading("beside_rival_us", Unit.MICROSECONDS, us, timer=TIMER, promise=0.05, rival=50.0)

    def case(us: float) -> object:
        return msgspec.structs.replace(measured("f"), readings=[beside(us)])

    for device, word in ((0, Word.SLOWER), (1, Word.UNRESOLVED)):
        given = report([case(60.0)], {"f": [50.0] * 4})  # type: ignore[list-item]
        fresh = [
            msgspec.structs.replace(session, results=[case(us)], device=device)
            for session, us in zip(given.fresh, (60.0, 60.1, 59.9, 60.0), strict=True)
        ]
        judged = judge_again(msgspec.structs.replace(given, fresh=fresh), lane(g=entries()))
        assert words(judged, "beside_rival_us") == {"f": {word}}


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
    given = compared({"f": 55.0})
    launches, reading = given.results[0].readings
    lenient = [
        msgspec.structs.replace(launches, value=2, tolerance=10.0, floor=10.0),
        msgspec.structs.replace(reading, promise=5.0, floor=1e6, gated=False),
    ]
    results = [msgspec.structs.replace(given.results[0], readings=lenient)]
    judged = judge_again(msgspec.structs.replace(given, results=results), lane(f=entries()))
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


CHANGES = st.sampled_from([0.0, 1e-300, 0.01, -0.1, math.log(1e6), -math.log(1e6)])
CLOCKS = st.sampled_from([None, 1.0, 1755.0, 1e5])
PAIRS = st.lists(st.tuples(CHANGES, CHANGES, TIMES, TIMES, CLOCKS, CLOCKS), max_size=6).map(
    lambda found: [PairReading(number, *values) for number, values in enumerate(found, 1)]
)
TIMES_PAIRED = st.lists(
    st.builds(
        PairedTime, st.sampled_from(["device_time_us", "launches", "theirs"]), st.sampled_from([TIMER, ""]), PAIRS
    ),
    max_size=3,
    unique_by=lambda time: time.metric,
)


@given(
    st.lists(READING, max_size=4, unique_by=lambda reading: reading.metric),
    st.lists(VERDICT, max_size=2),
    TIMES,
    TIMES_PAIRED,
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_whatever_is_let_in_is_judged(
    readings: list[Reading], verdicts: list[Verdict], us: float, times: list[PairedTime], equal: bool
) -> None:
    result = msgspec.structs.replace(measured("f"), readings=readings, verdicts=verdicts)
    base = BaseTree(sha("fork-point"), equal)
    pairing = Pairing(sha("fork-point"), [PairedCase(SUITE, key("f"), result, times), *paired({"g": 55.0}).cases], 6)
    fresh = {"f": [us] * 3}
    data = dump_report(report([result, measured("g")], fresh, base=base, pairings=[pairing]))
    received = read_untrusted_report(data)
    stored = entries(code=CODE) | {"theirs": TimedEntry([1.0] * 5, "theirs")}
    held = lane(f=stored, g=entries())
    judged = judge_again(received.report, held)
    assert Word.SUSPECT not in {verdict.word for result in judged.results for verdict in result.verdicts}
    unmeasured(judged, held)
