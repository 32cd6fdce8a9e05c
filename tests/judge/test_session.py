"""A run as a whole: what is in question is decided beside the base, or says what stands in the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from perfguard.judge.lane import Lane
from perfguard.judge.run_verdicts import (
    by_device,
    case_id,
    count_suspects,
    judge_session,
    screen_session,
    with_verdicts,
)
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Case,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    PairedCase,
    PairedTime,
    Pairing,
    PairReading,
    Reading,
    TimedEntry,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.records.pair import NO_PAIRS
from perfguard.model.units import Unit

BASE = BaseTree(commit="c0ffee" + "0" * 34)
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1")
SPAN = Reading("span", Unit.MICROSECONDS, 100.0, timer="clock-u4")
SPILLS = Reading("spills", Unit.COUNT, 12, gated=False)
CODE = Reading("code", Unit.TEXT, "new", covers=["span"], gated=False)
STORED: dict[str, Entry] = {"span": TimedEntry([90.0] * 5, "clock-u4"), "spills": 0, "code": "old"}


def result(name: str = "f", *readings: Reading, **fields: Any) -> CaseResult:
    return CaseResult(Case("area", name, "forward"), "x", readings=list(readings or (SPAN, SPILLS, CODE)), **fields)


def lane(*names: str, base: BaseTree = BASE) -> Lane:
    cases = {f"{name}/forward": CaseBaseline(STORED, "x") for name in names or ("f",)}
    return Lane(HARDWARE, Toolchain(), {"area": Baseline("here", "area", cases=cases)}, base=base)


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
    assert found.word is word
    assert found.before == pytest.approx(90.0)
    assert found.ratio is not None
    assert found.interval is not None
    assert found.interval[0] < found.ratio < found.interval[1]
    assert found.limit == pytest.approx(math.expm1(0.01))
    if word is Word.SLOWER:
        assert found.after == pytest.approx(90 * math.exp(0.2), rel=1e-3)
        assert found.ratio == pytest.approx(math.exp(0.2))


def test_slower_says_how_sure_it_is_and_why() -> None:
    base = result("f", SPAN, msgspec.structs.replace(SPILLS, value=3), msgspec.structs.replace(CODE, value="older"))
    found = judged(paired(pairs([0.20, 0.201, 0.199, 0.2]), base=base))
    assert (
        found.reason.startswith("+22.1 % in 3 process pairs (95 % interval +") or "in 4 process pairs" in found.reason
    )
    assert found.reason.endswith("; because: spills 3 -> 12 (+300.0 %)")  # from what the base is now, not its record


def test_a_slower_clock_at_equal_cycles_is_slower_with_the_cycles_beside_it() -> None:
    found = judged(paired(pairs([0.04, 0.0401, 0.0399] * 4, base_mhz=1755.0, work_mhz=1755.0 / math.exp(0.04))))
    assert found.word is Word.SLOWER
    assert "; in cycles +0.0 %, clock 1755 -> 1686 MHz; " in found.reason
    alike = judged(paired(pairs([0.0] * 3, base_mhz=1755.0, work_mhz=1700.0)))
    assert (alike.word, alike.reason) == (Word.PASS, "in cycles -3.1 %, clock 1755 -> 1700 MHz")


def test_undecided_is_not_noisy() -> None:
    found = judged(paired(pairs([0.05, -0.04])), problem="the 10 minutes of pair_minutes are over")
    assert found.word is Word.UNRESOLVED
    assert found.reason.startswith(
        "UNDECIDED: the 10 minutes of pair_minutes are over; +0.5 % in 2 process pairs (95 %"
    )
    noisy = judged(paired(pairs([0.4, -0.3, 0.5, -0.2] * 4)))
    assert noisy.reason.startswith("NOISY: would have seen ")


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


def test_a_case_that_nobody_remembers_stays_new_where_no_pair_reads_it() -> None:
    nowhere = Lane(HARDWARE, Toolchain(), base=BASE)
    assert span_of(screen_session([result()], nowhere)).word is Word.SUSPECT
    assert judged(PairedCase("area", "f/forward", problem="the case is new"), "", nowhere).word is Word.NEW
    cut = judged(None, "the 10 minutes are over", nowhere)  # nobody has looked: that is not to be hidden
    assert (cut.word, cut.reason) == (Word.UNRESOLVED, "UNPAIRED: the 10 minutes are over")
    assert judged(paired(pairs([0.2] * 6)), where=nowhere).word is Word.SLOWER


def test_the_very_same_code_as_the_base_s_is_unchanged_whatever_its_record() -> None:
    found = judged(paired(pairs([0.2] * 6), base=result()))
    assert (found.word, found.reason) == (Word.UNCHANGED, "the device runs the very same code as at the base")
    assert judged(PairedCase("area", "f/forward", result())).word is Word.UNCHANGED


def test_the_family_is_what_is_in_question_in_this_run() -> None:
    """Fifty others in question make a slowdown less certain; fifty that nobody doubts do not."""
    slow = pairs([0.04, 0.02, 0.04, 0.02, 0.035, 0.025])
    names = [f"g{at}" for at in range(50)]
    others = [result(name) for name in names]
    alone = judge_session([result()], lane(), [pairing(paired(slow))])
    doubted = judge_session([result(), *others], lane("f", *names), [pairing(paired(slow))])
    same = [result(name, SPAN, msgspec.structs.replace(CODE, value="old")) for name in names]
    beside = judge_session([result(), *same], lane("f", *names), [pairing(paired(slow))])
    assert span_of(alone).word is Word.SLOWER
    assert span_of(beside) == span_of(alone)
    assert span_of(doubted).reason.startswith("UNDECIDED")
    assert span_of(beside, "g0").word is Word.UNCHANGED
    assert count_suspects(screen_session([result(), *others], lane("f", *names))) == 51


def test_half_slower_and_half_faster_are_both_named() -> None:
    names = [f"f{at}" for at in range(10)]
    cases = [
        paired(pairs([(-1) ** at * 0.1 + 0.0002 * each for each in range(5)]), name) for at, name in enumerate(names)
    ]
    found = judge_session([result(name) for name in names], lane(*names), [pairing(*cases)])
    assert [span_of(found, name).word for name in names] == [Word.SLOWER, Word.FASTER] * 5


def test_all_slower_are_all_named() -> None:
    names = [f"f{at}" for at in range(10)]
    cases = [paired(pairs([0.18 + 0.0002 * each for each in range(5)]), name) for name in names]
    found = judge_session([result(name) for name in names], lane(*names), [pairing(*cases)])
    assert {span_of(found, name).word for name in names} == {Word.SLOWER}


def test_nothing_is_suspect_in_the_end() -> None:
    rival = Reading("beside", Unit.MICROSECONDS, 50.0, timer="turns", rival=40.0, promise=0.05)
    found = judge_session([result("f", SPAN, rival), result("g")], lane("f"), [])
    assert not any(verdict.word is Word.SUSPECT for verdicts in found.values() for verdict in verdicts)
    beside = next(each for each in found["area", "f/forward"] if each.metric == "beside")
    assert (beside.word, beside.reason) == (Word.UNRESOLVED, "UNPAIRED: slower than its rival in one session")


def test_judging_again_says_the_same() -> None:
    """A limit that hangs on the base's time does not move with later pairs."""
    floor = msgspec.structs.replace(SPAN, floor=1.0)
    one = [result("f", floor)]
    readings = [PairReading(at, 0.02, 0.0, us, us * 1.02) for at, us in enumerate([99.0, 45.0, 101.0, 48.0], 1)]
    for upto in range(1, len(readings) + 1):
        found = span_of(judge_session(one, lane(), [pairing(paired(readings[:upto]))]))
        assert found.limit == pytest.approx(math.expm1(1 / 99.0))


def test_an_equal_tree_asks_for_no_pair() -> None:
    equal = msgspec.structs.replace(BASE, equal=True)
    assert span_of(judge_session([result()], lane(base=equal), [])).word is Word.UNCHANGED


def test_devices_are_judged_apart() -> None:
    results = [result("f"), result("g", device=1), result("h")]
    assert {device: [each.case.name for each in held] for device, held in by_device(results).items()} == {
        0: ["f", "h"], 1: ["g"]
    }  # fmt: skip


def test_a_case_has_one_name_in_a_run_and_beside_its_base() -> None:
    assert case_id(result()) == case_id(paired([])) == ("area", "f/forward")


def test_verdicts_are_added_behind_a_case_s_own() -> None:
    told = with_verdicts(result(verdicts=[Verdict(Word.NEW)]), [Verdict(Word.PASS, "span")])
    assert [each.word for each in told.verdicts] == [Word.NEW, Word.PASS]
