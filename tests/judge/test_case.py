"""One case beside its record: which rung of the ladder applies first, and the words behind the verdict."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from msgspec.structs import replace

from perfguard.judge.case_verdicts import judge_case, unpaired
from perfguard.judge.exact import because, machine_change
from perfguard.judge.lane import Lane, timer_class
from perfguard.judge.record import differing_versions
from perfguard.judge.run_verdicts import count_guarded
from perfguard.judge.screen import Controls, covered_beside, covering
from perfguard.judge.statistics import UNLEARNT
from perfguard.model.records import (
    NO_BASE,
    Accuracy,
    Across,
    Baseline,
    BaseTree,
    Better,
    Case,
    CaseBaseline,
    CaseResult,
    Conditions,
    Entry,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.case import is_guarded
from perfguard.model.records.change import category_of
from perfguard.model.units import Unit

QUIET = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 100.1, 99.9]
CASE = Case("area", "f[64]", "forward")
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1", target="any", power_limit_watts=700)
TOOLCHAIN = Toolchain(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.4")
PROVENANCE = Provenance(
    torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.9", power_limit_watts=700, board="gpu-a"
)
TIME = TimedEntry(QUIET, "clock")
ENTRIES: dict[str, Entry] = {"span": TIME, "steps": 1, "names": ["a"], "shape": "[64]"}

BASE = BaseTree(commit="c0ffee" + "0" * 34)
EQUAL = replace(BASE, equal=True)
SHALLOW = BaseTree(problem="the clone is shallow: git fetch --unshallow")
CONTROLS = {"clock": Controls(20, 0.0, 1.0)}
SPAN = Reading("span", Unit.MICROSECONDS, 100.1, timer="clock")
SLOW = replace(SPAN, value=110.0)
STEPS = Reading("steps", Unit.COUNT, 1)
MORE = replace(STEPS, value=2)
NAMES = Reading("names", Unit.TEXT, ["a"], gated=False)
SHAPE = Reading("shape", Unit.TEXT, "[64]", portable=True)
CODE = Reading("code", Unit.TEXT, "abc", covers=["span"], gated=False)
CAPPED = replace(HARDWARE, power_limit_watts=500)
NEWER = replace(TOOLCHAIN, triton="3.7.0", torch="2.12.0")


def result(*readings: Reading, **fields: Any) -> CaseResult:
    fields = {"case": CASE, "inputs": "f32[64]", "conditions": Conditions(board="gpu-a"), **fields}
    return CaseResult(readings=list(readings), **fields)


def lane(
    entries: dict[str, Entry] | None = None,
    portable: dict[str, Entry] | None = None,
    inputs: str = "f32[64]",
    **fields: Any,
) -> Lane:
    provenance = fields.pop("provenance", PROVENANCE)

    files = [
        Baseline(folder, "area", {"": provenance}, {CASE.key: CaseBaseline(held, inputs)})
        for folder, held in (("here", entries), ("any", portable))
        if held is not None
    ]
    fields = {"hardware": HARDWARE, "toolchain": TOOLCHAIN, **fields}
    return Lane(files=[*files, *fields.pop("more", ())], **fields)


def judged(measured: CaseResult, where: Lane) -> dict[str, Verdict]:
    verdicts = judge_case(measured, where, CONTROLS)
    assert len({verdict.metric for verdict in verdicts}) == len(verdicts)
    return {verdict.metric: verdict for verdict in verdicts}


def words(measured: CaseResult, where: Lane) -> dict[str, Word]:
    return {metric: verdict.word for metric, verdict in judged(measured, where).items()}


# -- what is stored, and where -----------------------------------------------------------------------------------------

OWN = {name: entry for name, entry in ENTRIES.items() if name != "shape"}
SHAPED: dict[str, Entry] = {"shape": "[64]"}
ELSEWHERE = [Baseline(slug, "area", cases={CASE.key: CaseBaseline({})}) for slug in ("nvidia-y", "amd-x")]
OTHERS = {"span": Word.METHOD_CHANGED, "steps": Word.METHOD_CHANGED, "names": Word.PASS}


@pytest.mark.parametrize(
    ("readings", "where", "found", "reason"),
    [
        ([SPAN, STEPS, NAMES, SHAPE], lane(OWN, SHAPED), dict.fromkeys(ENTRIES, Word.PASS), ""),
        ([SPAN, STEPS], lane(), {"span": Word.NEW, "steps": Word.NEW}, "no baseline on here"),
        ([SPAN, STEPS], lane({"steps": 1}, more=ELSEWHERE), {"span": Word.NEW, "steps": Word.PASS}, None),
        ([SPAN, SHAPE], lane(more=ELSEWHERE), {"span": Word.OTHER_HARDWARE, "shape": Word.NEW},
         "known on amd-x, nvidia-y, not on here"),
        ([SPAN, STEPS], lane({"span": TIME, "steps": 1}, hardware=CAPPED),
         {"span": Word.OTHER_HARDWARE, "steps": Word.PASS}, "recorded under a power limit of 700 W, now 500 W"),
        ([SHAPE], lane(None, {"shape": "[63]"}), {"shape": Word.CHANGED}, None),
        ([SHAPE], lane({"shape": "[63]"}, hardware=replace(HARDWARE, target=None)), {"shape": Word.CHANGED}, None),
        # As on every CPU but the one that recorded: what holds on all of them is judged, and nothing of it is NEW.
        ([STEPS, SHAPE, SPAN], lane(None, SHAPED, base=EQUAL),
         {"steps": Word.PASS, "shape": Word.PASS, "span": Word.UNCHANGED},
         "not gated: here has no record of its own"),
        ([STEPS], lane({"other": 1}, SHAPED),
         {"steps": Word.NEW, "other": Word.UNRESOLVED, "shape": Word.UNRESOLVED}, None),
        ([SPAN, STEPS, NAMES], lane(OWN, inputs="f32[32]"), OTHERS, "other inputs: f32[32] -> f32[64]"),
        ([SPAN], lane({"span": TimedEntry(QUIET, "sundial")}), {"span": Word.METHOD_CHANGED},
         "read otherwise: timer sundial -> timer clock"),
        ([SPAN], lane({"span": 100}), {"span": Word.METHOD_CHANGED}, "read otherwise: a number -> timer clock"),
        *(([STEPS], lane({"steps": entry}), {"steps": Word.METHOD_CHANGED}, None) for entry in ("1", ["1"], TIME)),
        ([replace(STEPS, value={"rank 0": 1, "rank 1": 2}, across=Across.EACH)], lane({"steps": 1}),
         {"steps": Word.CHANGED}, None),
        ([replace(NAMES, across=Across.EACH)], lane({"names": {"rank 0": "a", "rank 1": "b"}}),
         {"names": Word.PASS}, None),
        ([SLOW, MORE], lane({"span": TIME, "steps": 1}, toolchain=NEWER), {"span": Word.DRIFT, "steps": Word.CHANGED},
         "another toolchain: torch 2.11.0 -> 2.12.0, triton 3.6.0 -> 3.7.0"),
        ([STEPS], lane({"steps": 1, "span": TIME}, SHAPED),
         {"steps": Word.PASS, "shape": Word.UNRESOLVED, "span": Word.UNRESOLVED}, None),
    ],
)  # fmt: skip
def test_a_reading_beside_what_is_stored(
    readings: list[Reading], where: Lane, found: dict[str, Word], reason: str | None
) -> None:
    verdicts = judged(result(*readings), where)
    assert {metric: verdict.word for metric, verdict in verdicts.items()} == found
    assert reason is None or verdicts[readings[0].metric].reason == reason


def test_each_case_is_of_the_recording_that_it_names() -> None:
    case = CaseBaseline({"span": TIME}, "f32[64]", "older")
    recordings = {"": PROVENANCE, "older": replace(PROVENANCE, triton="3.5.0")}
    where = Lane(HARDWARE, TOOLCHAIN, [Baseline("here", "area", recordings, {CASE.key: case})])
    verdict = judged(result(SPAN), where)["span"]
    assert (verdict.word, verdict.reason) == (Word.DRIFT, "another toolchain: triton 3.5.0 -> 3.6.0")


def test_other_kernels_that_could_not_be_compared_are_unresolved_and_an_update_records_them() -> None:
    where = lane({"code": {"kernel": "aaaa-bbbb"}}, base=BASE)
    code = Reading("code", Unit.TEXT, {"kernel": "cccc-dddd"}, gated=False, stored=True, note="sm_90: no disk")
    found = judged(result(code), where)["code"]
    assert (found.word, found.reason) == (Word.UNRESOLVED, "not compared with the base: sm_90: no disk")
    assert category_of(found, code) == "changed"
    same = replace(code, value={"kernel": "aaaa-dddd"})  # only a time was in question
    assert words(result(same), where) == {"code": Word.UNCHANGED}


def test_what_describes_a_target_or_only_explains_is_no_matter_of_records() -> None:
    compiled = Reading("sm_90.registers", Unit.COUNT, {"kernel": 48}, target="sm_90", drifts=True)
    found = judged(result(SPAN, compiled, NAMES), lane({"span": TIME, "sm_90.registers": {"kernel": 40}, "names": []}))
    assert [(each.metric, each.word, each.before) for each in found.values() if each.metric != "span"] == [
        ("sm_90.registers", Word.PASS, None),
        ("names", Word.PASS, None),
    ]
    assert not is_guarded(result(compiled, verdicts=[found["sm_90.registers"]]), Word.PASS)


def test_a_wrong_case_misses_nothing() -> None:
    assert judged(result(accuracy=[Accuracy("out", "float32", problem="NaN")]), lane(ENTRIES)) == {}
    assert judged(result(verdicts=[Verdict(Word.BROKEN)]), lane(ENTRIES)) == {}


def test_versions_that_differ() -> None:
    assert differing_versions(PROVENANCE, TOOLCHAIN) == []  # Python counts by its minor version
    now = Toolchain(torch="2.11.0", triton=None, driver="590.2", toolkit="13", python="3.12.1")
    portable = ["triton 3.6.0 -> unknown", "python 3.11 -> 3.12"]
    assert differing_versions(PROVENANCE, now) == [portable[0], "driver 580.1 -> 590.2", portable[1]]
    assert differing_versions(PROVENANCE, now, portable=True) == portable


def test_a_lane_learns_its_noise_per_timer() -> None:
    loud = [value + 5 * (value - 100) for value in QUIET]
    entries: dict[str, Entry] = {"span": TimedEntry(QUIET, "clock-u4"), "wait": TimedEntry(loud, "wall"), "steps": 1}
    cases = {f"f[{index}]/forward": CaseBaseline(entries) for index in range(15)}
    cases["g/forward"] = CaseBaseline({"span": TimedEntry(QUIET, "rare")})
    own = Lane(HARDWARE, TOOLCHAIN, [Baseline("here", "area", {"": PROVENANCE}, cases)])
    assert len(own.timed) == 31
    assert own.prior("rare") == own.prior("never seen") == UNLEARNT
    assert own.prior("wall").sigma == pytest.approx(6 * own.prior("clock").sigma, rel=0.02)
    assert timer_class("graph-cold-u64-r12") == "graph-cold"
    assert timer_class("host-low-u16-blocked") == "host-low-blocked"


# -- times -------------------------------------------------------------------------------------------------------------

SAME_TREE = "the working tree is c0ffee000000, but for files that the run does not use"


@pytest.mark.parametrize(
    ("base", "reading", "word", "reason"),
    [
        (BASE, SPAN, Word.PASS, ""),
        (BASE, SLOW, Word.SUSPECT, "to be paired: outside its record"),
        (EQUAL, SPAN, Word.UNCHANGED, SAME_TREE),
        (EQUAL, SLOW, Word.UNCHANGED, SAME_TREE),
        (SHALLOW, SPAN, Word.PASS, ""),
        (SHALLOW, SLOW, Word.UNRESOLVED, "UNPAIRED: the clone is shallow: git fetch --unshallow"),
        *((base, replace(SLOW, gated=False), Word.PASS, "not gated: +10.0 %") for base in (BASE, EQUAL, SHALLOW)),
        (EQUAL, replace(SPAN, value=math.nan), Word.UNRESOLVED, "NOISY: read nan, which is no time"),
        *((BASE, replace(SPAN, value=value), Word.UNRESOLVED, f"NOISY: read {value}, which is no time")
          for value in (0.0, -1.0, math.inf)),
    ],
)  # fmt: skip
def test_a_time_beside_its_record(base: BaseTree, reading: Reading, word: Word, reason: str) -> None:
    where = lane({"span": TIME, "steps": 1}, base=base)
    verdicts = judged(result(reading, MORE), where)
    assert (verdicts["span"].word, verdicts["span"].reason) == (word, reason)
    assert verdicts["steps"].word is Word.CHANGED  # whatever the time waits for
    if "NOISY" not in reason:
        assert verdicts["span"].ratio == pytest.approx(reading.value / 100.0, rel=1e-3)  # type: ignore[operator]
        assert verdicts["span"].before == pytest.approx(100.0, rel=1e-3)


@pytest.mark.parametrize(
    ("entries", "fields", "alone", "why"),
    [
        ({}, {}, Word.NEW, "nothing is recorded"),
        ({"span": TimedEntry(QUIET, "sundial")}, {}, Word.METHOD_CHANGED, "its record is of another kind"),
        ({"span": TIME}, {"toolchain": NEWER}, Word.DRIFT, "its record is of another kind"),
        ({"span": TIME}, {"hardware": CAPPED}, Word.OTHER_HARDWARE, "its record is of another kind"),
        ({"span": TimedEntry(QUIET[:1], "clock")}, {}, Word.UNRESOLVED, "1 session stored, 3 are needed"),
    ],
)
def test_what_the_record_cannot_judge_is_paired_and_else_says_what_stands_in_the_way(
    entries: dict[str, Entry], fields: dict[str, Any], alone: Word, why: str
) -> None:
    where, measured = lane(entries, base=BASE, **fields), result(SPAN)
    verdict = judged(measured, where)["span"]
    assert (verdict.word, verdict.reason) == (Word.SUSPECT, f"to be paired: {why}")
    assert unpaired(measured, "span", where, "no device").word is alone
    assert words(measured, lane(entries, **fields)) == {"span": alone}


def test_an_equal_tree_under_another_toolchain_is_the_toolchain_s_doing() -> None:
    verdict = judged(result(SLOW), lane({"span": TIME}, base=EQUAL, toolchain=replace(TOOLCHAIN, triton="3.7.0")))
    assert verdict["span"].word is Word.UNCHANGED
    assert verdict["span"].reason == "the working tree is c0ffee000000, but for files that the run does not use"
    assert words(result(SLOW), lane(base=EQUAL)) == {"span": Word.UNCHANGED}  # though it is new


def test_higher_is_better_turns_the_ratio() -> None:
    rate = replace(SLOW, better=Better.HIGHER)
    assert judged(result(rate), lane({"span": TIME}, base=BASE))["span"].ratio == pytest.approx(1 / 1.1, rel=1e-3)


# -- times whose code on the device is the same ------------------------------------------------------------------------

WAIT = Reading("wait", Unit.MICROSECONDS, 30.0, timer="host", promise=0.5)
COVERED: dict[str, Entry] = {"span": TIME, "wait": TimedEntry([30.0] * 5, "host"), "code": "abc"}


def test_a_time_that_was_not_read_is_unchanged_not_missing() -> None:
    where = lane(COVERED, base=BASE)
    assert set(covering(result(CODE, WAIT), where)) == {"span"}
    verdicts = judged(result(CODE, WAIT), where)
    assert {name: each.word for name, each in verdicts.items()} == {
        "code": Word.PASS, "wait": Word.PASS, "span": Word.UNCHANGED
    }  # fmt: skip
    assert verdicts["span"].reason == "code is as recorded; not timed"
    assert (verdicts["span"].before, verdicts["span"].after) == (pytest.approx(100, rel=1e-3), None)


@pytest.mark.parametrize("value", [101.0, 170.0])
def test_the_time_of_a_control_is_shown_and_not_judged(value: float) -> None:
    measured = result(CODE, replace(SPAN, value=value), WAIT)
    verdict = judged(measured, lane(COVERED, base=BASE))["span"]
    assert (verdict.word, verdict.after) == (Word.UNCHANGED, value)
    assert verdict.ratio == pytest.approx(value / 100, rel=1e-3)
    guarded = replace(measured, verdicts=judge_case(measured, lane(COVERED, base=BASE)))
    assert count_guarded([guarded]) == 1


@pytest.mark.parametrize("value", ["c3d4", "", ["abc"], 1])
def test_other_code_covers_nothing(value: str | list[str] | int) -> None:
    other, where = replace(CODE, value=value), lane(COVERED, base=BASE)
    assert set(covering(result(other), where)) == frozenset()
    assert words(result(other, WAIT), where)["span"] is Word.UNRESOLVED
    assert words(result(other, SLOW), where)["span"] is Word.SUSPECT


@pytest.mark.parametrize(
    ("fields", "alone"),
    [
        ({"toolchain": replace(TOOLCHAIN, torch="2.12.0")}, Word.DRIFT),
        ({"toolchain": replace(TOOLCHAIN, driver="590.1")}, Word.DRIFT),
        ({"hardware": CAPPED}, Word.OTHER_HARDWARE),
        ({"entries": {"code": "abc"}}, Word.NEW),
        ({"entries": {"span": TIME}}, Word.UNRESOLVED),
        ({"inputs": "f32[65]"}, Word.METHOD_CHANGED),
        ({"entries": None}, Word.NEW),
    ],
    ids=["torch", "driver", "power", "new time", "new code", "inputs", "new case"],
)
def test_the_same_code_under_other_conditions_is_judged_as_ever(fields: dict[str, Any], alone: Word) -> None:
    fields = {"entries": COVERED, **fields}
    assert not covering(result(CODE, SLOW), lane(**fields))
    assert words(result(CODE, SLOW), lane(**fields, base=BASE))["span"] is Word.SUSPECT
    assert words(result(CODE, SLOW), lane(**fields))["span"] is alone


def test_what_the_base_runs_too_is_covered_beside_it() -> None:
    assert covered_beside(result(CODE, SPAN), result(CODE, SPAN, WAIT)) == {"span"}
    assert covered_beside(result(CODE, SPAN), result(replace(CODE, value="c3d4"), SPAN)) == frozenset()
    assert covered_beside(result(SPAN), result(CODE, SPAN)) == frozenset()


# -- explanations ------------------------------------------------------------------------------------------------------


def exact(metric: str, value: Value, **fields: Any) -> Reading:
    return Reading(metric, Unit.TEXT if isinstance(value, str | list) else Unit.COUNT, value, **fields)


WARPS, SPILLS, STEP = exact("num_warps", 4, rank=10), exact("spills", 12, rank=15), exact("occupancy", 1, rank=16)
HOST = Reading("host", Unit.MICROSECONDS, 9.0, timer="clock")
COUNT, COUNTED = exact("count", 2, rank=30), exact("counted", ["a", "b"], details="count", rank=1)
INSTRUCTIONS = exact("instructions", 200, details="host")
BEFORE: dict[str, Value] = {
    "num_warps": 8, "spills": 0, "occupancy": 2, "code": "old", "counted": ["a"], "count": 1, "instructions": 100
}  # fmt: skip
MOVED = "because: instructions 100 -> 200 (+100.0 %)"


@pytest.mark.parametrize(
    ("metric", "readings", "text"),
    [
        ("span", [SPAN, STEP, SPILLS, CODE, WARPS],
         "because: num_warps 8 -> 4 (-50.0 %), spills 0 -> 12, occupancy 2 -> 1 (-50.0 %)"),
        ("span", [COUNTED, SPILLS, COUNT, SPAN], "because: spills 0 -> 12, count 1 -> 2 (+100.0 %), counted + b"),
        ("span", [COUNTED, replace(COUNT, value=1)], "because: counted + b"),
        ("host", [SPAN, HOST, INSTRUCTIONS], MOVED),
        ("span", [SPAN, HOST, INSTRUCTIONS], "no exact metric moved"),  # what details another time explains that alone
        ("span", [SPAN, INSTRUCTIONS], MOVED),  # there is no host time apart
        ("span", [SPAN, replace(CODE, value="old")], "no exact metric moved"),
        ("span", [SPAN, CODE], "no exact metric moved, but the code on the device did"),
    ],
)  # fmt: skip
def test_what_moved_in_the_order_of_its_rank(metric: str, readings: list[Reading], text: str) -> None:
    for seed in range(4):
        mixed = random.Random(seed).sample(readings, len(readings))
        assert because(metric, mixed, BEFORE) == text


@pytest.mark.parametrize(
    ("clock", "now", "text"),
    [
        (1980, Conditions(clock_mhz=1755), "clocks 1980 -> 1755 MHz"),
        (1980, Conditions(clock_mhz=1965), ""),  # as between any two sessions
        (1980, Conditions(clock_mhz=1965, throttle_reasons=["sw_power_cap"]), ""),  # usual in tensor-core work
        (1980, Conditions(1200, throttle_reasons=["hw_thermal"]), "clocks 1980 -> 1200 MHz, throttled: hw_thermal"),
        (None, Conditions(1200, throttle_reasons=["hw_thermal"]), "throttled: hw_thermal"),
        (1980, Conditions(clock_mhz=1980, other_processes=2), "2 other processes on the device"),
        (1980, None, ""),
    ],
)
def test_the_machine_s_own_change(clock: int | None, now: Conditions | None, text: str) -> None:
    assert machine_change(Provenance(clock_mhz=clock), now) == text


RIVAL = Reading("beside", Unit.MICROSECONDS, 60.0, timer="turns", rival=40.0, promise=0.05)


@pytest.mark.parametrize(
    ("reading", "base", "reason"),
    [
        (SLOW, NO_BASE, "code is as recorded, so the machine: clocks 1980 -> 1755 MHz"),
        (SPAN, NO_BASE, "code is as recorded"),
        (SLOW, EQUAL, f"{SAME_TREE}, so the machine: clocks 1980 -> 1755 MHz"),
        (SPAN, EQUAL, SAME_TREE),
        (RIVAL, EQUAL, SAME_TREE),  # a rival ran on the same machine
    ],
)
def test_unchanged_code_that_ran_slower_names_the_machine(reading: Reading, base: BaseTree, reason: str) -> None:
    entries: dict[str, Entry] = {"span": TIME, **({} if base.equal else {"code": "abc"})}
    where = lane(entries, base=base, provenance=replace(PROVENANCE, clock_mhz=1980))
    measured = result(reading, CODE, conditions=Conditions(clock_mhz=1755))
    verdict = judged(measured, where)[reading.metric]
    assert (verdict.word, verdict.reason) == (Word.UNCHANGED, reason)


def test_a_changed_count_says_what_came_and_where() -> None:
    more = replace(MORE, note="asked for at f.py:3 in g")
    names = exact("names", ["a", "b"], details="steps", gated=False)
    found = judged(result(SPAN, more, names), lane({"span": TIME, "steps": 1, "names": ["a"]}))
    assert found["steps"].reason == "steps 1 -> 2 (+100.0 %)\nasked for at f.py:3 in g"
    assert found["names"].word is Word.PASS  # nothing of it is stored
