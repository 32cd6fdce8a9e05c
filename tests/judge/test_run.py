"""A run as a whole: what is in question is decided beside the base; gone cases; counts; exit status."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace as replace_dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from perfguard.judge.lane import Lane
from perfguard.judge.run_verdicts import (
    by_device,
    count_guarded,
    count_suspects,
    exit_status,
    find_stale,
    judge_session,
    screen_session,
)
from perfguard.model.errors import ExitStatus
from perfguard.model.records import (
    NO_PAIRS,
    TOO_NOISY,
    Baseline,
    BaseTree,
    Better,
    Case,
    CaseBaseline,
    CaseResult,
    Doubt,
    Entry,
    Hardware,
    PairedCase,
    PairedTime,
    Pairing,
    PairReading,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.records.case import is_inconclusive
from perfguard.model.units import Unit

BASE = BaseTree(commit="c0ffee" + "0" * 34)
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1")
SPAN = Reading("span", Unit.MICROSECONDS, 100.0, timer="clock-u4")
SPILLS = Reading("spills", Unit.COUNT, 12, gated=False)
CODE = Reading("code", Unit.TEXT, "new", covers=["span"], gated=False)
STORED: dict[str, Entry] = {"span": TimedEntry([90.0] * 5, "clock-u4"), "spills": 0, "code": "old"}
RECORDINGS = {"f": Provenance(commit="a" * 40), "g": Provenance(commit="b" * 40)}
OVER = "the 10 minutes of pair_minutes are over"


def result(name: str = "f", *readings: Reading, **fields: Any) -> CaseResult:
    return CaseResult(Case("area", name, "forward"), "x", readings=list(readings or (SPAN, SPILLS, CODE)), **fields)


def lane(*names: str, base: BaseTree = BASE) -> Lane:
    cases = {f"{name}/forward": CaseBaseline(STORED, "x") for name in names or ("f",)}
    return Lane(HARDWARE, Toolchain(), [Baseline("here", "area", cases=cases)], base=base)


def pairs(slowdowns: Sequence[float], base_us: float = 90.0, **clocks: float) -> list[PairReading]:
    return [
        PairReading(number, each, 0.0, base_us, base_us * math.exp(each), **clocks)
        for number, each in enumerate(slowdowns, 1)
    ]


def paired(readings: Sequence[PairReading], name: str = "f", **fields: Any) -> PairedCase:
    times = [PairedTime("span", "clock-u4", list(readings), fields.pop("told", ""))]
    return PairedCase("area", f"{name}/forward", times=times, **fields)


def pairing(*cases: PairedCase, problem: str = "") -> Pairing:
    return Pairing(BASE.commit or "", list(cases), 16, problem)


def span_of(verdicts: dict[tuple[str, str], list[Verdict]], name: str = "f") -> Verdict:
    return next(each for each in verdicts["area", f"{name}/forward"] if each.metric == "span")


def judged(case: PairedCase | None, problem: str = "", where: Lane | None = None) -> Verdict:
    held = pairing(*([] if case is None else [case]), problem=problem)
    return span_of(judge_session([result()], where or lane(), [held]))


# -- process pairs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slowdowns", "word"),
    [
        ([0.20, 0.201, 0.199, 0.2], Word.SLOWER),
        ([-0.20, -0.201, -0.199, -0.2], Word.FASTER),
        ([0.0005, -0.0005, 0.0], Word.PASS),
        ([0.4, -0.3, 0.5, -0.2] * 4, Word.UNRESOLVED),
    ],
)
def test_process_pairs_have_the_word(slowdowns: list[float], word: Word) -> None:
    """What the record says of it, +11 %, matters to nobody."""
    assert span_of(screen_session([result()], lane())).word is Word.SUSPECT
    found = judged(paired(pairs(slowdowns)))
    assert (found.word, found.before) == (word, pytest.approx(90.0))
    assert found.ratio is not None
    assert found.interval is not None
    assert found.interval[0] < found.ratio < found.interval[1]
    assert found.limit == pytest.approx(math.expm1(0.01))
    if word is Word.SLOWER:
        assert (found.after, found.ratio) == (pytest.approx(90 * math.exp(0.2), rel=1e-3), pytest.approx(math.exp(0.2)))
    assert found.reason.startswith(TOO_NOISY) is (word is Word.UNRESOLVED)


def test_slower_says_how_sure_it_is_and_why() -> None:
    base = result("f", SPAN, replace(SPILLS, value=3), replace(CODE, value="older"))
    found = judged(paired(pairs([0.20, 0.201, 0.199, 0.2]), base=base))
    # From what the base is now, not its record.
    assert found.reason == "in 3 process pairs; because: spills 3 -> 12 (+300.0 %)"


def test_a_slower_clock_at_equal_cycles_is_slower_with_the_cycles_beside_it() -> None:
    found = judged(paired(pairs([0.04, 0.0401, 0.0399] * 4, base_mhz=1755.0, work_mhz=1755.0 / math.exp(0.04))))
    assert found.word is Word.SLOWER
    assert "; in cycles +0.0 %, clock 1755 -> 1686 MHz; " in found.reason
    alike = judged(paired(pairs([0.0] * 3, base_mhz=1755.0, work_mhz=1700.0)))
    assert (alike.word, alike.reason) == (Word.PASS, "in cycles -3.1 %, clock 1755 -> 1700 MHz")


@pytest.mark.parametrize(
    ("case", "problem", "why"),
    [
        (None, "the base does not build", "the base does not build"),
        (None, "", NO_PAIRS),
        (paired([], told="the base's process died"), "", "the base's process died"),
        (PairedCase("area", "f/forward", problem="the case is new here"), "other", "the case is new here"),
    ],
)
def test_what_no_pair_read_says_why(case: PairedCase | None, problem: str, why: str) -> None:
    found = judged(case, problem)
    assert (found.word, found.reason) == (Word.UNRESOLVED, f"UNPAIRED: {why}")
    assert (found.before, found.ratio) == (pytest.approx(90.0), pytest.approx(100 / 90))  # beside its record


def test_undecided_is_not_noisy() -> None:
    found = judged(paired(pairs([0.05, -0.04])), problem=OVER)
    assert found.word is Word.UNRESOLVED
    assert found.reason.startswith(f"UNDECIDED: {OVER}; in 2 process pairs")


def test_a_case_that_nobody_remembers_stays_new_where_no_pair_reads_it() -> None:
    nowhere = Lane(HARDWARE, Toolchain(), base=BASE)
    assert span_of(screen_session([result()], nowhere)).word is Word.SUSPECT
    assert judged(PairedCase("area", "f/forward", problem="the case is new"), "", nowhere).word is Word.NEW
    cut = judged(None, OVER, nowhere)  # nobody has looked: that is not to be hidden
    assert (cut.word, cut.reason) == (Word.UNRESOLVED, f"UNPAIRED: {OVER}")
    assert judged(paired(pairs([0.2] * 6)), where=nowhere).word is Word.SLOWER


def test_the_very_same_code_as_the_base_s_is_unchanged_whatever_its_record() -> None:
    found = judged(paired(pairs([0.2] * 6), base=result()))
    assert (found.word, found.reason) == (Word.UNCHANGED, "the device runs the very same code as at the base")
    assert judged(PairedCase("area", "f/forward", result())).word is Word.UNCHANGED
    equal = lane(base=replace(BASE, equal=True))
    assert judged(None, where=equal).word is Word.UNCHANGED


def test_the_family_is_what_is_in_question_in_this_run() -> None:
    """Fifty others in question make a slowdown less certain; fifty that nobody doubts do not."""
    slow = pairs([0.04, 0.02, 0.04, 0.02, 0.035, 0.025])
    names = [f"g{at}" for at in range(50)]
    others = [result(name) for name in names]
    doubted = judge_session([result(), *others], lane("f", *names), [pairing(paired(slow))])
    same = [result(name, SPAN, replace(CODE, value="old")) for name in names]
    beside = judge_session([result(), *same], lane("f", *names), [pairing(paired(slow))])
    assert judged(paired(slow)).word is Word.SLOWER
    assert span_of(beside) == judged(paired(slow))
    assert span_of(doubted).reason.startswith("UNDECIDED")
    assert span_of(beside, "g0").word is Word.UNCHANGED
    assert count_suspects(screen_session([result(), *others], lane("f", *names))) == 51


@pytest.mark.parametrize("signs", [(1, 1), (1, -1)], ids=["all slower", "half faster"])
def test_all_that_moved_are_named(signs: tuple[int, int]) -> None:
    names = [f"f{at}" for at in range(10)]
    moved = [pairs([signs[at % 2] * 0.15 + 0.0002 * each for each in range(5)]) for at in range(10)]
    cases = [paired(each, name) for name, each in zip(names, moved, strict=True)]
    found = judge_session([result(name) for name in names], lane(*names), [pairing(*cases)])
    expected = [Word.SLOWER if sign > 0 else Word.FASTER for sign in signs] * 5
    assert [span_of(found, name).word for name in names] == expected


def test_a_fault_that_nobody_was_asked_about_is_open_and_one_that_a_base_could_not_answer_is_wrong() -> None:
    faulty = result(doubts=[Doubt("hard input", "off by one", output="output")])

    def told(*pairings: Pairing, **how: Any) -> Verdict:
        first, *_ = judge_session([faulty], lane(), pairings, **how)[faulty.id]
        return first

    cut = told(cut="the run was cut short")
    assert (cut.word, cut.reason) == (Word.UNRESOLVED, "c0ffee000000 was not asked, the run was cut short: off by one")
    assert told().reason == "c0ffee000000 was not asked: off by one"
    died = told(pairing(problem="the base: no pytest"))
    assert (died.word, died.reason) == (
        Word.WRONG,
        "off by one\nnot comparable with c0ffee000000: the base: no pytest",
    )
    alone = PairedCase(*faulty.id, problem="new since the base")
    assert told(alone=[alone], cut="the run was cut short").word is Word.WRONG  # nobody has to be asked


@pytest.mark.parametrize(("answer", "word"), [("", Word.WRONG), ("off by one, too", Word.PASS), (None, Word.PASS)])
def test_what_a_test_does_not_mention_is_a_fault_only_where_the_base_is_right(answer: str | None, word: Word) -> None:
    doubt = Doubt("hard input", "off by one", output="output", unmentioned=True)
    faulty = result(doubts=[doubt])
    answers = [] if answer is None else [replace(doubt, problem=answer)]
    beside = PairedCase(*faulty.id, base=result(doubts=answers))
    first, *_ = judge_session([faulty], lane(), [pairing(beside)])[faulty.id]
    assert first.word is word
    for how in ({"alone": [PairedCase(*faulty.id, problem="new")]}, {"cut": "the run was cut short"}, {}):
        first, *_ = judge_session([faulty], lane(), [], **how)[faulty.id]
        assert first.word is Word.PASS


def warps(**of_targets: dict[str, int | float | str]) -> list[Reading]:
    return [
        Reading(f"{target}.resident_warps", Unit.COUNT, value, Better.HIGHER, target=target)
        for target, value in of_targets.items()
    ]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((16, 20), (20, 16), {Word.PASS}),  # the swap of two loads
        ((16, 20), (24, 15), {Word.PASS}),
        ((16, 20), (24, 14), {Word.BETTER, Word.CHANGED}),  # more than one block of four
        ((16, 20), (16, 16), {Word.CHANGED}),  # a fall alone
        ((20, 20), (16, 16), {Word.CHANGED}),
        ((16, 20), (20, 20), {Word.BETTER}),
    ],
)
def test_warps_that_rise_here_and_fall_there_by_a_step_are_shown_and_not_gated(
    before: tuple[int, int], after: tuple[int, int], words: set[Word]
) -> None:
    base, work = (warps(sm_80={"rows": one}, sm_90={"rows": other}) for one, other in (before, after))
    changed = result("f", CODE, *work)
    answer = PairedCase(*changed.id, base=result("f", replace(CODE, value="old"), *base))
    found = judge_session([changed], lane(), [pairing(answer)])[changed.id]
    judged = {each.metric: each for each in found if each.metric.endswith("warps") and each.before != each.after}
    assert {each.word for each in judged.values()} == words
    if words == {Word.PASS}:
        text = f"rows sm_80 {before[0]} -> {after[0]}, sm_90 {before[1]} -> {after[1]}"
        assert {each.reason for each in judged.values()} == {f"not gated, both ways between targets: {text}"}
    # Another kernel that loses more is a finding as ever.
    worse = result("f", CODE, *warps(sm_80={"rows": after[0], "sums": 20}, sm_90={"rows": after[1], "sums": 8}))
    two = warps(sm_80={"rows": before[0], "sums": 20}, sm_90={"rows": before[1], "sums": 16})
    answer = replace(answer, base=replace(worse, readings=[replace(CODE, value="old"), *two]))
    found = judge_session([worse], lane(), [pairing(answer)])[worse.id]
    assert next(each.word for each in found if each.metric == "sm_90.resident_warps") is Word.CHANGED


def test_a_constant_of_a_launch_is_the_cause_of_its_work() -> None:
    def side(block: int, code: str) -> CaseResult:
        work = Reading("kernel_work", Unit.COUNT, {"loads": 6400 // block}, portable=True)
        constants = {"`rows`: BLOCK": str(block), "`rows`: entry": "narrow"}
        configuration = Reading("configuration", Unit.TEXT, constants, Better.SAME, gated=False, portable=True)
        return result("f", replace(CODE, value=code), work, configuration)

    changed = side(32, "new")
    answer = PairedCase(*changed.id, base=side(64, "old"))
    found = judge_session([changed], lane(), [pairing(answer)])[changed.id]
    (verdict,) = (each for each in found if each.metric == "kernel_work")
    assert verdict.word is Word.CHANGED
    assert "because: configuration `rows`: BLOCK 64 -> 32" in verdict.reason


def test_each_time_is_left_open_for_the_reason_of_its_own_base() -> None:
    """One run asks the commits of several records."""
    where = replace_dataclass(lane("f", "g"), base=None, base_at=lambda commit: BaseTree(commit))
    where = replace_dataclass(where, files=[replace(file, recordings=RECORDINGS, cases={
        f"{name}/forward": replace(file.cases[f"{name}/forward"], recording=name) for name in "fg"
    }) for file in where.files])  # fmt: skip
    verdicts = judge_session([result("f"), result("g")], where, [Pairing("a" * 40, problem="a died")], cut="too late")
    assert {name: span_of(verdicts, name).reason for name in "fg"} == {
        "f": "UNPAIRED: a died",
        "g": "UNPAIRED: too late",
    }


def test_nothing_is_suspect_in_the_end() -> None:
    rival = Reading("beside", Unit.MICROSECONDS, 50.0, timer="turns", rival=40.0, promise=0.05)
    found = judge_session([result("f", SPAN, rival), result("g")], lane("f"), [])
    assert not any(verdict.word is Word.SUSPECT for verdicts in found.values() for verdict in verdicts)
    beside = next(each for each in found["area", "f/forward"] if each.metric == "beside")
    assert (beside.word, beside.reason) == (Word.UNRESOLVED, "UNPAIRED: slower than its rival in one session")


def test_a_limit_that_hangs_on_the_base_s_time_does_not_move_with_later_pairs() -> None:
    one = [result("f", replace(SPAN, floor=1.0))]
    readings = [PairReading(at, 0.02, 0.0, us, us * 1.02) for at, us in enumerate([99.0, 45.0, 101.0, 48.0], 1)]
    for upto in range(1, len(readings) + 1):
        found = span_of(judge_session(one, lane(), [pairing(paired(readings[:upto]))]))
        assert found.limit == pytest.approx(math.expm1(1 / 99.0))


def test_devices_are_judged_apart() -> None:
    found = by_device([result("f"), result("g", device=1), result("h")])
    assert {at: [each.case.name for each in held] for at, held in found.items()} == {0: ["f", "h"], 1: ["g"]}


# -- entries whose case is gone ----------------------------------------------------------------------------------------


def remembering(own: dict[str, str], portable: dict[str, str] | None = None, suite: str = "area") -> Lane:
    """`own` and `portable`: case key -> inputs."""

    def file(folder: str, held: dict[str, str]) -> Baseline:
        return Baseline(folder, suite, cases={key: CaseBaseline({"steps": 1}, inputs) for key, inputs in held.items()})

    files = [file("here", own), file("any", portable or {})]
    return Lane(replace(HARDWARE, target="any"), Toolchain(), files)


def ran(name: str, word: Word, inputs: str = "f32[64]", suite: str = "area", **case: Any) -> CaseResult:
    steps = Reading("steps", Unit.COUNT, 1)
    named = Case(suite, name, case.get("direction", "forward"))
    return CaseResult(named, inputs, readings=[steps], verdicts=[Verdict(word, "steps")])


F = {"f/forward": "x", "f/backward": "x", "f:second/forward": "x"}
LABELLED = {"f[1:2]/forward": "x", "f[1:2]/backward": "x", "f[1:2]:second/forward": "x"}


@pytest.mark.parametrize(
    ("held", "names", "results", "fields", "gone"),
    [
        # wherever it is remembered
        (remembering({"f/forward": "x", "g/forward": "x"}, {"h/forward": "x", "h/backward": "x"}), ["g"], [], {},
         ["f/forward", "h/backward", "h/forward"]),
        (remembering(F), [], [], {"whole": False}, []),  # a suite collected in part tells nothing
        (remembering(F), ["f"], [], {}, []),  # a test that did not run is not gone
        (remembering(F), ["f"], [ran("f", Word.PASS)], {"ended": ["f"]}, ["f/backward", "f:second/forward"]),
        *((remembering(LABELLED), ["f[1:2]"], [ran("f[1:2]", word)], {}, [])  # it ended early
          for word in (Word.PASS, Word.WRONG, Word.BROKEN, Word.CHANGED)),
    ],
)  # fmt: skip
def test_an_entry_is_gone_with_its_test_or_its_pass(
    held: Lane, names: Collection[str], results: list[CaseResult], fields: dict[str, Any], gone: list[str]
) -> None:
    whole = {"area"} if fields.get("whole", True) else set()
    ended = [("area", name) for name in fields.get("ended", ())]
    verdicts = find_stale(held, whole, {"area": names}, {(each.case.suite, each.case.key) for each in results}, ended)
    assert [(verdict.case, verdict.word, verdict.suite) for verdict in verdicts] == [
        (key, Word.STALE, "area") for key in gone
    ]


# -- the exit status ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "options", "status"),
    [
        ([Word.PASS, Word.FASTER], {"strict": True}, ExitStatus.PASSED),
        ([Word.NEW, Word.UNRESOLVED, Word.STALE], {}, ExitStatus.PASSED),
        ([Word.NEW], {"strict": True}, ExitStatus.UNGUARDED),
        ([Word.STALE], {"strict": True}, ExitStatus.UNGUARDED),
        ([Word.UNSUPPORTED, Word.PASS], {"strict": True}, ExitStatus.PASSED),
        ([Word.NEW], {"strict": True, "measured": 0}, ExitStatus.NOTHING_MEASURED),
        ([], {"measured": 0}, ExitStatus.NOTHING_MEASURED),
        ([Word.BROKEN], {"strict": True, "measured": 0}, ExitStatus.TESTS_FAILED),
        ([Word.PASS], {"tests_failed": True}, ExitStatus.TESTS_FAILED),
        ([Word.SLOWER, Word.BROKEN], {"tests_failed": True}, ExitStatus.REGRESSED),
        ([Word.CHANGED], {}, ExitStatus.REGRESSED),
        ([Word.SLOWER, Word.WRONG], {"tests_failed": True}, ExitStatus.WRONG),
        # inconclusive is no success, and hides nothing
        ([Word.PASS, Word.UNRESOLVED], {"inconclusive": True}, ExitStatus.UNGUARDED),
        ([Word.UNRESOLVED, Word.SLOWER], {"inconclusive": True}, ExitStatus.REGRESSED),
        ([Word.UNRESOLVED], {"inconclusive": True, "tests_failed": True}, ExitStatus.TESTS_FAILED),
    ],
)
def test_exit_status(words: list[Word], options: dict[str, Any], status: ExitStatus) -> None:
    assert exit_status(words, **{"strict": False, "measured": 2, **options}) is status


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
    quiet = [Reading("steps", Unit.COUNT, 1), replace(SPAN, metric="shown", gated=False)]
    told = [Verdict(Word.UNRESOLVED, "steps"), Verdict(Word.UNRESOLVED, "shown"), Verdict(Word.UNRESOLVED, "gone")]
    results = [result(str(at), SPAN, *quiet, verdicts=[Verdict(word, "span"), *told]) for at, word in enumerate(words)]
    assert is_inconclusive(results) is inconclusive


@pytest.mark.parametrize(
    ("ratio", "reason", "inconclusive"),
    [
        (1.04, "UNPAIRED: no git", True),
        (1.04, "UNDECIDED: the 10 minutes were over", True),
        (1.02, "UNPAIRED: no git", False),  # within what the gate promises
        (0.9, "UNPAIRED: no git", False),
        (1.04, "NOISY: smallest detectable change: 6 %", False),  # all its pairs were measured
    ],
)
def test_one_slower_time_that_no_pair_read_is_no_plain_success(ratio: float, reason: str, inconclusive: bool) -> None:
    device = replace(SPAN, metric="device_time_us", promise=0.03)
    passed = [result(str(at), device, verdicts=[Verdict(Word.PASS, "device_time_us")]) for at in range(20)]
    open_ = result("open", device, verdicts=[Verdict(Word.UNRESOLVED, "device_time_us", ratio=ratio, reason=reason)])
    assert is_inconclusive([*passed, open_]) is inconclusive


def test_a_host_time_that_nobody_can_tell_leaves_the_device_s_judged() -> None:
    times = replace(SPAN, metric="device_time_us", promise=0.03), replace(SPAN, metric="host_time_us", promise=0.5)
    host = Verdict(Word.UNRESOLVED, "host_time_us")
    for word, inconclusive in ((Word.PASS, False), (Word.UNRESOLVED, True)):
        both = result("both", *times, verdicts=[Verdict(word, "device_time_us"), host])
        assert is_inconclusive([both]) is inconclusive
    assert is_inconclusive([result("alone", times[1], verdicts=[host])])


def test_guarded_is_what_was_judged_by_a_gate() -> None:
    free = Reading("note", Unit.COUNT, 1, gated=False)
    shown = result("free", free, verdicts=[Verdict(Word.PASS, "note")])
    words = [Word.PASS, Word.FASTER, Word.SLOWER, Word.CHANGED]
    unjudged = [Word.NEW, Word.UNRESOLVED, Word.DRIFT, Word.METHOD_CHANGED, Word.OTHER_HARDWARE, Word.BROKEN]
    assert count_guarded([ran(word, word) for word in (*words, *unjudged)] + [shown]) == len(words)
