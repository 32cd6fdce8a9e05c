"""The rungs of the ladder: which word applies first, and which file a reading is looked up in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfguard.judge import Lane, judge_case
from perfguard.records import (
    Accuracy,
    Baseline,
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
from perfguard.units import Unit

QUIET = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 100.1, 99.9]
CASE = Case("area", "f[64]", "forward")
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1", target="any", power_limit_watts=700)
TOOLCHAIN = Toolchain(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.4")
PROVENANCE = Provenance(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.9", power_limit_watts=700)
ENTRIES: dict[str, Entry] = {"span": TimedEntry(QUIET, "clock"), "steps": 1, "names": ["a"], "shape": "[64]"}

SPAN = Reading("span", Unit.MICROSECONDS, 100.1, timer="clock")
STEPS = Reading("steps", Unit.COUNT, 1)
NAMES = Reading("names", Unit.TEXT, ["a"], gated=False)
SHAPE = Reading("shape", Unit.TEXT, "[64]", portable=True)


def result(*readings: Reading, **fields: Any) -> CaseResult:
    return CaseResult(case=fields.pop("case", CASE), inputs="f32[64]", readings=list(readings), **fields)


def lane(
    entries: dict[str, Entry] | None = None,
    portable: dict[str, Entry] | None = None,
    inputs: str = "f32[64]",
    **fields: Any,
) -> Lane:
    def files(held: dict[str, Entry] | None, slug: str) -> dict[str, Baseline]:
        if held is None:
            return {}
        return {"area": Baseline(slug, "area", PROVENANCE, {CASE.key: CaseBaseline(held, inputs)})}

    fields = {"hardware": HARDWARE, "toolchain": TOOLCHAIN, **fields}
    return Lane(baselines=files(entries, "here"), portable=files(portable, "targets/any"), **fields)


def words(verdicts: list[Verdict]) -> dict[str, Word]:
    assert len({verdict.metric for verdict in verdicts}) == len(verdicts)
    return {verdict.metric: verdict.word for verdict in verdicts}


def test_each_reading_gets_one_verdict() -> None:
    own = {name: entry for name, entry in ENTRIES.items() if name != "shape"}
    verdicts = judge_case(result(SPAN, STEPS, NAMES, SHAPE), lane(own, {"shape": "[64]"}))
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


@pytest.mark.parametrize(
    ("board", "factor", "word"),
    [
        ("gpu-a", 1.02, Word.SLOWER),
        (None, 1.02, Word.SLOWER),  # nobody knows
        ("gpu-b", 1.02, Word.UNRESOLVED),
        ("gpu-b", 1.10, Word.SLOWER),
    ],
)
def test_a_board_of_the_same_kind_is_not_the_one_that_recorded(board: str | None, factor: float, word: Word) -> None:
    file = Baseline(
        "here", "area", msgspec.structs.replace(PROVENANCE, board="gpu-a"), {CASE.key: CaseBaseline(ENTRIES, "f32[64]")}
    )
    slow = result(msgspec.structs.replace(SPAN, value=100 * factor), conditions=Conditions(board=board))
    verdict = judge_case(slow, Lane(HARDWARE, TOOLCHAIN, {"area": file}, timed_now=200), [slow] * 3)[0]
    assert verdict.word is word
    assert ("recorded on another board" in verdict.reason) is (word is Word.UNRESOLVED)


def test_portable_readings_are_remembered_for_the_target() -> None:
    verdicts = judge_case(result(SHAPE), lane(None, {"shape": "[63]"}))
    assert words(verdicts) == {"shape": Word.CHANGED}


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


def test_slower_says_why() -> None:
    readings = [
        msgspec.structs.replace(STEPS, value=2),
        SLOW,
        msgspec.structs.replace(NAMES, value=["a", "_copy"]),
    ]
    own = {"span": ENTRIES["span"], "steps": 1, "names": ["a"]}
    verdicts = judge_case(result(*readings), lane(own), [result(SLOW)] * 3)
    assert words(verdicts) == {"steps": Word.CHANGED, "span": Word.SLOWER, "names": Word.PASS}
    assert verdicts[1].reason.endswith("; because: steps 1 -> 2 (+100.0 %), names + _copy")


def test_slower_says_when_nothing_else_moved() -> None:
    own = {"span": ENTRIES["span"], "steps": 1}
    verdicts = judge_case(result(SLOW, STEPS), lane(own), [result(SLOW, STEPS)] * 3)
    assert words(verdicts) == {"span": Word.SLOWER, "steps": Word.PASS}
    assert verdicts[0].reason.endswith("; no exact metric moved")


def test_a_suspect_waits_for_fresh_processes() -> None:
    own = {"span": ENTRIES["span"]}
    assert words(judge_case(result(SLOW), lane(own))) == {"span": Word.SUSPECT}
    assert words(judge_case(result(SLOW), lane(own), [])) == {"span": Word.UNRESOLVED}
    [verdict] = judge_case(result(SLOW), lane(own), [], "the device went away")
    assert (verdict.word, verdict.reason.split("; ")[1]) == (Word.UNRESOLVED, "the device went away")


@pytest.mark.parametrize(
    "other",
    [
        result(SLOW, case=Case("area", "g[64]", "forward")),
        result(SLOW, case=Case("area", "f[64]", "backward")),
        result(SLOW, case=Case("other", "f[64]", "forward")),
        result(msgspec.structs.replace(SLOW, timer="sundial")),
        msgspec.structs.replace(result(SLOW), inputs="f32[32]"),
        result(STEPS),
    ],
    ids=["name", "pass", "suite", "timer", "inputs", "metric"],
)
def test_only_the_same_reading_confirms(other: CaseResult) -> None:
    own = {"span": ENTRIES["span"]}
    [verdict] = judge_case(result(SLOW), lane(own), [result(SLOW), result(SLOW), other])
    assert verdict.word is Word.UNRESOLVED
    assert verdict.reason.endswith("2 of 3 fresh processes read it undisturbed")


def test_fresh_processes_are_as_many_as_the_lane_wants() -> None:
    own = {"span": ENTRIES["span"]}
    assert words(judge_case(result(SLOW), lane(own, confirmations=1), [result(SLOW)])) == {"span": Word.SLOWER}


def test_a_disturbed_fresh_process_confirms_nothing() -> None:
    own = {"span": ENTRIES["span"]}
    disturbed = result(msgspec.structs.replace(SLOW, rejected_blocks=3))
    [verdict] = judge_case(result(SLOW), lane(own), [result(SLOW), result(SLOW), disturbed])
    assert verdict.reason.endswith("2 of 3 fresh processes read it undisturbed")
