"""A machine that is slow as a whole accuses nobody; a kernel that is slow by itself stays a suspect."""

from __future__ import annotations

import math
import random

import pytest

from perfguard.judge import Lane, common_shifts, excuse, judge_case
from perfguard.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Hardware,
    Reading,
    TimedEntry,
    Toolchain,
    Word,
)
from perfguard.units import Unit

COUNT = 20


def lane(machine_noise: float = 0.001) -> Lane:
    rng = random.Random(1)
    machine = [rng.gauss(0, machine_noise) for _ in range(5)]
    cases = {}
    for number in range(COUNT):
        sessions = [100.0 * math.exp(shift + rng.gauss(0, 0.002)) for shift in machine]
        cases[f"case{number}/forward"] = CaseBaseline({"time_us": TimedEntry(sessions, f"wall-u{number}")})
    hardware = Hardware(slug="cpu-x", vendor="cpu", name="x", architecture="x86_64")
    return Lane(hardware, Toolchain(), {"suite": Baseline("cpu-x", "suite", cases=cases)})


def judged(where: Lane, slowdowns: dict[int, float], everyone: float = 1.0, count: int = COUNT) -> list[CaseResult]:
    results = []
    for number in range(count):
        value = 100.0 * everyone * slowdowns.get(number, 1.0)
        reading = Reading("time_us", Unit.MICROSECONDS, value, timer=f"wall-u{number}")
        result = CaseResult(case=Case("suite", f"case{number}", "forward"), readings=[reading])
        results.append(CaseResult(result.case, readings=[reading], verdicts=judge_case(result, where)))
    return results


def words(results: list[CaseResult], where: Lane) -> list[Word]:
    shifts = common_shifts(results, where)
    return [excuse(result, shifts)[0].word for result in results]


def test_a_slow_machine_accuses_nobody() -> None:
    where = lane()
    results = judged(where, {}, everyone=1.08)
    assert {result.verdicts[0].word for result in results} == {Word.SUSPECT}
    assert set(words(results, where)) == {Word.UNRESOLVED}
    reason = excuse(results[0], common_shifts(results, where))[0].reason
    assert reason.startswith("ENV: 20 cases of this timer moved together by +8.")


def test_one_slow_case_stays_a_suspect() -> None:
    where = lane()
    results = judged(where, {3: 1.08})
    assert [number for number, word in enumerate(words(results, where)) if word is Word.SUSPECT] == [3]


def test_a_machine_known_to_vary_is_not_alarmed_by_it() -> None:
    quiet, varying = lane(0.001), lane(0.02)
    assert common_shifts(judged(quiet, {}, everyone=1.02), quiet)["wall"].alarm
    assert not common_shifts(judged(varying, {}, everyone=1.02), varying)["wall"].alarm


@pytest.mark.parametrize(("count", "known"), [(9, False), (10, True)])
def test_few_cases_say_nothing_about_the_machine(count: int, known: bool) -> None:
    where = lane()
    assert ("wall" in common_shifts(judged(where, {}, everyone=1.08, count=count), where)) == known


def test_a_case_of_few_sessions_does_not_hide_what_is_usual() -> None:
    where = lane(0.02)
    usual = common_shifts(judged(where, {}), where)["wall"].usual
    cases = dict(where.baselines["suite"].cases)
    cases["case0/forward"] = CaseBaseline({"time_us": TimedEntry([100.0], "wall-u0")})
    fewer = Lane(where.hardware, where.toolchain, {"suite": Baseline("cpu-x", "suite", cases=cases)})
    assert common_shifts(judged(fewer, {}), fewer)["wall"].usual == pytest.approx(usual, rel=0.2)
