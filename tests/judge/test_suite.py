"""The run as a whole: gone and renamed cases, counts, exit status."""

from __future__ import annotations

import pytest

from perfguard.judge.lane import Lane
from perfguard.judge.run_verdicts import count_guarded, exit_status, find_stale
from perfguard.model.errors import ExitStatus
from perfguard.model.records import (
    Baseline,
    Case,
    CaseBaseline,
    CaseResult,
    Hardware,
    Pass,
    Reading,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.records.case import is_inconclusive
from perfguard.model.units import Unit

HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1", target="any")


def lane(own: dict[str, str], portable: dict[str, str] | None = None, suite: str = "area") -> Lane:
    """`own` and `portable`: case key -> inputs."""

    def files(held: dict[str, str], slug: str) -> dict[str, Baseline]:
        cases = {key: CaseBaseline({"steps": 1}, inputs) for key, inputs in held.items()}
        return {suite: Baseline(slug, suite, cases=cases)}

    return Lane(HARDWARE, Toolchain(), files(own, "here"), files(portable or {}, "targets/any"))


def result(
    name: str, word: Word, inputs: str = "f32[64]", direction: Pass = "forward", suite: str = "area"
) -> CaseResult:
    steps = Reading("steps", Unit.COUNT, 1)
    return CaseResult(Case(suite, name, direction), inputs, readings=[steps], verdicts=[Verdict(word, "steps")])


def stale(
    lane: Lane, names: list[str], results: list[CaseResult], whole: bool = True, ended: bool = True
) -> dict[str, Word]:
    through = {("area", name) for name in names} if ended and results else set()
    verdicts, _ = find_stale(lane, {"area"} if whole else set(), {"area": set(names)}, results, through)
    assert all(verdict.suite == "area" and verdict.case in verdict.reason for verdict in verdicts)
    return {verdict.case: verdict.word for verdict in verdicts}


def test_an_entry_without_its_test_is_stale_wherever_it_is_remembered() -> None:
    held = lane({"f/forward": "x", "g/forward": "x"}, {"f/forward": "x", "h/forward": "x", "h/backward": "x"})
    assert stale(held, ["g"], []) == dict.fromkeys(["f/forward", "h/backward", "h/forward"], Word.STALE)


def test_a_suite_collected_in_part_tells_nothing() -> None:
    assert stale(lane({"f/forward": "x"}), [], [], whole=False) == {}


def test_a_test_that_did_not_run_is_not_gone() -> None:
    assert stale(lane({"f/forward": "x", "f:second/forward": "x"}), ["f"], []) == {}


def test_a_pass_that_its_test_no_longer_guards_is_stale() -> None:
    held = lane({"f/forward": "x", "f/backward": "x", "f:second/forward": "x"})
    ran = result("f", Word.PASS)
    assert stale(held, ["f"], [ran]) == dict.fromkeys(["f/backward", "f:second/forward"], Word.STALE)


@pytest.mark.parametrize("word", [Word.PASS, Word.WRONG, Word.BROKEN, Word.CHANGED])
def test_a_test_that_ended_early_leaves_nothing_stale(word: Word) -> None:
    held = lane({"f[1:2]/forward": "x", "f[1:2]/backward": "x", "f[1:2]:second/forward": "x"})
    assert stale(held, ["f[1:2]"], [result("f[1:2]", word)], ended=False) == {}


def test_a_renamed_case_is_told_on_both_sides() -> None:
    held = lane({"quantize_col[64]/forward": "f32[64]"})
    new = result("quantize_column[64]", Word.NEW)
    verdicts, renamed = find_stale(held, {"area"}, {"area": {"quantize_column[64]"}}, [new], ())
    assert [(verdict.word, verdict.case) for verdict in verdicts] == [(Word.RENAMED, "quantize_col[64]/forward")]
    assert "now quantize_column[64]/forward" in verdicts[0].reason
    [now] = renamed
    assert now.case == new.case
    assert [(v.word, v.metric, v.reason) for v in now.verdicts] == [
        (Word.RENAMED, "steps", "was quantize_col[64]/forward")
    ]


@pytest.mark.parametrize(
    "new",
    [
        result("quantize_columns", Word.NEW, inputs="f32[32]"),
        result("quantize_columns", Word.NEW, direction="backward"),
        result("transpose", Word.NEW),
        result("quantize_columns", Word.NEW, suite="other"),
        result("quantize_columns", Word.OTHER_HARDWARE),
    ],
    ids=["inputs", "pass", "name", "suite", "not new"],
)
def test_what_is_not_alike_is_not_a_rename(new: CaseResult) -> None:
    held = lane({"quantize_cols/forward": "f32[64]"})
    verdicts, renamed = find_stale(held, {"area"}, {"area": {new.case.name}}, [new], ())
    assert [verdict.word for verdict in verdicts] == [Word.STALE]
    assert renamed == []


def test_unknown_inputs_match_nothing() -> None:
    held = lane({"quantize_cols/forward": ""})
    new = result("quantize_columns", Word.NEW, inputs="")
    assert find_stale(held, {"area"}, {"area": {"quantize_columns"}}, [new], ())[1] == []


def test_a_renamed_file_is_told() -> None:
    held = lane({"quantize/forward": "f32[64]"}, suite="old")
    new = result("quantize", Word.NEW)
    verdicts, renamed = find_stale(held, {"old", "area"}, {"area": {"quantize"}}, [new], ())
    assert (verdicts[0].word, verdicts[0].reason) == (
        Word.RENAMED, "quantize/forward of old: now quantize/forward of area"
    )  # fmt: skip
    assert renamed[0].verdicts[0].reason == "was quantize/forward of old"


def test_renames_pair_one_to_one_the_likeliest_first() -> None:
    held = lane({"scale_rows/forward": "f32[64]", "scale_cols/forward": "f32[64]", "scale_all/forward": "f32[64]"})
    new = [result("scale_columns", Word.NEW), result("scale_row", Word.NEW)]
    verdicts, renamed = find_stale(held, {"area"}, {"area": {"scale_columns", "scale_row"}}, new, ())
    now = {verdict.case: verdict.reason.partition(": ")[2] for verdict in verdicts}
    assert now == {
        "scale_all/forward": "the case is gone",
        "scale_cols/forward": "now scale_columns/forward",
        "scale_rows/forward": "now scale_row/forward",
    }
    assert len(renamed) == 2


@pytest.mark.parametrize(
    ("words", "strict", "measured", "tests_failed", "status"),
    [
        ([Word.PASS, Word.FASTER], True, 2, False, ExitStatus.PASSED),
        ([Word.NEW, Word.UNRESOLVED, Word.STALE], False, 2, False, ExitStatus.PASSED),
        ([Word.NEW], True, 1, False, ExitStatus.UNGUARDED),
        ([Word.STALE], True, 1, False, ExitStatus.UNGUARDED),
        ([Word.UNSUPPORTED, Word.PASS], True, 1, False, ExitStatus.PASSED),
        ([Word.NEW], True, 0, False, ExitStatus.NOTHING_MEASURED),
        ([], False, 0, False, ExitStatus.NOTHING_MEASURED),
        ([Word.BROKEN], True, 0, False, ExitStatus.TESTS_FAILED),
        ([Word.PASS], False, 1, True, ExitStatus.TESTS_FAILED),
        ([Word.SLOWER, Word.BROKEN], False, 1, True, ExitStatus.REGRESSED),
        ([Word.CHANGED], False, 1, False, ExitStatus.REGRESSED),
        ([Word.SLOWER, Word.WRONG], False, 1, True, ExitStatus.WRONG),
    ],
)
def test_exit_status(words: list[Word], strict: bool, measured: int, tests_failed: bool, status: ExitStatus) -> None:
    assert exit_status(words, strict, measured, tests_failed) is status


@pytest.mark.parametrize(
    ("words", "inconclusive"),
    [
        ([], False),
        ([Word.PASS, Word.UNRESOLVED], False),
        ([Word.PASS, Word.UNRESOLVED, Word.UNRESOLVED], True),
        ([Word.SUSPECT], True),
        ([Word.NEW, Word.DRIFT, Word.METHOD_CHANGED], False),  # said by other words, which ask to record
        ([Word.UNCHANGED, Word.SLOWER, Word.UNRESOLVED], False),
    ],
)
def test_a_run_is_inconclusive_where_most_times_stay_in_question(words: list[Word], inconclusive: bool) -> None:
    span = Reading("span", Unit.MICROSECONDS, 1.0, timer="clock")
    quiet = [Reading("steps", Unit.COUNT, 1), Reading("shown", Unit.MICROSECONDS, 1.0, timer="clock", gated=False)]
    told = [Verdict(Word.UNRESOLVED, "steps"), Verdict(Word.UNRESOLVED, "shown"), Verdict(Word.UNRESOLVED, "gone")]
    results = [
        CaseResult(Case("area", str(at), "forward"), readings=[span, *quiet], verdicts=[Verdict(word, "span"), *told])
        for at, word in enumerate(words)
    ]
    assert is_inconclusive(results) is inconclusive


@pytest.mark.parametrize(("device", "inconclusive"), [(Word.PASS, False), (Word.UNRESOLVED, True)])
def test_a_host_time_that_nobody_can_tell_leaves_the_device_s_judged(device: Word, inconclusive: bool) -> None:
    times = [
        Reading("device_time_us", Unit.MICROSECONDS, 50.0, timer="graph", promise=0.03),
        Reading("host_time_us", Unit.MICROSECONDS, 30.0, timer="host", promise=0.5),
    ]
    verdicts = [Verdict(device, "device_time_us"), Verdict(Word.UNRESOLVED, "host_time_us")]
    both = CaseResult(Case("area", "both", "forward"), readings=times, verdicts=verdicts)
    assert is_inconclusive([both]) is inconclusive
    alone = CaseResult(Case("area", "alone", "forward"), readings=times[1:], verdicts=verdicts[1:])
    assert is_inconclusive([alone])


@pytest.mark.parametrize(
    ("words", "tests_failed", "status"),
    [
        ([Word.PASS, Word.UNRESOLVED], False, ExitStatus.UNGUARDED),
        ([Word.UNRESOLVED, Word.SLOWER], False, ExitStatus.REGRESSED),
        ([Word.UNRESOLVED], True, ExitStatus.TESTS_FAILED),
    ],
)
def test_inconclusive_is_no_success_and_hides_nothing(
    words: list[Word], tests_failed: bool, status: ExitStatus
) -> None:
    assert exit_status(words, False, 2, tests_failed, inconclusive=True) is status


def test_guarded_is_what_was_judged_by_a_gate() -> None:
    free = Reading("note", Unit.COUNT, 1, gated=False)
    shown = CaseResult(Case("area", "free", "forward"), readings=[free], verdicts=[Verdict(Word.PASS, "note")])
    judged = [Word.PASS, Word.FASTER, Word.SLOWER, Word.CHANGED]
    unjudged = [Word.NEW, Word.UNRESOLVED, Word.DRIFT, Word.METHOD_CHANGED, Word.OTHER_HARDWARE, Word.BROKEN]
    results = [result(f"f{index}", word) for index, word in enumerate(judged + unjudged)]
    assert count_guarded([*results, shown]) == len(judged)


def test_remembered_counts_a_case_once() -> None:
    assert len(lane({"f/forward": "x", "g/forward": "x"}, {"f/forward": "x"}).remembered) == 2
