"""What bases answered, judged again: as the run judged it, and by no answer that is not the right base's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from perfguard.github.lanes.baselines_at_commit import BaselineSet
from perfguard.github.lanes.judge_again import declared, hold, judge_again, unmeasured
from perfguard.github.lanes.lane_views import Reference, judge_lanes
from perfguard.github.lanes.untrusted_report import Received, read_untrusted_report
from perfguard.judge.run_verdicts import count_guarded, judge_session, with_verdicts
from perfguard.model.errors import LaneError
from perfguard.model.records import (
    Baseline,
    BaseTree,
    CaseBaseline,
    CaseResult,
    Doubt,
    Entry,
    PairedCase,
    Pairing,
    Reading,
    Report,
    Value,
    Verdict,
    Word,
    dump_report,
)
from perfguard.model.units import Unit
from perfguard.render.markdown import render_markdown
from perfguard.render.overview import Headline, LaneView, Overview
from tests.github.fake import sha
from tests.github.reports import (
    CODE,
    HARDWARE,
    PROVENANCE,
    SLUG,
    SUITE,
    TOOLCHAIN,
    entries,
    key,
    measured,
    paired,
    report,
)

FORK, RECORD = sha("fork-point"), "abc1234"
THEN, NOW = {"rows": "aaaaaaaa-aaaaaaaa"}, {"rows": "bbbbbbbb-bbbbbbbb"}
OTHER = "fedcba9876543210"
ZERO = Doubt("hard input, x (zero)", "hard input, x (zero): got nan, want 0", "output", inputs="float32[64]",
             cut={0: "first 8 rows"}, tried=[[("zero", {0: "zero"})]])  # fmt: skip
RIGHT = replace(ZERO, problem="")


def reading(metric: str, value: Value, unit: Unit = Unit.COUNT, target: str = "", **fields: Any) -> Reading:
    """As the metric's file makes it."""
    limits = declared(metric.removeprefix(f"{target}."), of_target=bool(target))
    assert limits is not None
    return limits.reading(metric, unit, value, target=target, **fields)


def code(value: dict[str, str]) -> Reading:
    return reading("code", {**value}, Unit.TEXT, covers=[])


def spills(count: int) -> Reading:
    return reading("sm_90.spills", {"rows": count}, target="sm_90")


def untimed(name: str, *more: Reading, launches: int = 1, **fields: Any) -> CaseResult:
    made = measured(name, 0, launches)
    return replace(made, readings=[*made.readings, *more], **fields)


class Kind(NamedTuple):
    """A case, what is recorded of it, and what its base answered; the verdict that follows."""

    work: CaseResult
    stored: dict[str, Entry]
    beside: PairedCase | None
    metric: str
    word: Word


def pairs(name: str, us: float, base: CaseResult | None = None) -> PairedCase:
    case = paired({name: us}).cases[0]
    return case if base is None else replace(case, base=base)


def kind(what: str, name: str) -> Kind:  # noqa: C901  # one branch for each of KINDS
    """A case called `name` of one of KINDS."""
    exact, stored = entries(0), entries()
    old = replace(untimed(name), doubts=[ZERO])
    if what == "wrong by doubt":
        beside = PairedCase(SUITE, key(name), replace(untimed(name), doubts=[RIGHT]))
        return Kind(old, exact, beside, "output", Word.WRONG)
    if what == "old fault":
        return Kind(old, exact, PairedCase(SUITE, key(name), old), "output", Word.OLD_FAULT)
    if what == "new since then":
        beside = PairedCase(SUITE, key(name), problem="new since the base")
        return Kind(old, exact, beside, "output", Word.WRONG)
    if what == "slower, with an old fault":
        work, base = replace(measured(name, 55.0), doubts=[ZERO]), replace(untimed(name), doubts=[ZERO])
        return Kind(work, stored, pairs(name, 55.0, base), "device_time_us", Word.SLOWER)
    if what == "wrong by doubt, and heavier":
        beside = PairedCase(SUITE, key(name), replace(untimed(name), doubts=[RIGHT]))
        return Kind(replace(untimed(name, launches=2), doubts=[ZERO]), exact, beside, "launches", Word.CHANGED)
    if what == "worse for a target":
        beside = PairedCase(SUITE, key(name), untimed(name, code(THEN), spills(0)))
        return Kind(
            untimed(name, code(NOW), spills(12)), exact | {"code": {**THEN}}, beside, "sm_90.spills", Word.CHANGED
        )
    if what == "better for a target":
        beside = PairedCase(SUITE, key(name), untimed(name, code(THEN), spills(12)))
        return Kind(
            untimed(name, code(NOW), spills(0)), exact | {"code": {**THEN}}, beside, "sm_90.spills", Word.BETTER
        )
    if what == "recorded code":
        beside = PairedCase(SUITE, key(name), untimed(name, code(THEN), spills(0)))
        return Kind(untimed(name, code(NOW), spills(12)), exact | {"code": {**NOW}}, beside, "sm_90.spills", Word.PASS)
    if what == "lighter":
        return Kind(untimed(name), entries(0, launches=2), None, "launches", Word.BETTER)
    if what == "new metric":
        beside = PairedCase(SUITE, key(name), untimed(name, reading("copies", 1)))
        return Kind(untimed(name, reading("copies", 2)), exact, beside, "copies", Word.CHANGED)
    if what == "new metric, unknown to the base":
        beside = PairedCase(SUITE, key(name), untimed(name))
        return Kind(untimed(name, reading("copies", 2)), exact, beside, "copies", Word.NEW)
    if what in ("slower", "faster", "as fast"):
        us, word = {"slower": (55.0, Word.SLOWER), "faster": (45.0, Word.FASTER), "as fast": (50.0, Word.PASS)}[what]
        return Kind(measured(name, us), stored, pairs(name, us), "device_time_us", word)
    if what == "the base's code":
        work, base = measured(name, 55.0, code=OTHER), measured(name, 0, code=OTHER)
        return Kind(work, entries(code=CODE), pairs(name, 55.0, base), "device_time_us", Word.UNCHANGED)
    assert what == "the record's code"
    return Kind(measured(name, 55.0, code=CODE), entries(code=CODE), None, "device_time_us", Word.UNCHANGED)


KINDS = [
    "wrong by doubt", "old fault", "new since then", "slower, with an old fault", "wrong by doubt, and heavier",
    "worse for a target", "better for a target", "recorded code", "lighter", "new metric",
    "new metric, unknown to the base", "slower", "faster", "as fast", "the base's code", "the record's code",
]  # fmt: skip


def remembered(kinds: Sequence[Kind]) -> BaselineSet:
    """Their records, of a commit."""
    cases = {each.work.case.key: CaseBaseline(each.stored, "float32[64]") for each in kinds}
    return BaselineSet({SLUG: {SUITE: Baseline(SLUG, SUITE, {"": replace(PROVENANCE, commit=RECORD)}, cases)}})


def run_of(kinds: Sequence[Kind], base: BaseTree | None, bases: dict[str, BaseTree], **fields: Any) -> Report:
    """The report of a run, with its verdicts."""
    named = next((tree.commit for tree in (base, *bases.values()) if tree is not None and not tree.equal), None)
    asked = [each.beside for each in kinds if each.beside is not None]
    pairings = [Pairing(named, asked, 4)] if named is not None else []
    given = report([each.work for each in kinds], base=base, bases=bases, pairings=pairings, **fields)
    lane = remembered(kinds).lane(HARDWARE, given.toolchain)
    lane = type(lane)(lane.hardware, lane.toolchain, lane.files, base, lambda commit: bases[commit])
    verdicts = judge_session(given.results, lane, pairings)
    results = [with_verdicts(each, verdicts[each.id]) for each in given.results]
    return replace(given, results=results, guarded=count_guarded(results), remembered=len(kinds))


def alone(what: str, **fields: Any) -> tuple[Report, BaselineSet]:
    """The report of one case `f`, and its record."""
    made = kind(what, "f")
    return run_of([made], BaseTree(FORK), {}, **fields), remembered([made])


def received(given: Report) -> Report:
    found = read_untrusted_report(dump_report(given))
    assert not found.refused
    return found.report


def again(given: Report, stored: BaselineSet) -> Report:
    return judge_again(received(given), stored.lane(HARDWARE, given.toolchain))


def verdict(judged: Report, metric: str) -> Verdict:
    return next(each for each in judged.results[0].verdicts if each.metric == metric)


@pytest.mark.parametrize("what", KINDS)
def test_every_kind_of_answer_has_its_word_in_the_run_and_again(what: str) -> None:
    given, stored = alone(what)
    made = kind(what, "f")
    assert verdict(given, made.metric).word is made.word
    assert again(given, stored) == given


BASES: dict[str, tuple[BaseTree | None, dict[str, BaseTree]]] = {
    "named": (BaseTree(FORK), {}),
    "of the records": (None, {RECORD: BaseTree(FORK)}),
    "equal": (BaseTree(FORK, equal=True), {}),
    "none": (BaseTree(problem="this clone is shallow: git fetch --unshallow"), {}),
}


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8), st.sampled_from(sorted(BASES)), st.booleans())
@settings(max_examples=150, deadline=None)
def test_whoever_judges_a_report_again_says_what_the_run_said(whats: list[str], base: str, upgraded: bool) -> None:
    kinds = [kind(what, f"{what.replace(' ', '_').replace(',', '')}_{n}") for n, what in enumerate(whats)]
    toolchain = replace(TOOLCHAIN, driver="590.2") if upgraded else TOOLCHAIN
    given = run_of(kinds, *BASES[base], toolchain=toolchain)
    assert again(given, remembered(kinds)) == given


# -- answers that are none ---------------------------------------------------------------------------------------------


def seen(given: Report, stored: BaselineSet, commit: str | None = FORK) -> LaneView:
    return judge_lanes({SLUG: Received(received(given))}, Reference(stored, commit=commit)).lanes[0]


def told(view: LaneView) -> dict[str, Verdict]:
    assert view.report is not None
    return {each.metric: each for each in view.report.results[0].verdicts}


@pytest.mark.parametrize("commit", [sha("head"), sha("other")])
def test_answers_of_another_commit_than_the_merge_base_are_not_heard(commit: str) -> None:
    """Beside itself every fault is an old one, and nothing is worse."""
    made = kind("old fault", "f")
    honest = run_of([made], BaseTree(FORK), {})
    assert seen(honest, remembered([made])).headline is Headline.UNCHANGED
    for base, bases in ((BaseTree(commit), {}), (None, {RECORD: BaseTree(commit)})):
        found = told(seen(run_of([made], base, bases), remembered([made])))["output"]
        assert found.word is Word.WRONG
        assert f"no base was asked: compared with {commit[:12]}, the merge base is {FORK[:12]}; " in found.reason


def test_one_wrong_base_among_several_costs_all_their_answers() -> None:
    made = kind("old fault", "f")
    given = run_of([made], None, {RECORD: BaseTree(FORK)})
    given = replace(given, bases={**given.bases, "other": BaseTree(sha("other"))})
    assert told(seen(given, remembered([made])))["output"].word is Word.WRONG


def test_the_answer_of_a_base_that_is_not_the_cases_own_is_not_heard() -> None:
    """On a push nobody knows the right base; each case still has one of its own."""
    made = kind("old fault", "f")
    given = run_of([made], None, {RECORD: BaseTree(FORK), "other": BaseTree(sha("other"))})
    assert told(seen(given, remembered([made]), commit=None))["output"].word is Word.OLD_FAULT
    moved = replace(given, pairings=[replace(given.pairings[0], base=sha("other"))])
    heard = told(seen(moved, remembered([made]), commit=None))
    assert heard[""].word is Word.UNRESOLVED  # a fault that nobody was asked about
    assert "output" not in heard


def test_a_push_says_with_which_commits_it_was_compared() -> None:
    made = kind("as fast", "f")
    given = run_of([made], None, {RECORD: BaseTree(FORK), "other": BaseTree(sha("other"))})
    overview = judge_lanes({SLUG: Received(given)}, Reference(remembered([made])))
    (warning,) = overview.warnings
    commits = ", ".join(each[:12] for each in sorted([FORK, sha("other")]))
    assert warning.startswith(f"{SLUG}: compared with {commits}, as the report says")


def test_answers_of_a_base_that_the_report_does_not_name_refuse_it() -> None:
    given, _ = alone("old fault")
    for base, bases in ((None, {}), (BaseTree(sha("other")), {}), (None, {RECORD: BaseTree(sha("other"))})):
        with pytest.raises(LaneError, match="answers of another base than"):
            received(replace(given, base=base, bases=bases))


def test_a_base_that_was_asked_and_measured_by_no_pair_answers() -> None:
    given, stored = alone("worse for a target")
    given = replace(given, pairings=[replace(given.pairings[0], pairs=0)])
    assert told(seen(given, stored))["sm_90.spills"].word is Word.CHANGED


def test_times_of_a_base_are_in_its_pairs_and_nowhere_else() -> None:
    """An answer that claims to have taken as long is no time of a pair."""
    given, stored = alone("slower")
    (case,) = given.pairings[0].cases
    claims = replace(case, base=measured("f", 55.0), times=[])
    for cases, word in (([replace(case, base=measured("f", 55.0))], Word.SLOWER), ([claims], Word.UNRESOLVED)):
        told_ = told(seen(replace(given, pairings=[replace(given.pairings[0], cases=cases)]), stored))
        assert told_["device_time_us"].word is word


# -- doubts that are claims --------------------------------------------------------------------------------------------


def test_an_accusation_of_the_report_stands_beside_doubts_that_say_nothing() -> None:
    made = kind("old fault", "f")
    wrong = Verdict(Word.WRONG, "output", "row 3: got 1, want 2")
    given = run_of([made], BaseTree(FORK), {})
    for problem in ("", "row 3", ZERO.problem):
        result = replace(given.results[0], verdicts=[wrong], doubts=[replace(ZERO, problem=problem)])
        assert wrong in again(replace(given, results=[result]), remembered([made])).results[0].verdicts


def test_thousands_of_doubts_cost_their_case_and_a_thousand_no_time() -> None:
    made = kind("old fault", "f")
    doubts = [replace(ZERO, name=f"configuration {number}") for number in range(1000)]
    many = replace(made.work, doubts=doubts)
    kinds = [made._replace(work=many, beside=PairedCase(SUITE, key("f"), many))]
    given = run_of(kinds, BaseTree(FORK), {})
    began = time.process_time()
    view = seen(given, remembered(kinds))
    assert (view.headline, view.refused) == (Headline.UNCHANGED, [])
    render_markdown(Overview(lanes=[view]))
    assert time.process_time() - began < 5  # each doubt is looked up, and not searched for
    more = replace(given.results[0], doubts=[*doubts, ZERO], verdicts=[])
    for result in (more, replace(more, doubts=[replace(ZERO, name="")])):
        found = read_untrusted_report(dump_report(replace(given, results=[result])))
        assert found.refused[0].reason == "invalid value: more than 1,000 doubts, or one without a name"
    found = read_untrusted_report(
        dump_report(replace(given, pairings=[replace(given.pairings[0], cases=[PairedCase(SUITE, key("f"), more)])]))
    )
    assert found.refused[0].reason.startswith("process pairs: invalid value: more than 1,000 doubts")


@pytest.mark.parametrize("place", ["9" * 5000, "-1", "1e3", "x", "²"])
def test_a_place_that_is_none_costs_at_most_its_case(place: str) -> None:
    given, _ = alone("old fault")
    data = dump_report(given).replace(b'"0": "first 8 rows"', f'"{place}": "first 8 rows"'.encode())
    assert len(read_untrusted_report(data).refused) in (0, 2)  # of the run and of the base


# -- code that claims to be the record's -------------------------------------------------------------------------------


def test_no_reading_of_a_record_hides_behind_a_target() -> None:
    made = kind("lighter", "f")
    (launches,) = made.work.readings
    hidden = replace(made.work, readings=[replace(launches, value=9, target="sm_90")])
    found = told(seen(run_of([made._replace(work=hidden)], BaseTree(FORK), {}), remembered([made])))
    assert found["launches"].word is Word.CHANGED


def test_the_code_of_a_call_is_recorded_and_has_to_be_read() -> None:
    honest = code(NOW)
    assert hold(untimed("f", honest)) == untimed("f", honest)
    assert honest.is_recorded
    claims = replace(honest, gated=True, covers=["device_time_us", "kernel_time_us"])
    (_, held) = hold(untimed("f", claims)).readings
    assert (held.gated, held.covers) == (False, ["kernel_time_us"])
    made = kind("worse for a target", "f")
    bare = replace(made.work, readings=[each for each in made.work.readings if each.metric != "code"])
    judged = judge_again(report([bare]), lane := remembered([made]).lane(HARDWARE, TOOLCHAIN))
    assert unmeasured(judged, lane) == [(SUITE, key("f"), "code")]


@pytest.mark.parametrize(
    "value", ["the record's", {}, {"rows": "-"}, {"rows": ""}, {"rows": 0}, {"cols": "aaaaaaaa-aaaaaaaa"}]
)
def test_code_that_only_claims_to_be_the_records_is_other_code(value: Value) -> None:
    made = kind("worse for a target", "f")
    readings = [replace(each, value=value) if each.metric == "code" else each for each in made.work.readings]
    kinds = [made._replace(work=replace(made.work, readings=readings))]
    assert told(seen(run_of(kinds, BaseTree(FORK), {}), remembered(kinds)))["sm_90.spills"].word is Word.CHANGED
