"""One change of a kernel shows in many cases and tests, and is told once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfguard.model.records import Better, Case, CaseResult, Reading, Value, Verdict, Word
from perfguard.model.records.code import CODE
from perfguard.model.units import Unit
from perfguard.render.causes import causes_of
from perfguard.render.findings import Finding
from perfguard.render.observed import by_cause

KERNEL = "_rms_norm_backward"


def result(name: str, *moves: tuple[Reading, Value, Word]) -> CaseResult:
    """A test with readings, their values before, and their verdicts."""
    verdicts = [Verdict(word, each.metric, "", before, each.value, each.unit) for each, before, word in moves]
    readings = [each for each, _, _ in moves]
    return CaseResult(Case("ops", name, "test", f"test_ops.py::test_{name}"), readings=readings, verdicts=verdicts)


def of_kernel(metric: str, value: int, *, gated: bool = True, better: Better = Better.LOWER) -> Reading:
    return Reading(f"sm_90.{metric}", Unit.COUNT, {KERNEL: value, "other": 8}, better, gated=gated, target="sm_90")


def findings(*results: CaseResult) -> list[Finding]:
    moved = (Word.CHANGED, Word.BETTER, Word.SLOWER)
    found = [
        Finding("cpu", *each)
        for result in results
        for each in by_cause(result, [verdict for verdict in result.verdicts if verdict.word in moved])
    ]
    return sorted(found, key=lambda each: each.urgency)


def test_a_kernel_is_told_once_with_what_explains_it() -> None:
    """Fourteen tests, one cause: spills fail, registers explain; a test with a further kernel has a finding for each."""
    tests = [
        result(
            f"norm[{number}]",
            (of_kernel("registers", 96, gated=False), {KERNEL: 64, "other": 8}, Word.PASS),
            (of_kernel("spills", 12), {KERNEL: 0, "other": 8 - (number == 13)}, Word.CHANGED),
        )
        for number in range(14)
    ]
    found = findings(*tests)
    verdict = next(each.verdict for each in found if each.cause == KERNEL)
    assert (verdict.word, verdict.metric, verdict.before, verdict.after) == (Word.CHANGED, "spills on sm_90", 0, 12)
    assert verdict.reason.splitlines() == ["spills on sm_90 0 -> 12", "registers on sm_90 64 -> 96 (+50.0 %)"]
    told = {cause.name: cause for cause in causes_of(found)}
    assert {name: dict(cause.counts) for name, cause in told.items()} == {
        KERNEL: {Word.CHANGED: 14}, "other": {Word.CHANGED: 1}
    }  # fmt: skip
    assert told[KERNEL].change == "spills on sm_90 0 -> 12, registers on sm_90 64 -> 96 (+50.0 %)"
    assert told["other"].worst_text == "norm[13]/test  spills on sm_90 7 -> 8 (+14.3 %)"


@pytest.mark.parametrize(
    ("better", "value", "word", "ratio"),
    [
        (Better.LOWER, 6, Word.BETTER, 0.5),
        (Better.LOWER, 24, Word.CHANGED, 2.0),
        (Better.HIGHER, 24, Word.BETTER, 0.5),
        (Better.HIGHER, 6, Word.CHANGED, 2.0),
    ],
)
def test_a_ratio_above_one_is_worse_in_either_direction(better: Better, value: int, word: Word, ratio: float) -> None:
    """A better kernel is told as well; its direction is the metric's."""
    (found,) = findings(result("a", (of_kernel("warps", value, better=better), {KERNEL: 12, "other": 8}, word)))
    assert (found.cause, found.verdict.word, found.verdict.ratio) == (KERNEL, word, ratio)


def test_operators_without_a_line_are_named_and_no_other_place_is() -> None:
    """One sort more, in a test with copies that are as they were: the finding names the sort, and no copy."""
    names = Reading("operator_names", Unit.COUNT, {"aten.sort": 2, "aten.add": 3}, gated=False, details="operators")
    copies = Reading("copies", Unit.COUNT, 1, note="copies: aten.clone at a.py:7 in f")
    operators = Reading("operators", Unit.COUNT, 5)
    moved = result(
        "one", (operators, 4, Word.CHANGED), (names, {"aten.sort": 1, "aten.add": 3}, Word.PASS), (copies, 1, Word.PASS)
    )
    (found,) = findings(moved)
    assert found.verdict.reason.splitlines() == ["operators 4 -> 5 (+25.0 %)", "more of aten.sort"]
    assert found.result.all_notes == []


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ({"loads": "add loads", "stores": "add stores"}, "add"),
        ({"loads": "add, mul loads", "stores": "add, mul stores"}, "kernel_work loads"),
        ({}, "kernel_work loads"),
    ],
)
def test_work_is_told_of_its_kernel_and_of_no_part(lines: dict[str, str], cause: str) -> None:
    work = Reading("kernel_work", Unit.COUNT, {"loads": 20, "stores": 10}, lines=lines)
    found, *_ = findings(result("one", (work, {"loads": 10, "stores": 5}, Word.CHANGED)))
    assert found.cause == cause
    assert "kernel_work loads 10 -> 20 (+100.0 %)" in found.verdict.reason


def test_what_names_no_cause_goes_with_one_of_its_test_and_is_never_lost() -> None:
    """A copy has a line; the operators that rose with it have none. Alone they stand under their own name."""
    copies = Reading("copies", Unit.COUNT, 1)
    places = Reading(
        "copy_places", Unit.COUNT, {"aten.clone at a.py in f": 1}, Better.SAME, gated=False, details="copies",
        lines={"aten.clone at a.py in f": "aten.clone at a.py:7 in f"},
    )  # fmt: skip

    def operators(now: int) -> Reading:
        return Reading("operators", Unit.COUNT, now)

    one = result("one", (operators(4), 3, Word.CHANGED), (copies, 0, Word.CHANGED), (places, {}, Word.PASS))
    two = result("two", (operators(9), 7, Word.CHANGED), (copies, 0, Word.CHANGED), (places, {}, Word.PASS))
    three = result("three", (operators(6), 5, Word.CHANGED))
    told = {cause.name: (cause.counts.total(), cause.change) for cause in causes_of(findings(one, two, three))}
    assert told == {
        "a.py:7 in f": (2, "copies 0 -> 1, operators 3 -> 4 (+33.3 %)"),
        "operators": (1, "operators 5 -> 6 (+20.0 %)"),
    }


def test_times_of_a_kernel_lead_and_stand_beside_what_else_moved() -> None:
    """The worst test first, with what the pairs found; what was recorded stands beside the kernel's other findings."""

    def timed(name: str, before: float, after: float, word: Word, spills: int) -> CaseResult:
        made = result(
            name, (of_kernel("spills", spills), {KERNEL: 0, "other": 8}, Word.CHANGED if spills else Word.PASS)
        )
        why = "in 3 process pairs; because: spills 0 -> 12"
        metric = f"kernel_time_us[{KERNEL}]"
        pair = Verdict(word, metric, why, before, after, Unit.MICROSECONDS, after / before, (1.3, 1.4))
        shown = Verdict(Word.PASS, "kernel_time_us", "", {KERNEL: before, "other": 3.0}, unit=Unit.MICROSECONDS)
        return replace(made, verdicts=[*made.verdicts, shown, pair])

    tests = [
        timed("small", 41.0, 55.0, Word.SLOWER, 12),
        timed("large", 400.0, 800.0, Word.SLOWER, 12),
        timed("same", 7.0, 7.0, Word.PASS, 12),
    ]
    (cause,) = causes_of(findings(*tests))
    assert (cause.name, cause.counts) == (KERNEL, {Word.SLOWER: 2, Word.CHANGED: 1})
    assert cause.changes[0] == "spills 0 -> 12"
    verdict = cause.worst.verdict
    assert cause.worst_text == "large/test  kernel_time_us 400 µs -> 800 µs (+100.0 %, 95 % +30.0 to +40.0)"
    assert (verdict.metric, verdict.interval) == ("kernel_time_us", (1.3, 1.4))
    assert verdict.reason.splitlines() == [
        "kernel_time_us 400 µs -> 800 µs", "in 3 process pairs", "because: spills 0 -> 12",
    ]  # fmt: skip
    (same,) = findings(tests[2])
    assert same.verdict.reason.splitlines() == ["spills on sm_90 0 -> 12", "kernel_time_us 7 µs when it was recorded"]


# -- guarded cases -----------------------------------------------------------------------------------------------------


def guarded(name: str, *moves: tuple[Reading, Value, Word]) -> Finding:
    """The first verdict of a guarded case with these readings."""
    made = result(name, *moves)
    case = Case("ops", name, "forward", f"test_ops.py::test_{name}")
    return Finding("nvidia-h200", replace(made, case=case), made.verdicts[0])


def code(**kernels: str) -> tuple[Reading, Value, Word]:
    """Fingerprints of kernels that were `a-a` before."""
    value = {**kernels}
    reading = Reading(CODE, Unit.TEXT, value, Better.SAME, gated=False, lines={"rows": "k/rows.py:7 in rows"})
    return reading, dict.fromkeys(kernels, "a-a"), Word.PASS


COPIES = Reading("copies", Unit.COUNT, 1, note="copies: aten.clone at norm.py:8 in rms_norm")
TIME = Reading("device_time_us", Unit.MICROSECONDS, 65.0, timer="graph-cold")


def test_a_kernel_that_most_findings_share_is_the_cause() -> None:
    """A helper moved two kernels; the one that all cases launch explains them all."""
    both = [guarded(f"f[{n}]", (TIME, 61.0, Word.SLOWER), code(rows="b-b", helper="b-b")) for n in range(2)]
    one = guarded("g[1]", (TIME, 61.0, Word.SLOWER), code(rows="b-b", other="a-a"))
    (cause,) = causes_of([*both, one])
    assert (cause.title, cause.changes) == ("rows (k/rows.py:7)", ["its code"])
    assert cause.counts == {Word.SLOWER: 3}


def test_a_line_explains_what_the_host_counts_and_a_kernel_its_time() -> None:
    copied = guarded("f[1]", (COPIES, 0, Word.CHANGED), (TIME, 61.0, Word.SLOWER), code(rows="b-b"))
    slower = Finding(copied.lane, copied.result, copied.result.verdicts[1])
    told = {cause.name: cause.changes for cause in causes_of([copied, slower])}
    assert told == {"norm.py:8 in rms_norm": ["copies 0 -> 1"], "rows": ["its code"]}


def test_one_line_of_python_is_one_cause_of_all_its_cases() -> None:
    (cause,) = causes_of([guarded(f"f[{n}]", (COPIES, 0, Word.CHANGED)) for n in range(9)])
    assert (cause.name, cause.place, cause.counts) == ("norm.py:8 in rms_norm", "norm.py:8", {Word.CHANGED: 9})


def test_a_kernel_that_is_launched_anew_is_the_cause() -> None:
    launches = Reading("launches", Unit.COUNT, 2)
    kernels = Reading("kernels", Unit.TEXT, ["rows", "copy_kernel"], Better.SAME, gated=False, details="launches")
    found = guarded("f[1]", (launches, 1, Word.CHANGED), (kernels, ["rows"], Word.PASS))
    (cause,) = causes_of([found])
    assert (cause.name, cause.changes) == ("copy_kernel", ["launches 1 -> 2"])


def test_a_note_with_several_places_accuses_none_of_them() -> None:
    """Which of two copies was there before is not known."""
    two = replace(COPIES, value=2, note="copies: aten.clone at norm.py:8 in f; aten.clone at norm.py:9 in f")
    (cause,) = causes_of([guarded("f[1]", (two, 1, Word.CHANGED))])
    assert (cause.name, cause.place) == ("f", "test_ops.py")


def test_a_place_that_the_base_has_not_is_the_cause() -> None:
    """Lines have moved down by one; the base's own copy is known by its function."""
    two = replace(COPIES, value=2, note="copies: aten.clone at norm.py:8 in f; aten.clone at norm.py:9 in g")
    found = guarded("f[1]", (two, 1, Word.CHANGED))
    base = replace(found.result, readings=[replace(COPIES, note="copies: aten.clone at norm.py:7 in f")])
    (cause,) = causes_of([found], {("nvidia-h200", found.result.id): base})
    assert cause.name == "norm.py:9 in g"


def test_a_wrong_result_shares_the_cause_of_its_tests_other_cases() -> None:
    """Its own kernels are not read, since wrong results end a case."""
    slower = guarded("f[1]", (TIME, 61.0, Word.SLOWER), code(rows="b-b"))
    bad = Finding(slower.lane, CaseResult(Case("ops", "f[2]", "forward", "t.py::f")), Verdict(Word.WRONG, "output"))
    alone = Finding(slower.lane, CaseResult(Case("ops", "g[2]", "forward", "t.py::g")), Verdict(Word.WRONG, "output"))
    told = [(cause.name, dict(cause.counts)) for cause in causes_of([slower, bad, alone])]
    assert told == [("rows", {Word.WRONG: 1, Word.SLOWER: 1}), ("g", {Word.WRONG: 1})]


def test_kernels_of_one_name_in_two_files_are_two_causes() -> None:
    first, second = (guarded(f"{name}[1]", (TIME, 61.0, Word.SLOWER), code(rows="b-b")) for name in "fg")
    moved = [replace(each, lines={"rows": "other/rows.py:9 in rows"}) for each in second.result.readings if each.lines]
    elsewhere = Finding(first.lane, replace(second.result, readings=[TIME, *moved]), second.verdict)
    assert [cause.place for cause in causes_of([first, elsewhere])] == ["k/rows.py:7", "other/rows.py:9"]


def test_equal_code_under_another_toolchain_is_no_cause() -> None:
    """The source's half of a fingerprint is the same; only Triton's IR differs."""
    (cause,) = causes_of([guarded("f[1]", (TIME, 61.0, Word.SLOWER), code(rows="a-b"))])
    assert (cause.name, cause.changes) == ("f", [])
