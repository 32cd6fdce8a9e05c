"""The rungs of the ladder: which word applies first, and which file a reading is looked up in."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from perfguard.judge.case_verdicts import judge_case, unpaired
from perfguard.judge.lane import Lane
from perfguard.judge.screen import Controls
from perfguard.model.records import (
    Accuracy,
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
    Verdict,
    Word,
)
from perfguard.model.units import Unit

QUIET = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 100.1, 99.9]
CASE = Case("area", "f[64]", "forward")
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1", target="any", power_limit_watts=700)
TOOLCHAIN = Toolchain(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.4")
PROVENANCE = Provenance(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.9", power_limit_watts=700)
ENTRIES: dict[str, Entry] = {"span": TimedEntry(QUIET, "clock"), "steps": 1, "names": ["a"], "shape": "[64]"}

BASE = BaseTree(commit="c0ffee" + "0" * 34)
EQUAL = msgspec.structs.replace(BASE, equal=True)
SHALLOW = BaseTree(problem="the clone is shallow: git fetch --unshallow")
CONTROLS = {"clock": Controls(20, 0.0, 1.0)}
SPAN = Reading("span", Unit.MICROSECONDS, 100.1, timer="clock")
STEPS = Reading("steps", Unit.COUNT, 1)
NAMES = Reading("names", Unit.TEXT, ["a"], gated=False)
SHAPE = Reading("shape", Unit.TEXT, "[64]", portable=True)


def result(*readings: Reading, **fields: Any) -> CaseResult:
    fields = {"case": CASE, "inputs": "f32[64]", "conditions": Conditions(board="gpu-a"), **fields}
    return CaseResult(readings=list(readings), **fields)


def lane(
    entries: dict[str, Entry] | None = None,
    portable: dict[str, Entry] | None = None,
    inputs: str = "f32[64]",
    **fields: Any,
) -> Lane:
    def files(held: dict[str, Entry] | None, slug: str) -> dict[str, Baseline]:
        if held is None:
            return {}
        provenance = msgspec.structs.replace(PROVENANCE, board="gpu-a")
        return {"area": Baseline(slug, "area", provenance, {CASE.key: CaseBaseline(held, inputs)})}

    fields = {"hardware": HARDWARE, "toolchain": TOOLCHAIN, **fields}
    return Lane(baselines=files(entries, "here"), portable=files(portable, "targets/any"), **fields)


def words(verdicts: list[Verdict]) -> dict[str, Word]:
    assert len({verdict.metric for verdict in verdicts}) == len(verdicts)
    return {verdict.metric: verdict.word for verdict in verdicts}


def test_each_reading_gets_one_verdict() -> None:
    own = {name: entry for name, entry in ENTRIES.items() if name != "shape"}
    verdicts = judge_case(result(SPAN, STEPS, NAMES, SHAPE), lane(own, {"shape": "[64]"}), CONTROLS)
    assert words(verdicts) == dict.fromkeys(["span", "steps", "names", "shape"], Word.PASS)


def test_a_case_nobody_remembers_is_new() -> None:
    verdicts = judge_case(result(SPAN, STEPS), lane())
    assert words(verdicts) == {"span": Word.NEW, "steps": Word.NEW}
    assert verdicts[0].after == 100.1
    assert verdicts[0].reason == "no baseline on here"


def test_a_metric_nobody_remembers_is_new_in_a_case_that_is_known() -> None:
    verdicts = judge_case(result(SPAN, STEPS), lane({"steps": 1}, elsewhere={("area", CASE.key): ["there"]}))
    assert words(verdicts) == {"span": Word.NEW, "steps": Word.PASS}


def test_a_case_known_on_other_hardware_only() -> None:
    verdicts = judge_case(result(SPAN, SHAPE), lane(elsewhere={("area", CASE.key): ["amd-x", "nvidia-y"]}))
    assert words(verdicts) == {"span": Word.OTHER_HARDWARE, "shape": Word.NEW}
    assert verdicts[0].reason == "known on amd-x, nvidia-y, not on here"


def test_another_power_limit_is_other_hardware_for_times_only() -> None:
    capped = msgspec.structs.replace(HARDWARE, power_limit_watts=500)
    verdicts = judge_case(result(SPAN, STEPS, NAMES, SHAPE), lane(ENTRIES, {"shape": "[64]"}, hardware=capped))
    assert words(verdicts)["span"] is Word.OTHER_HARDWARE
    assert words(verdicts)["steps"] is Word.PASS
    assert verdicts[0].reason == "recorded under a power limit of 700 W, now 500 W"


def test_portable_readings_are_remembered_for_the_target() -> None:
    verdicts = judge_case(result(SHAPE), lane(None, {"shape": "[63]"}))
    assert words(verdicts) == {"shape": Word.CHANGED}


def test_where_only_the_target_is_remembered_the_machine_s_own_exact_metrics_are_not_gated() -> None:
    """As on every CPU but the one that recorded: what holds on all of them is judged, and nothing of it is NEW."""
    verdicts = judge_case(result(STEPS, SHAPE, SPAN), lane(None, {"shape": "[64]"}, base=EQUAL))
    assert words(verdicts) == {"steps": Word.PASS, "shape": Word.PASS, "span": Word.UNCHANGED}
    assert verdicts[0].reason == "not gated: here has no record of its own"
    assert words(judge_case(result(STEPS), lane({"other": 1}, {"shape": "[64]"})))["steps"] is Word.NEW


def test_without_a_target_portable_readings_are_remembered_for_the_hardware() -> None:
    alone = msgspec.structs.replace(HARDWARE, target=None)
    verdicts = judge_case(result(SHAPE), lane({"shape": "[63]"}, {"shape": "[64]"}, hardware=alone))
    assert words(verdicts)["shape"] is Word.CHANGED


def test_other_inputs_are_another_measurement() -> None:
    verdicts = judge_case(result(SPAN, STEPS, NAMES), lane(ENTRIES, inputs="f32[32]"))
    assert {verdict.word for verdict in verdicts if verdict.metric != "shape"} == {Word.METHOD_CHANGED}
    assert verdicts[0].reason == "other inputs: f32[32] -> f32[64]"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (TimedEntry(QUIET, "sundial"), "read otherwise: timer sundial -> timer clock"),
        (100, "read otherwise: a number -> timer clock"),
    ],
)
def test_another_timer_is_another_measurement(entry: Entry, reason: str) -> None:
    [verdict] = judge_case(result(SPAN), lane({"span": entry}))
    assert (verdict.word, verdict.reason) == (Word.METHOD_CHANGED, reason)


@pytest.mark.parametrize("entry", ["1", ["1"], TimedEntry(QUIET, "clock")])
def test_another_kind_of_value_is_another_measurement(entry: Entry) -> None:
    assert words(judge_case(result(STEPS), lane({"steps": entry}))) == {"steps": Word.METHOD_CHANGED}


def test_drift_names_the_versions_and_lets_counts_gate() -> None:
    newer = msgspec.structs.replace(TOOLCHAIN, triton="3.7.0", torch="2.12.0")
    slow = msgspec.structs.replace(SPAN, value=150.0)
    more = msgspec.structs.replace(STEPS, value=2)
    verdicts = judge_case(result(slow, more), lane({"span": ENTRIES["span"], "steps": 1}, toolchain=newer))
    assert words(verdicts) == {"span": Word.DRIFT, "steps": Word.CHANGED}
    assert verdicts[0].reason.endswith("torch 2.11.0 -> 2.12.0, triton 3.6.0 -> 3.7.0")


def test_a_cases_own_provenance_wins_over_the_files() -> None:
    older = msgspec.structs.replace(PROVENANCE, triton="3.5.0")
    case = CaseBaseline({"span": ENTRIES["span"]}, "f32[64]", provenance=older)
    files = {"area": Baseline("here", "area", PROVENANCE, {CASE.key: case})}
    [verdict] = judge_case(result(SPAN), Lane(HARDWARE, TOOLCHAIN, files))
    assert (verdict.word, verdict.reason.split("; ")[1]) == (Word.DRIFT, "another toolchain: triton 3.5.0 -> 3.6.0")


def test_what_is_remembered_and_not_read_is_told() -> None:
    verdicts = judge_case(result(STEPS), lane({"steps": 1, "span": ENTRIES["span"]}, {"shape": "[64]"}))
    assert words(verdicts) == {"steps": Word.PASS, "shape": Word.UNRESOLVED, "span": Word.UNRESOLVED}
    assert verdicts[1].reason == "remembered, but not read this time"


def test_a_wrong_case_misses_nothing() -> None:
    wrong = result(accuracy=[Accuracy("out", "float32", problem="NaN")])
    broken = result(verdicts=[Verdict(Word.BROKEN)])
    assert judge_case(wrong, lane(ENTRIES)) == []
    assert judge_case(broken, lane(ENTRIES)) == []


SLOW = msgspec.structs.replace(SPAN, value=110.0)


def named(metric: str, verdicts: list[Verdict]) -> Verdict:
    return next(verdict for verdict in verdicts if verdict.metric == metric)


@pytest.mark.parametrize(
    ("base", "reading", "word", "reason"),
    [
        (BASE, SPAN, Word.PASS, ""),
        (BASE, SLOW, Word.SUSPECT, "to be paired: outside its record"),
        (EQUAL, SPAN, Word.UNCHANGED, "the working tree is c0ffee000000, but for documentation"),
        (EQUAL, SLOW, Word.UNCHANGED, "the working tree is c0ffee000000, but for documentation"),
        (SHALLOW, SPAN, Word.PASS, ""),
        (SHALLOW, SLOW, Word.UNRESOLVED, "UNPAIRED: the clone is shallow: git fetch --unshallow"),
    ],
)
def test_a_time_beside_its_record(base: BaseTree, reading: Reading, word: Word, reason: str) -> None:
    [verdict] = judge_case(result(reading), lane({"span": ENTRIES["span"]}, base=base), CONTROLS)
    assert (verdict.word, verdict.reason) == (word, reason)
    assert verdict.ratio == pytest.approx(reading.value / 100.0, rel=1e-3)  # type: ignore[operator]
    assert verdict.before == pytest.approx(100.0, rel=1e-3)


@pytest.mark.parametrize(
    ("entries", "fields", "unpaired_word", "why"),
    [
        ({}, {}, Word.NEW, "nothing is recorded"),
        ({"span": TimedEntry(QUIET, "sundial")}, {}, Word.METHOD_CHANGED, "its record is of another kind"),
        ({"span": TimedEntry(QUIET, "clock")}, {"toolchain": msgspec.structs.replace(TOOLCHAIN, torch="3")}, Word.DRIFT,
         "its record is of another kind"),
        ({"span": TimedEntry(QUIET, "clock")}, {"hardware": msgspec.structs.replace(HARDWARE, power_limit_watts=350)},
         Word.OTHER_HARDWARE, "its record is of another kind"),
        ({"span": TimedEntry(QUIET[:4], "clock")}, {}, Word.UNRESOLVED, "4 sessions stored, 5 are needed"),
    ],
)  # fmt: skip
def test_what_the_record_cannot_judge_is_paired_and_else_says_what_stands_in_the_way(
    entries: dict[str, Entry], fields: dict[str, Any], unpaired_word: Word, why: str
) -> None:
    where = lane(entries, base=BASE, **fields)
    measured = result(SPAN)
    [verdict] = judge_case(measured, where, CONTROLS)
    assert (verdict.word, verdict.reason) == (Word.SUSPECT, f"to be paired: {why}")
    assert unpaired(measured, "span", where, "no device").word is unpaired_word
    assert words(judge_case(measured, lane(entries, **fields), CONTROLS)) == {"span": unpaired_word}


def test_an_equal_tree_under_another_toolchain_is_the_toolchain_s_doing() -> None:
    newer = msgspec.structs.replace(TOOLCHAIN, triton="3.7.0")
    [verdict] = judge_case(result(SLOW), lane({"span": ENTRIES["span"]}, base=EQUAL, toolchain=newer))
    assert (verdict.word, verdict.reason) == (Word.DRIFT, "+10.0 %; another toolchain: triton 3.6.0 -> 3.7.0")


def test_a_case_that_is_new_in_an_equal_tree_is_unchanged() -> None:
    assert words(judge_case(result(SLOW), lane(base=EQUAL))) == {"span": Word.UNCHANGED}


@pytest.mark.parametrize("base", [BASE, EQUAL, SHALLOW])
def test_what_is_not_gated_is_shown(base: BaseTree) -> None:
    shown = msgspec.structs.replace(SPAN, value=300.0, gated=False)
    [verdict] = judge_case(result(shown), lane({"span": ENTRIES["span"]}, base=base))
    assert (verdict.word, verdict.reason) == (Word.PASS, "not gated: +200.0 %")
    assert judge_case(result(shown), lane(base=base))[0].reason == "not gated"


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("base", [BASE, EQUAL, SHALLOW])
def test_what_is_no_time_is_unresolved(value: float, base: BaseTree) -> None:
    [verdict] = judge_case(
        result(msgspec.structs.replace(SPAN, value=value)), lane({"span": ENTRIES["span"]}, base=base), CONTROLS
    )
    assert verdict.word is Word.UNRESOLVED
    assert verdict.reason.startswith("NOISY: read ")


def test_higher_is_better_turns_the_ratio() -> None:
    rate = msgspec.structs.replace(SLOW, better=Better.HIGHER)
    [verdict] = judge_case(result(rate), lane({"span": ENTRIES["span"]}, base=BASE))
    assert verdict.ratio == pytest.approx(1 / 1.1, rel=1e-3)


def test_changed_counts_are_judged_whatever_the_time_waits_for() -> None:
    more = msgspec.structs.replace(STEPS, value=2)
    for base in (BASE, EQUAL, SHALLOW):
        verdicts = judge_case(result(SLOW, more), lane({"span": ENTRIES["span"], "steps": 1}, base=base))
        assert named("steps", verdicts).word is Word.CHANGED
