"""What a change edits in the baselines is listed old -> new; only what was measured there is covered by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from perfguard.github.lanes.baseline_edits import list_edits
from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.github.lanes.lane_views import Reference, judge_lanes
from perfguard.github.lanes.untrusted_report import Received
from perfguard.model.records import (
    Better,
    CaseResult,
    Doubt,
    PairedCase,
    Reading,
    Report,
    TimedEntry,
    Verdict,
    Word,
)
from perfguard.model.units import Unit
from perfguard.render.findings import BaselineEdit
from perfguard.render.overview import Headline, LaneView, Overview
from tests.github.reports import (
    CODE,
    PATH,
    SLUG,
    TIMER,
    baseline_file,
    compared,
    entries,
    key,
    measured,
    paired,
    remembered,
    report,
)

BASE = {"f": entries(), "g": entries()}
WHY = {"f": "more accurate"}


def edits(head: Mapping[str, Any], base: Mapping[str, Any] = BASE, reasons: Any = None) -> list[BaselineEdit]:
    return list_edits(remembered(base), remembered(head, reasons), [report([measured("f", 55.0), measured("g")])])


def seen(given: Report, head: BaselineSet | None, base: Mapping[str, Any] = BASE) -> LaneView:
    views = judge_lanes({SLUG: Received(given)}, Reference(remembered(base), head))
    return views.lanes[0]


def headline(given: Report, head: BaselineSet | None, base: Mapping[str, Any] = BASE) -> Headline:
    return Overview(lanes=[seen(given, head, base)]).headline


def f_slower() -> Report:
    return compared({"f": 55.0, "g": 50.0})


def test_an_edit_says_old_new_reason_and_what_was_measured() -> None:
    found = edits({"f": entries(55.0), "g": entries()}, reasons=WHY)
    assert [(edit.folder, edit.suite, edit.case, edit.metric) for edit in found] == [
        (SLUG, "area", key("f"), "device_time_us")
    ]
    assert (found[0].before, found[0].after, found[0].measured) == (50.0, 55.0, 55.0)
    assert (found[0].reason, found[0].loosens) == ("more accurate", "worst session 55.05 µs, was 50.05 µs")


@pytest.mark.parametrize(
    ("head", "loosens"),
    [
        ({"f": entries(45.0), "g": entries()}, ""),
        ({"f": entries(launches=2), "g": entries()}, "its value"),
        ({"f": entries(launches=0), "g": entries()}, ""),
        ({"g": entries()}, "no longer judged"),
        ({"f": entries(us=0), "g": entries()}, "no longer judged"),
        ({**BASE, "new": entries()}, ""),
        (
            {"f": entries() | {"device_time_us": TimedEntry([45.0, 55.0, 50.0, 48.0, 52.0], TIMER)}, "g": entries()},
            "worst session 55 µs, was 50.05 µs",
        ),
        ({"f": entries() | {"device_time_us": TimedEntry([50.0], TIMER)}, "g": entries()}, ""),  # then pairs judge
        ({"f": entries() | {"device_time_us": TimedEntry([49.0] * 5, "other")}, "g": entries()}, "another timer"),
        ({"f": entries() | {"device_time_us": TimedEntry([50.0] * 5, TIMER, anchor=52.0)}, "g": entries()},
         "anchor 52 µs, was 50.05 µs"),
        ({"f": entries() | {"device_time_us": TimedEntry([50.0] * 5, TIMER, anchor=48.0)}, "g": entries()}, ""),
    ],
    ids=[
        "faster", "heavier", "lighter", "removed", "untimed", "added", "noisier", "fewer", "another timer",
        "anchor lifted", "anchor lowered",
    ],
)  # fmt: skip
def test_row_38_a_loosening_says_what_got_looser(head: dict[str, Any], loosens: str) -> None:
    assert {edit.loosens for edit in edits(head)} == {loosens}


def test_an_edit_of_the_toolchain_alone_covers_nothing() -> None:
    text = baseline_file(BASE).replace(b"driver: '580.1'", b"driver: '999.9'")
    head = read_files({PATH: text}, "baselines")
    assert list_edits(remembered(BASE), head, [f_slower()]) == []  # no value differs
    assert headline(f_slower(), head) is Headline.WORSE


def test_a_finding_within_the_limit_around_the_edited_value_is_accepted() -> None:
    given = f_slower()
    assert headline(given, remembered(BASE)) is Headline.WORSE
    head = remembered({"f": entries(55.0), "g": entries()}, WHY)
    assert seen(given, head).accepted == [("area", key("f"), "device_time_us")]
    assert headline(given, head) is Headline.ACCEPTED


def test_row_38_the_merge_base_judges_whatever_the_change_edits() -> None:
    given = f_slower()
    wide = TimedEntry([10.0, 100.0, 50.0, 90.0, 20.0], TIMER)
    for head in (
        remembered({"f": entries(70.0), "g": entries()}, WHY),  # more than was measured
        remembered({"f": entries(52.0), "g": entries()}, WHY),  # less
        remembered({"f": entries(55.0), "g": entries()}),  # without a reason
        remembered({"f": entries() | {"device_time_us": wide}, "g": entries()}, WHY),  # noise
        remembered({"f": entries(launches=2), "g": entries()}, WHY),  # of another metric
    ):
        assert headline(given, head) is Headline.WORSE


def test_an_accepted_time_holds_on_another_board() -> None:
    """Where everything is read 6 % slower than on the board of the record, the pairs still say by how much it moved."""
    given = msgspec.structs.replace(compared({"f": 58.3, "g": 53.0}), pairings=[paired({"f": 55.0, "g": 50.0})])
    assert headline(given, remembered({"f": entries(55.0), "g": entries()}, WHY)) is Headline.ACCEPTED
    assert headline(given, remembered({"f": entries(54.0), "g": entries()}, WHY)) is Headline.WORSE


def test_an_equal_fingerprint_in_the_edit_buys_no_slower_time() -> None:
    other = "fedcba9876543210"
    results = [measured("f", 55.0, code=other), measured("g", code=CODE)]
    given = msgspec.structs.replace(compared({"f": 55.0, "g": 50.0}), results=results)
    base = {"f": entries(code=CODE), "g": entries(code=CODE)}
    why = {"f": "more accurate"}
    for us, told in ((51.0, Headline.WORSE), (55.0, Headline.ACCEPTED)):
        head = remembered({"f": entries(us, code=other), "g": entries(code=CODE)}, why)
        assert headline(given, head, base) is told


def test_a_lane_that_compared_with_the_edited_value_was_not_paired_and_need_not() -> None:
    """Its own run found the time as it was recorded, so that no process pair was asked."""
    given = msgspec.structs.replace(f_slower(), pairings=[paired({"g": 50.0})])
    assert headline(given, remembered({"f": entries(55.0), "g": entries()}, WHY)) is Headline.ACCEPTED
    assert headline(given, remembered(BASE)) is Headline.UNVERIFIED


def test_row_39_a_removed_baseline_still_judges_and_is_listed() -> None:
    gone = remembered({"g": entries()})
    assert headline(f_slower(), gone) is Headline.WORSE
    assert [edit.after for edit in edits({"g": entries()})] == [None, None]


def test_row_39_a_case_that_is_not_measured_is_incomplete_unless_its_baseline_goes_too() -> None:
    given = compared({"g": 50.0})
    assert seen(given, remembered(BASE)).unmeasured == [key("f")]
    assert headline(given, remembered(BASE)) is Headline.INCOMPLETE
    gone = seen(given, remembered({"g": entries()}))
    assert (gone.unmeasured, gone.accepted) == ([], [("area", key("f"), "")])
    assert headline(given, remembered({"g": entries()})) is Headline.ACCEPTED


def test_row_39_an_added_case_is_new_until_the_change_records_it() -> None:
    results = [measured("f"), measured("g"), measured("new")]
    given = msgspec.structs.replace(compared({"f": 50.0, "g": 50.0}), results=results)
    assert headline(given, remembered(BASE)) is Headline.NO_BASELINE
    assert headline(given, remembered({**BASE, "new": entries()})) is Headline.ACCEPTED
    assert headline(given, remembered({**BASE, "new": entries(80.0)})) is Headline.NO_BASELINE


def test_code_recorded_by_the_change_need_not_be_timed_again() -> None:
    other = "fedcba9876543210"
    base = {"f": entries(code=CODE)}
    given = report([measured("f", us=0, code=other)])
    assert headline(given, remembered({"f": entries(55.0, code=other)}, WHY), base) is Headline.ACCEPTED
    assert headline(given, remembered({"f": entries(code=other)}, WHY), base) is Headline.INCOMPLETE


def test_numerics_cannot_be_accepted() -> None:
    verdicts = [Verdict(Word.WRONG, "output", "off")]
    wrong = msgspec.structs.replace(measured("f"), readings=[], verdicts=verdicts)
    given = report([wrong, measured("g")])
    assert headline(given, remembered({"f": entries(55.0), "g": entries()}, WHY)) is Headline.WRONG
    assert headline(given, remembered({"g": entries()}, WHY)) is Headline.WRONG


def test_edits_that_let_a_worse_reading_pass_come_first() -> None:
    head = remembered({"f": entries(45.0), "g": entries(60.0)})
    edits = judge_lanes({SLUG: Received(report([measured("f")]))}, Reference(remembered(BASE), head)).edits
    assert [(edit.case, bool(edit.loosens)) for edit in edits] == [(key("g"), True), (key("f"), False)]


def hostile(head: bytes) -> Overview:
    reference = Reference(remembered(BASE), read_files({PATH: head}, "baselines"))
    return judge_lanes({SLUG: Received(report([measured("g")]))}, reference)


@pytest.mark.parametrize(
    "head",
    [
        b"a: &a [x]\nb: [*a, *a]\n...\n",
        b"\xff\xfe",
        baseline_file(BASE).replace(b"launches: 1", b"launches: 1.0e+999"),
        baseline_file(BASE).replace(b"launches: 1", b"launches: 1, launches: 9", 1),
        b"x" * 1_000_001,
        b"[" * 100_000,
    ],
    ids=["alias", "bytes", "nan", "twice", "large", "deep"],
)
def test_hostile_baselines_of_the_change_are_told_and_cover_nothing(head: bytes) -> None:
    views = hostile(head)
    assert views.lanes[0].unmeasured == [key("f")]  # an unreadable file removes nothing
    assert [warning.startswith(f"the change's baselines: {PATH}") for warning in views.warnings] == [True]


def test_a_broken_baseline_of_the_merge_base_judges_nobody() -> None:
    base = read_files({PATH: b"schema: 1\n"}, "baselines")
    views = judge_lanes({SLUG: Received(f_slower())}, Reference(base))
    assert views.lanes[0].report is None
    assert PATH in views.lanes[0].problem


# -- what compilers make of the kernels for a target -------------------------------------------------------------------


def of_target(work_code: str = "bbbbbbbb-bbbbbbbb") -> Report:
    """f's kernel spills on sm_90, and did not at the base."""
    work, base = (
        with_facts(spills, fingerprint) for spills, fingerprint in ((12, work_code), (0, "aaaaaaaa-aaaaaaaa"))
    )
    (pairing,) = compared({"f": 50.0}).pairings
    asked = msgspec.structs.replace(pairing, cases=[PairedCase("area", key("f"), base)], pairs=0)
    return report([work, measured("g", 0)], base=compared({}).base, pairings=[asked])


def with_facts(spills: int, fingerprint: str) -> CaseResult:
    made = measured("f", 0)
    code = Reading("code", Unit.TEXT, {"rows": fingerprint}, Better.SAME, gated=False, stored=True)
    fact = Reading("sm_90.spills", Unit.COUNT, {"rows": spills}, target="sm_90")
    return msgspec.structs.replace(made, readings=[*made.readings, code, fact])


def coded(fingerprint: str) -> dict[str, Any]:
    return {"f": entries(0) | {"code": {"rows": fingerprint}}, "g": entries(0)}


@pytest.mark.parametrize(
    ("fingerprint", "reasons", "told"),
    [
        ("bbbbbbbb-bbbbbbbb", {"f": "one more accumulator"}, Headline.ACCEPTED),
        ("bbbbbbbb-cccccccc", {"f": "recorded with another Triton"}, Headline.ACCEPTED),  # of the same source
        ("bbbbbbbb-bbbbbbbb", None, Headline.WORSE),  # no reason
        ("cccccccc-cccccccc", {"f": "other code"}, Headline.WORSE),
        ("aaaaaaaa-aaaaaaaa", {"f": "the record as it was"}, Headline.WORSE),
    ],
)
def test_the_record_of_the_code_accepts_what_compilers_make_of_it(
    fingerprint: str, reasons: Any, told: Headline
) -> None:
    given, base = of_target(), coded("aaaaaaaa-aaaaaaaa")
    assert headline(given, remembered(base), base) is Headline.WORSE
    view = seen(given, remembered(coded(fingerprint), reasons), base)
    assert view.headline is told
    assert view.accepted == ([("area", key("f"), "sm_90.spills")] if told is Headline.ACCEPTED else [])


def test_a_first_record_of_the_code_asks_for_a_reason_too() -> None:
    """The base has no code to compare with, but the base's own answer is worse."""
    base = {"f": entries(0), "g": entries(0)}
    for reasons, told in (({"f": "one more accumulator"}, Headline.ACCEPTED), (None, Headline.WORSE)):
        assert headline(of_target(), remembered(coded("bbbbbbbb-bbbbbbbb"), reasons), base) is told


def test_a_metric_without_a_record_that_is_worse_than_the_base_asks_for_a_reason() -> None:
    def copying(count: int) -> CaseResult:
        made = measured("f", 0)
        return msgspec.structs.replace(made, readings=[*made.readings, Reading("copies", Unit.COUNT, count)])

    (pairing,) = compared({"f": 50.0}).pairings
    asked = msgspec.structs.replace(pairing, cases=[PairedCase("area", key("f"), copying(1))], pairs=0)
    given = report([copying(2), measured("g", 0)], base=compared({}).base, pairings=[asked])
    base = {"f": entries(0), "g": entries(0)}
    head = {"f": entries(0) | {"copies": 2}, "g": entries(0)}
    assert headline(given, remembered(base), base) is Headline.WORSE
    assert headline(given, remembered(head), base) is Headline.WORSE
    assert headline(given, remembered(head, {"f": "one copy for its layout"}), base) is Headline.ACCEPTED


def test_an_edit_to_the_code_that_was_measured_lets_nothing_worse_pass() -> None:
    """Every change of a kernel records it. Code that nobody measured is another matter: its times would pass by it."""
    edited = remembered(coded("aaaaaaaa-aaaaaaaa")), remembered(coded("bbbbbbbb-bbbbbbbb"))
    for measured_code, loosens in (("bbbbbbbb-bbbbbbbb", False), ("cccccccc-cccccccc", True)):
        assert [bool(edit.loosens) for edit in list_edits(*edited, [of_target(measured_code)])] == [loosens]
    other = {"f": entries(code="fedcba9876543210"), "g": entries(code=CODE)}
    edited = remembered({name: entries(code=CODE) for name in ("f", "g")}), remembered(other)
    for code, loosens in (("fedcba9876543210", False), (CODE, True)):
        given = report([measured("f", code=code), measured("g", code=CODE)])
        assert [(edit.metric, bool(edit.loosens)) for edit in list_edits(*edited, [given])] == [
            ("fingerprint", loosens)
        ]


def test_what_needs_no_edit_is_accepted_by_none() -> None:
    """An improvement, and an old fault, with an edit of their entries."""
    fault = Doubt("hard input", "hard input: got nan", "output")
    lighter = msgspec.structs.replace(measured("f", 0), doubts=[fault])
    (pairing,) = compared({"f": 50.0}).pairings
    asked = msgspec.structs.replace(pairing, cases=[PairedCase("area", key("f"), lighter)], pairs=0)
    given = report([lighter, measured("g", 0)], base=compared({}).base, pairings=[asked])
    base = {"f": entries(0, launches=2), "g": entries(0)}
    view = seen(given, remembered({"f": entries(0), "g": entries(0)}, WHY), base)
    assert {verdict.word for verdict in view.report.results[0].verdicts} == {Word.OLD_FAULT, Word.BETTER}  # type: ignore[union-attr]
    assert (view.headline, view.accepted) == (Headline.UNCHANGED, [])
