"""A machine that is slow as a whole accuses nobody; a kernel that is slow by itself stays a suspect."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from perfguard.judge import CommonMode, Lane, common_modes, judge_case
from perfguard.judge.place import place_of
from perfguard.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.units import Unit

COUNT = 20
HARDWARE = Hardware(slug="cpu-x", vendor="cpu", name="x", architecture="x86_64")
Modes = Mapping[str, CommonMode]


def lane(machine: float = 0.001, own: float = 0.002, controls: int = 0, count: int = COUNT, seed: int = 1) -> Lane:
    """Five sessions of `count` cases under a machine that varies by `machine`; the first `controls` have a hash."""
    random = np.random.default_rng(seed)
    shifts = machine * random.standard_normal(5)
    cases = {}
    for number in range(count):
        sessions = (100.0 * np.exp(shifts + own * random.standard_normal(5))).tolist()
        code: dict[str, str] = {"code": "same"} if number < controls else {}
        cases[f"case{number}/forward"] = CaseBaseline({"time_us": TimedEntry(sessions, f"wall-u{number}"), **code})
    return Lane(HARDWARE, Toolchain(), {"suite": Baseline("cpu-x", "suite", cases=cases)})


def session(
    slowdowns: dict[int, float] | None = None, everyone: float = 1.0, count: int = COUNT, controls: int = 0
) -> list[CaseResult]:
    code = Reading("code", Unit.TEXT, "same", covers=["time_us"])
    results = []
    for number in range(count):
        value = 100.0 * everyone * (slowdowns or {}).get(number, 1.0)
        time = Reading("time_us", Unit.MICROSECONDS, value, timer=f"wall-u{number}")
        readings = [time, code] if number < controls else [time]
        results.append(CaseResult(case=Case("suite", f"case{number}", "forward"), readings=readings))
    return results


def times(results: list[CaseResult], where: Lane, modes: Modes | None) -> list[Verdict]:
    return [judge_case(result, where, modes=modes)[0] for result in results]


def words(results: list[CaseResult], where: Lane) -> list[Word]:
    return [verdict.word for verdict in times(results, where, common_modes(results, where))]


def suspects(results: list[CaseResult], where: Lane) -> list[int]:
    return [number for number, word in enumerate(words(results, where)) if word is Word.SUSPECT]


def test_a_slow_machine_accuses_nobody() -> None:
    where, results = lane(), session(everyone=1.08)
    assert {verdict.word for verdict in times(results, where, None)} == {Word.SUSPECT}
    verdicts = times(results, where, common_modes(results, where))
    assert {verdict.word for verdict in verdicts} == {Word.UNRESOLVED}
    assert verdicts[0].reason.startswith("ENV: 19 cases of this timer moved together by +8.")


def test_one_slow_case_stays_a_suspect_whatever_it_does_to_the_median() -> None:
    assert suspects(session({3: 1.08}), lane()) == [3]
    assert suspects(session({3: 30.0}), lane()) == [3]


def test_a_fast_machine_hides_no_slow_case() -> None:
    """As slow as ever while all others are faster: that is a slowdown."""
    where, results = lane(machine=0.01, own=0.001), session({3: 1 / 0.985}, everyone=0.985)
    assert times(results, where, None)[3].word is not Word.SUSPECT
    assert suspects(results, where) == [3]


def test_a_shift_that_the_machine_is_known_for_is_removed() -> None:
    where, results = lane(machine=0.01, own=0.001), session(everyone=1.015)
    verdicts = times(results, where, common_modes(results, where))
    assert {verdict.word for verdict in verdicts} == {Word.PASS}
    assert all(abs(math.log(verdict.ratio or 0)) < 0.003 for verdict in verdicts)
    alone = [verdict.smallest or 0 for verdict in times(results, where, None)]
    assert all(verdict.smallest < least for verdict, least in zip(verdicts, alone, strict=True) if verdict.smallest)


def test_a_machine_known_to_vary_is_not_alarmed_by_it() -> None:
    results = session(everyone=1.02)
    quiet, varying = words(results, lane(0.001)), words(results, lane(0.02, own=0.001))
    assert quiet == [Word.UNRESOLVED] * COUNT
    assert Word.UNRESOLVED not in varying


@pytest.mark.parametrize(("count", "known"), [(9, False), (10, True)])
def test_few_cases_say_nothing_about_the_machine(count: int, known: bool) -> None:
    where = lane()
    results = session(everyone=1.08, count=count)
    assert ("wall" in common_modes(results, where)) == known
    assert words(results, where)[0] is (Word.UNRESOLVED if known else Word.SUSPECT)


@pytest.mark.parametrize(("controls", "unchanged"), [(5, True), (4, False)])
def test_unchanged_cases_are_the_controls_where_there_are_enough(controls: int, unchanged: bool) -> None:
    """A change that slows all that it touches is no machine: the unchanged cases did not move."""
    where = lane(controls=controls)
    results = session(dict.fromkeys(range(controls, COUNT), 1.08), controls=controls)
    mode = common_modes(results, where)["wall"]
    assert mode.unchanged is unchanged
    assert len(mode.controls) == (controls if unchanged else COUNT)
    expected = Word.SUSPECT if unchanged else Word.UNRESOLVED
    assert words(results, where)[controls:] == [expected] * (COUNT - controls)


def test_fewer_controls_leave_more_uncertain() -> None:
    few, many = (
        common_modes(session(count=40, controls=controls), lane(0.01, 0.002, controls, count=40))["wall"]
        .seen_by(("suite", "case39/forward", "time_us"), ("wall", None, None, 5))
        for controls in (5, 30)
    )  # fmt: skip
    assert few is not None
    assert many is not None
    assert few.recording.removed
    assert many.recording.removed
    assert few.error > 2 * many.error > 0


def test_suspects_are_no_controls_of_a_fresh_process() -> None:
    where = lane()
    results = session(dict.fromkeys(range(12), 1.08))
    slow = {(result.case.suite, result.case.key) for result in results[:12]}
    assert common_modes(results, where)["wall"].shift == pytest.approx(math.log(1.08), abs=0.005)
    assert "wall" not in common_modes(results, where, suspects=slow)
    assert common_modes(results[2:], where, suspects=set(list(slow)[:0]))["wall"].shift > 0.05
    more = lane(count=30)
    alone = common_modes(session(dict.fromkeys(range(12), 1.08), count=30), more, suspects=slow)["wall"]
    assert alone.shift == pytest.approx(0.0, abs=0.005)


def test_only_cases_recorded_side_by_side_correct_each_other() -> None:
    """The zero of common shifts is each recording's own."""
    where = lane(machine=0.01, own=0.001)
    baseline = where.baselines["suite"]
    later = msgspec.structs.replace(baseline.cases["case0/forward"], provenance=Provenance(recorded="2027-01-01"))
    cases = {**baseline.cases, "case0/forward": later}
    mixed = Lane(HARDWARE, Toolchain(), {"suite": msgspec.structs.replace(baseline, cases=cases)})
    results = session(everyone=1.015)
    mode = common_modes(results, mixed)["wall"]
    alone = mode.seen_by(("suite", "case0/forward", "time_us"), ("wall", "2027-01-01", None, 5))
    beside = mode.seen_by(("suite", "case1/forward", "time_us"), ("wall", None, None, 5))
    assert alone is not None
    assert beside is not None
    assert (alone.offset, alone.recording.removed) == (0.0, False)
    assert beside.offset == pytest.approx(math.log(1.015), abs=0.005)


def test_other_conditions_make_no_control() -> None:
    where = lane()
    newer = Lane(HARDWARE, Toolchain(torch="2.12"), {
        "suite": msgspec.structs.replace(where.baselines["suite"], provenance=Provenance(torch="2.11"))
    })  # fmt: skip
    assert common_modes(session(), newer) == {}
    other_timer = [
        msgspec.structs.replace(r, readings=[msgspec.structs.replace(r.readings[0], timer="sundial")])
        for r in session()
    ]
    assert common_modes(other_timer, where) == {}


def test_fresh_modes_go_with_their_results() -> None:
    where, results = lane(machine=0.01, own=0.001), session({3: 1.05})
    modes = common_modes(results, where)
    fresh = [session({3: 1.05}, everyone=everyone) for everyone in (0.99, 1.01, 1.015)]
    again = [common_modes(each, where, suspects={("suite", "case3/forward")}) for each in fresh]
    [verdict] = judge_case(results[3], where, [each[3] for each in fresh], modes=modes, fresh_modes=again)
    assert verdict.word is Word.SLOWER
    assert verdict.ratio == pytest.approx(1.05, abs=0.005)
    with pytest.raises(ValueError, match="2 for 3 fresh results"):
        judge_case(results[3], where, [each[3] for each in fresh], fresh_modes=again[:2])


def elsewhere(deviation: float, count: int, seed: int = 5) -> dict[int, float]:
    """What another board does to each case."""
    moved = np.random.default_rng(seed).normal(0, deviation, count)
    return {number: math.exp(value) for number, value in enumerate(moved)}


@pytest.mark.parametrize(("controls", "count"), [(20, 40), (0, 40)])
def test_controls_that_scatter_say_that_the_place_is_another_one(controls: int, count: int) -> None:
    """Its fresh processes all agree, so that nobody else can tell a board that does this from code that is slower."""
    where = lane(machine=0.0, controls=controls, count=count)
    known = where.timed["suite", "case30/forward", "time_us"].recording
    name = ("suite", "case30/forward", "time_us")
    for deviation, found in ((0.002, 0.0), (0.010, 0.010)):
        modes = common_modes(session(elsewhere(deviation, count), count=count, controls=controls), where)
        seen = modes["wall"].seen_by(name, known)
        assert seen is not None
        assert place_of([seen], elsewhere=False).apart == pytest.approx(found, rel=0.4)


def test_what_one_board_does_to_a_case_is_no_slowdown_of_it() -> None:
    """Case 30 takes 2.5 % longer there, in every process; 12 % are no board's doing."""
    count, controls = 40, 20
    where = lane(machine=0.0, controls=controls, count=count)
    for factor, found in ((1.025, Word.UNRESOLVED), (1.12, Word.SLOWER)):
        verdicts = {}
        for deviation in (0.0, 0.006):
            results = session({**elsewhere(deviation, count), 30: factor}, count=count, controls=controls)
            modes = common_modes(results, where)
            fresh = [results[30]] * 3
            (verdicts[deviation],) = judge_case(results[30], where, fresh, modes=modes, fresh_modes=[modes] * 3)
        assert verdicts[0.0].word is Word.SLOWER
        assert verdicts[0.006].word is found
        told = "more than their sessions did: another board or day than the recording's"
        assert (told in verdicts[0.006].reason) is (found is Word.UNRESOLVED)
