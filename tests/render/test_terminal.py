"""The summary, against golden text: worst first, before -> after, the commands that act, and how long it is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.model.records import (
    TOO_NOISY,
    BaseTree,
    Better,
    Case,
    CaseResult,
    Conditions,
    HardCounts,
    PairedCase,
    Pairing,
    Reading,
    Report,
    Value,
    Verdict,
    Word,
)
from perfguard.model.units import Unit
from perfguard.render.terminal import MOST_QUIET, render_summary
from perfguard.render.words import checked_beside, moved, one_line
from tests.render.examples import FASTER, LAUNCHES, SLOWER, lane, result

PASS = Verdict(Word.PASS, "device_time_us", smallest=0.018)
STALE = Verdict(Word.STALE, reason="gone of suite: the case is gone", suite="suite", case="gone/forward")
BASE = "9ab77e2c1d5b3b6f7a9e8d7c6b5a4f3e2d1c0b9a"
WHOLE = lane("nvidia-h200").report
assert WHOLE is not None
REPORT = msgspec.structs.replace(
    WHOLE,
    pairings=[Pairing(BASE, [PairedCase("norms", f"{name}/forward") for name in ("slow[64]", "fresh")], pairs=4)],
    conditions=[Conditions(clock_mhz=345), Conditions(clock_mhz=1980, throttle_reasons=["power cap"])],
    remembered=4,
    results=[
        result("fine", PASS, us=61.2),
        result("slow[64]", SLOWER, LAUNCHES, us=61.2),
        result("bad", Verdict(Word.WRONG, "output 0", "row 3: got 1, want 2\nSQNR 6.0 dB"), us=None),
        result("fresh", Verdict(Word.NEW, "device_time_us", "no baseline on nvidia-h200"), us=61.2),
    ],
    stale=[STALE],
)

GOLDEN = """\
NVIDIA H200 · driver 580.159.04 · CUDA 13.0 · 1980 MHz · throttled: power cap · torch 2.11.0 · triton 3.6.0 · copy 4.23 TB/s
1 WRONG, 1 SLOWER, 1 STALE, 1 NEW, 1 PASS; slowest fine/forward 61.2 µs; 6.0 s
case              time     throughput  % of copy  verdict
fine/forward      61.2 µs  4 TB/s      95 %       PASS
slow[64]/forward  61.2 µs  4 TB/s      95 %       SLOWER
fresh/forward     61.2 µs  4 TB/s      95 %       NEW
WRONG  bad/forward  output 0: row 3: got 1, want 2
    SQNR 6.0 dB
    reproduce: pytest --perfguard tests/test_norms.py::test_bad
SLOWER  slow[64]/forward  device_time_us 61.2 µs -> 64.93 µs (+6.1 %, 95 % +5.5 to +6.7)
    because:   launches 1 -> 2 (+100.0 %); in 3 process pairs; CHANGED launches
    reproduce: pytest --perfguard 'tests/test_norms.py::test_slow[64]'
    compare:   perfguard compare -- 'tests/test_norms.py::test_slow[64]'
    accept:    pytest --perfguard --perfguard-update=changed,slower --perfguard-reason 'why' 'tests/test_norms.py::test_slow[64]'
STALE  1 case (gone/forward): stored, and the test is gone; remove: pytest --perfguard --perfguard-update=stale
NEW  1 case (fresh/forward): no baseline here, not guarded; record: pytest --perfguard --perfguard-update=new"""


def lines(report: Report, verbose: bool = False) -> list[str]:
    return [line.text for line in render_summary(report, verbose=verbose).lines]


def of(*results: CaseResult) -> Report:
    return msgspec.structs.replace(REPORT, results=list(results), stale=[])


def test_golden() -> None:
    summary = render_summary(REPORT)
    assert summary.title == "nvidia-h200, 2 of 4 cases guarded, baselines hold 4"
    assert "\n".join(line.text for line in summary.lines) == GOLDEN


def test_many_cases_of_few_causes_take_a_block_each() -> None:
    slow = REPORT.results[1]
    many = [
        msgspec.structs.replace(
            slow,
            case=msgspec.structs.replace(slow.case, name=f"{kernel}[{number}]"),
            verdicts=[msgspec.structs.replace(SLOWER, reason=f"because: kernels + copy_of_{kernel}{number}"), LAUNCHES],
        )
        for number in range(250)
        for kernel in ("slow", "late")
    ]
    text = lines(of(*many))
    assert text[1].startswith("500 SLOWER; ")
    assert [line for line in text if line.startswith("SLOWER  ")] == [
        f"SLOWER  {kernel} (tests/test_norms.py), in 250 cases: kernels + copy_of_{kernel}0"
        for kernel in ("slow", "late")
    ]
    assert len(text) == 2 + 2 * 5
    assert text[3].startswith("    worst:     slow[0]/forward  device_time_us 61.2 µs -> 64.93 µs (+6.1 %, 95 % ")
    assert text[3].endswith("; also slow[1]/forward, slow[2]/forward, slow[3]/forward, slow[4]/forward, slow[5]/forward"
                            " and 244 more")  # fmt: skip
    assert text[-1].endswith(" --perfguard-reason 'why' 'tests/test_norms.py::test_slow[64]'")


def test_many_causes_are_counted_truthfully() -> None:
    slow = REPORT.results[1]
    many = [
        msgspec.structs.replace(slow, case=msgspec.structs.replace(slow.case, name=f"f{kernel}[{number}]"))
        for number in range(2)
        for kernel in range(50)
    ]
    text = lines(of(*many))
    assert text[1].startswith("100 SLOWER; ")
    assert sum(line.startswith("SLOWER  ") for line in text) == 20
    assert text[-1].startswith("… and 80 more SLOWER: ")
    full = lines(of(*many), verbose=True)
    assert sum(line.startswith("SLOWER  ") for line in full) == 100


def test_many_new_metrics_of_a_slow_case_take_no_line_of_their_own() -> None:
    """After an upgrade that reads more, or an old baseline."""
    slow = REPORT.results[1].verdicts[0]
    new = [Verdict(Word.NEW, f"metric_{number}", "no baseline on nvidia-h200") for number in range(24)]
    text = lines(of(result("slow[64]", *new, slow)))
    assert "NEW" not in "\n".join(text)
    assert "; 24 metrics new: metric_0, metric_1, metric_2, metric_3, metric_4 and 19 more; " in text[1]


def test_whatever_is_wrong_with_a_case_it_takes_five_lines() -> None:
    slow, heavy = REPORT.results[1].verdicts
    also = [msgspec.structs.replace(heavy, metric=f"m{number}", reason=f"m{number} 1 -> 2") for number in range(30)]
    wrong = Verdict(Word.WRONG, "output", "\n".join(f"row {number}: got 1, want 2" for number in range(30)))
    for case in (result("a", slow, *also), result("a", *also), result("a", wrong, slow, *also)):
        text = lines(of(msgspec.structs.replace(case, notes=["told by the case", "twice"])))
        at = next(place for place, line in enumerate(text) if line.startswith(("SLOWER", "CHANGED", "WRONG")))
        assert 3 <= len(text[at:]) <= 5
        assert all(line.startswith("    ") for line in text[at + 1 :])
        assert sum("reproduce: " in line for line in text) == 1
        full = "\n".join(lines(of(case), verbose=True))
        assert all(f"m{number} 1 -> 2" in full for number in range(30))


def test_a_change_that_is_the_same_on_several_targets_is_one_line() -> None:
    def clone(target: str, count: int) -> Verdict:
        change = f"{target}.memory_operators none -> {count} clone"
        return Verdict(Word.CHANGED, f"{target}.memory_operators", change, before="none", after=f"{count} clone")

    case = result("a", clone("sm_80", 1), clone("sm_90", 1), clone("gfx942", 1), clone("gfx950", 2))
    text = "\n".join(lines(of(case)))
    assert "CHANGED  a/forward  memory_operators on sm_80, sm_90, gfx942 none -> 1 clone\n" in text
    assert "CHANGED gfx950.memory_operators none -> 2 clone" in text
    assert text.count("memory_operators") == 2


def test_a_note_on_kernels_that_never_were_is_not_told() -> None:
    """Of plain PyTorch in the lane `cpu`: it launches no Triton kernel, and never did."""
    none = Reading("sm_90.asked", Unit.TEXT, {}, better=Better.SAME, target="sm_90", note="sm_90: no kernel any more")
    some = msgspec.structs.replace(none, value={"double": "none"}, note="sm_90: double: told")
    case = result("a", Verdict(Word.CHANGED, "copies", "copies 0 -> 1"))
    text = "\n".join(lines(of(msgspec.structs.replace(case, readings=[none, some]))))
    assert "note: sm_90: double: told" in text
    assert "any more" not in text


def test_the_clock_is_told_where_it_disagrees() -> None:
    told = "in cycles +0.1 %, clock 1755 -> 1690 MHz"
    verdict = Verdict(
        Word.SLOWER, "device_time_us",
        f"in 3 process pairs; {told}; no exact metric moved",
        before=61.2, after=63.6, unit=Unit.MICROSECONDS, ratio=1.039, interval=(1.031, 1.047),
    )  # fmt: skip
    assert f"    in 3 process pairs; {told}; no exact metric moved" in lines(of(result("a", verdict)))


def test_a_cut_short_run_says_so() -> None:
    assert render_summary(msgspec.structs.replace(REPORT, complete=False)).title.endswith("(run was cut short)")


BUDGET = "the 10 minutes for process pairs were over ([tool.perfguard] pair_minutes)"


def undecided(name: str, reason: str) -> CaseResult:
    return result(name, Verdict(Word.UNRESOLVED, "device_time_us", reason, smallest=0.04))


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        (
            ["UNPAIRED: HEAD: no common ancestor; this clone is shallow: git fetch --unshallow"],
            "UNPAIRED: HEAD: no common ancestor; this clone is shallow: git fetch --unshallow",
        ),
        (
            [
                f"{TOO_NOISY}; in 12 process pairs",
                f"{TOO_NOISY}; in 16 process pairs, about 90 would settle it; two states 5 % apart, at the base",
                "UNPAIRED: new since the base",
            ],
            "NOISY: process pairs scatter more than the change that would fail (2 of 3 times); "
            "run it again where nothing else runs",
        ),
        (
            [f"UNDECIDED: {BUDGET}; in {each} process pairs" for each in (2, 3)],
            f"UNDECIDED: {BUDGET}; raise it, or: perfguard compare",
        ),
        (
            ["UNPAIRED: no process pair measured it"],
            "UNPAIRED: no process pair measured it; perfguard compare -- tests/test_norms.py::test_0",
        ),
        (
            ["UNPAIRED: new since the base"],
            "UNPAIRED: new since the base; record it: pytest --perfguard --perfguard-update=new",
        ),
    ],
)
def test_undecided_times_are_one_line_with_one_thing_to_do(reasons: list[str], told: str) -> None:
    open_ = [undecided(str(number), reason) for number, reason in enumerate(reasons)]
    report = of(*open_, *(result(f"fine{number}", PASS) for number in range(9)))
    text = lines(report)
    assert text[2:] == [f"UNRESOLVED  {len(reasons)} of {len(reasons) + 9} timed cases could not be judged: {told}"]
    full = lines(report, verbose=True)
    assert sum(line.startswith(f"    {name}/forward: ") for line in full for name in range(len(reasons))) == len(
        reasons
    )


def test_a_run_that_judged_nearly_nothing_says_so_first() -> None:
    report = of(*(undecided(str(number), "UNPAIRED: new since the base") for number in range(2)), result("f", PASS))
    summary = render_summary(report)
    assert summary.title.endswith(", inconclusive")
    told = "inconclusive: 2 of 3 timed cases could not be judged: UNPAIRED: new since the base; record it: "
    assert summary.lines[0].text.startswith(told)
    assert not any("UNRESOLVED  " in line.text for line in summary.lines)


def test_what_was_not_read_is_told_beside_the_times() -> None:
    gone = [result(str(number), Verdict(Word.UNRESOLVED, reason="its test was skipped"), us=None) for number in (1, 2)]
    other = result("b", Verdict(Word.UNRESOLVED, "launches", "remembered, but not read this time"))
    told = lines(of(*gone, other))
    assert "UNRESOLVED  3 cases (1/forward, 2/forward, b/forward): its test was skipped (2 of 3 verdicts)" in told


def test_cases_of_one_name_in_two_suites_are_two() -> None:
    ours = result("a", Verdict(Word.NEW, reason="no baseline on gpu"))
    theirs = msgspec.structs.replace(ours, case=msgspec.structs.replace(ours.case, suite="other"))
    third = result("b", Verdict(Word.NEW, reason="no baseline on gpu"))
    (told,) = [line for line in lines(of(ours, theirs, third)) if line.startswith("NEW  ")]
    assert told.startswith(f"NEW  3 cases ({ours.case.suite} a/forward, other a/forward, b/forward): ")


def test_unchanged_cases_are_counted_and_listed_only_where_they_were_timed() -> None:
    same = Verdict(Word.UNCHANGED, "device_time_us", "fingerprint is as recorded", before=61.2)
    host = Reading("host_time_us", Unit.MICROSECONDS, 9.0, timer="host-low-u16")
    unread = msgspec.structs.replace(result("unread", same), readings=[host])
    report = msgspec.structs.replace(of(unread, result("control", same, us=61.2)), pairings=[])
    assert lines(report)[1:] == [
        "2 UNCHANGED; 1 not timed, whose code on the device is as recorded; slowest control/forward 61.2 µs; 3.0 s",
        "case             time     throughput  % of copy  verdict",
        "control/forward  61.2 µs  4 TB/s      95 %       UNCHANGED",
    ]
    equal = msgspec.structs.replace(report, base=BaseTree("9ab77e2c1d5b3b6f", equal=True))
    assert "; the working tree is that of 9ab77e2c1d5b; " in lines(equal)[1]


def test_faster_cases_take_a_line_each_and_one_command() -> None:
    cases = [result(str(number), msgspec.structs.replace(FASTER, ratio=0.98 - number / 100)) for number in range(12)]
    text = lines(of(*cases))
    told = "FASTER  11/forward  device_time_us 61.2 µs -> 56.3 µs (-13.0 %, better, 95 % -8.6 to -7.4)"
    assert text[2] == told
    assert text[-1] == "    … and 7 more; accept: pytest --perfguard --perfguard-update=faster"
    assert len(text) == 8


@pytest.mark.parametrize(
    ("before", "after", "ratio", "told", "in_words"),
    [
        (96.0, 42.7, 96 / 42.7, "96 -> 42.7 (-55.5 %, worse)", "55.5 % worse"),
        (8, 16, 0.5, "8 -> 16 (+100.0 %, better)", "100.0 % better"),
        ({"a": 64.0, "b": 1.0}, {"a": 32.0, "b": 1.0}, 2.0, "a 64 -> 32 (-50.0 %, worse)", "50.0 % worse"),
        (64, 96, 1.5, "64 -> 96 (+50.0 %)", "50.0 % worse"),
        (96, 64, 64 / 96, "96 -> 64 (-33.3 %, better)", "33.3 % better"),
    ],
)
def test_a_percentage_is_that_of_the_values_beside_it(
    before: Value, after: Value, ratio: float, told: str, in_words: str
) -> None:
    """Warps and bits of an access are better when higher; the ratio of a verdict is above 1 for the worse."""
    verdict = Verdict(Word.CHANGED, "some", "", before, after, Unit.COUNT, ratio=ratio)
    assert one_line(verdict) == f"some {told}"
    assert moved(verdict) == in_words


WORDS = [word for word in Word if not word.fails and word is not Word.STALE]  # which is no case's


@given(
    words=st.lists(st.sampled_from(WORDS), min_size=9, max_size=50).map(lambda drawn: [*drawn, *WORDS]),
    timed=st.sampled_from([0, 3, 8, 30]),
    warnings=st.integers(0, 3),
)
def test_a_run_that_needs_nobody_takes_fifteen_lines(words: list[Word], timed: int, warnings: int) -> None:
    cases = [
        result(
            str(number),
            Verdict(word, "device_time_us" if number < timed else "launches", f"reason {number}", before=2, after=1),
            us=61.2 if number < timed else None,
        )
        for number, word in enumerate(words)
    ]
    report = msgspec.structs.replace(
        of(*cases),
        stale=[Verdict(Word.STALE, reason="gone", suite="suite", case="gone/forward")],
        hardware=msgspec.structs.replace(REPORT.hardware, warnings=["no power limit"] * warnings),
    )
    text = lines(report)
    assert len(text) < MOST_QUIET  # and the line that names the report
    named = "\n".join(lines(report, verbose=True))
    quiet = (Word.PASS, Word.UNCHANGED)
    assert all(f" {number}/forward" in named for number, word in enumerate(words) if word not in quiet)


def test_what_was_checked_beside_the_given_calls_is_counted_over_all_cases_and_named_by_kind() -> None:
    counts = [
        HardCounts({"sizes": 2, "configurations": 1}, {"the reference raises": 3}, {"sizes": 7, "values": 1}),
        HardCounts({"values": 4}, {}, {"sizes": 1, "configurations": 28, "a stranger's": 5}),
    ]
    results = [
        CaseResult(Case("suite", str(number), "forward"), hard=each) for number, each in enumerate([*counts, None])
    ]
    assert checked_beside(results) == [
        "hard inputs: 6 ran, 3 left out, 14 skipped: time budget (1 values, 8 sizes)",
        "other configurations: 1 ran, 28 skipped: time budget",
    ]
    assert checked_beside(results[2:]) == []
    assert checked_beside([CaseResult(Case("suite", "all", "forward"), hard=HardCounts({"values": 4}))]) == [
        "hard inputs: 4 ran"
    ]
