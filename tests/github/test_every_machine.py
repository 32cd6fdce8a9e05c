"""A lane named after a target (`cpu`): any machine of it may have run it, so it is judged by what they all share."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.github.lanes.lane_views import Reference, judge_lanes
from perfguard.github.lanes.untrusted_report import receive_all
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Better,
    Case,
    CaseBaseline,
    CaseResult,
    Hardware,
    Reading,
    Report,
    TimedEntry,
    Verdict,
    Word,
)
from perfguard.model.units import Unit
from perfguard.render.html import render_html
from perfguard.render.markdown import render_markdown, render_resolved
from perfguard.render.overview import Headline, Overview
from perfguard.render.terminal import render_summary
from perfguard.store.baseline_form import render
from tests.github.fake import sha
from tests.github.reports import PROVENANCE, SUITE, archive, key, report

SLUG = "cpu-epyc-7763-4c"
CPU = Hardware(slug=SLUG, vendor="cpu", name="AMD EPYC 7763", architecture="x86_64", target="cpu")
BEFORE: dict[str, object] = {"contract": "float32[64]", "operators": 1, "host_reads": 0}


def measured(operators: int = 1, *, timed: bool = False) -> CaseResult:
    """A case as this processor reads it; `timed`: with what belongs to this processor alone."""
    readings = [
        Reading("contract", Unit.TEXT, "float32[64]", Better.SAME, portable=True),
        Reading("operators", Unit.COUNT, operators, portable=True, drifts=True),
        Reading("host_reads", Unit.COUNT, 0, portable=True),
    ]
    if timed:
        blocks = [49.0, 50.0, 51.0]
        readings += [
            Reading("peak_memory_bytes", Unit.BYTES, 4096, drifts=True),
            Reading("device_time_us", Unit.MICROSECONDS, 50.0, timer="wall-u1", blocks=blocks, drifts=True),
        ]
    return CaseResult(Case(SUITE, "f", "forward", "test_area.py::test_f"), "float32[64]", readings=readings)


def untimed(result: CaseResult, **fields: object) -> Report:
    return replace(report([result], hardware=CPU, exact_only=True), **fields)


def remembered(**more: dict[str, object]) -> BaselineSet:
    """Of every CPU; `more`: of this one."""
    held = {"cpu": BEFORE, **({SLUG: more["own"]} if more else {})}
    files = {
        f"baselines/{folder}/{SUITE}.yaml": render(
            Baseline(folder, SUITE, {"": PROVENANCE}, {key("f"): CaseBaseline(entries, "float32[64]")})  # type: ignore[arg-type]
        ).encode()
        for folder, entries in held.items()
    }
    read = read_files(files, "baselines")
    assert read.problems == {}
    return read


OWN = {"peak_memory_bytes": 4096, "device_time_us": TimedEntry([50.0] * 5, "wall-u1")}


def judged(given: Report, base: BaselineSet, lane: str = "cpu") -> Overview:
    return viewed(given, Reference(base), lane)


def viewed(given: Report, trusted: Reference, lane: str = "cpu") -> Overview:
    return judge_lanes(receive_all({lane: archive(given, f"report-{SLUG}.json")}, sha("head")), trusted)


def test_a_processor_that_nobody_recorded_is_judged_and_nothing_of_it_is_new() -> None:
    overview = judged(untimed(measured()), remembered())
    assert overview.headline is Headline.UNCHANGED
    (lane,) = overview.lanes
    assert lane.report is not None
    assert (lane.report.guarded, lane.report.remembered) == (1, 1)
    words = {verdict.metric: verdict.word for each in lane.report.results for verdict in each.verdicts}
    assert words == dict.fromkeys(BEFORE, Word.PASS)


def test_what_changed_is_told() -> None:
    overview = judged(untimed(measured(operators=2)), remembered())
    assert overview.headline is Headline.WORSE
    assert "operators" in render_markdown(overview)


@pytest.mark.parametrize("base", [remembered(), remembered(own=OWN)], ids=["unknown", "recorded"])
def test_times_that_came_all_the_same_are_not_judged(base: BaselineSet) -> None:
    """Nor are those missed that were recorded of this very processor; neither does the lane's own word count."""
    noisy = Verdict(Word.UNRESOLVED, "device_time_us", "NOISY: …")
    for given in (measured(), measured(timed=True), replace(measured(timed=True), verdicts=[noisy])):
        for exact_only in (True, False):
            overview = judged(untimed(given, exact_only=exact_only), base)
            assert overview.headline is Headline.UNCHANGED
            assert overview.lanes[0].report is not None
            assert overview.lanes[0].report.exact_only
            assert {reading.metric for reading in overview.lanes[0].report.results[0].readings} == set(BEFORE)


def test_a_lane_of_one_processor_cannot_leave_its_times_out() -> None:
    overview = judged(untimed(measured()), remembered(own=OWN), lane=SLUG)
    assert overview.headline is Headline.INCOMPLETE
    assert overview.lanes[0].unmeasured == [f"{key('f')}: device_time_us", f"{key('f')}: peak_memory_bytes"]
    assert overview.lanes[0].report is not None
    assert overview.lanes[0].report.exact_only is False


def test_a_metric_that_is_no_longer_read_is_missed() -> None:
    without = msgspec.structs.replace(measured(), readings=measured().readings[1:])
    overview = judged(untimed(without), remembered())
    assert overview.headline is Headline.INCOMPLETE
    assert overview.lanes[0].unmeasured == [f"{key('f')}: contract"]
    # … also if the report says that it belongs to one machine alone.
    own = replace(measured().readings[0], portable=False)
    disowned = replace(measured(), readings=[replace(own, metric="unheard_of"), *measured().readings[1:]])
    assert judged(untimed(disowned), remembered()).headline is Headline.INCOMPLETE


def test_every_form_says_that_nothing_was_timed() -> None:
    overview = judged(untimed(measured()), remembered())
    report = overview.lanes[0].report
    assert report is not None
    text = render_markdown(overview)
    assert "### ✅ perfguard: no change in 1 case on 1 lane, not timed" in text
    assert "✅ no change, not timed" in text
    assert "<code>cpu</code> (not timed)" in render_resolved(overview)
    assert "no change, not timed" in render_html(overview)
    assert render_summary(report).title == "cpu, 1 of 1 case guarded, baselines hold 1, not timed"


def test_beside_a_gpu_the_headline_counts_the_lanes_without_times() -> None:
    overview = judged(untimed(measured()), remembered())
    unmoved = replace(untimed(measured(timed=True)), exact_only=False, base=BaseTree(sha("fork-point"), equal=True))
    timed = judged(unmoved, remembered(own=OWN), lane=SLUG)
    both = Overview([*timed.lanes, *overview.lanes])
    assert "no change in 2 cases on 2 lanes, 1 of them not timed" in render_markdown(both)
    assert "not timed" not in render_markdown(timed)


def test_commands_name_the_lane() -> None:
    text = render_markdown(judged(untimed(measured(operators=2)), remembered()))
    assert "pytest --perfguard --perfguard-lane=cpu test_area.py::test_f" in text
    new = replace(measured(), case=Case(SUITE, "g", "forward", "test_area.py::test_g"))
    added = untimed(measured())
    text = render_markdown(judged(replace(added, results=[measured(), new]), remembered()))
    assert "pytest --perfguard --perfguard-lane=cpu --perfguard-update=new" in text
