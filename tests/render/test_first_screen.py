"""What a maintainer reads in five seconds: what happened, who did it, what next, before anything is unfolded."""

from __future__ import annotations

import html
import json
import re

import msgspec
import pytest

from perfguard.model.records import Report, Verdict, Word
from perfguard.render.html import render_html
from perfguard.render.markdown import COMMENT_BYTES, render_markdown, visible_lines
from perfguard.render.markdown.comment import MOST_CAUSES, MOST_LINES
from perfguard.render.outputs import codequality, github_annotations
from perfguard.render.overview import LaneView, Overview
from perfguard.render.terminal import render_summary
from tests.render.changes import SOURCE, changed, slow, wrong
from tests.render.examples import EDIT, FASTER, SLOWER, UNPAIRED, lane, overview, result
from tests.render.golden import to_html

SIZES = [3, 40, 400]


def first_screen(whole: Overview) -> str:
    """The text that GitHub shows of the comment before anything is unfolded."""
    unfolded = re.sub(r"<details>.*?</details>", "", to_html(render_markdown(whole)), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "", unfolded))


def rows(whole: Overview) -> list[str]:
    """The rows of the table of causes."""
    text = render_markdown(whole).partition("<details>")[0]
    return [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]


@pytest.mark.parametrize("findings", SIZES)
def test_what_who_and_what_next_stand_on_one_screen(findings: int) -> None:
    whole = changed(findings)
    text = render_markdown(whole)
    assert visible_lines(text) <= MOST_LINES
    assert len(text.encode()) <= COMMENT_BYTES
    screen = first_screen(whole)
    lines = [line for line in screen.splitlines() if line.strip()]
    assert re.match(r"🔴 perfguard: 1 case wrong, \d+ slower — action needed", lines[0])  # what
    assert "quantize_0" in screen  # who: the kernel, its line, what changed in it, the lane's job
    assert "held 9 -> 2" in screen
    before_details = text.partition("<details>")[0]
    assert f"]({SOURCE}kernels/quantize.py#L40)" in before_details
    assert "](https://github.com/example/project/actions/runs/123456789/job/7)" in before_details
    assert "pytest --perfguard 'tests/test_norms.py::test_quantize_0[" in screen  # what next
    assert "perfguard accept --lane nvidia-h200 --run 123456789" in screen


def test_each_cause_is_one_row_and_the_rest_is_counted() -> None:
    few, many = changed(3), changed(400)
    (row,) = rows(few)
    assert row.startswith("| 1 | <code>quantize&#95;0</code> ")
    assert "| 1 WRONG, 2 SLOWER |" in row
    assert len(rows(many)) >= MOST_CAUSES - 2
    shown = len(rows(many))
    rest = re.search(r"^and (\d+) more: (\d+) cases, listed below$", render_markdown(many), re.MULTILINE)
    assert rest is not None
    assert int(rest[1]) == 12 - shown
    counts = [sum(map(int, re.findall(r"(\d+) [A-Z]+", row.split(" | ")[3]))) for row in rows(many)]
    failing = sum(word.fails for view in many.lanes for _, word in view.cases)
    assert sum(counts) + int(rest[2]) == failing


def test_a_wrong_row_shows_the_limit_of_the_check_that_failed() -> None:
    """RMSE 0.00753 with limit 0.00829 is no fault; a limit of groups is the one that failed."""
    whole = overview(lane("nvidia-h200", wrong("quantize_0", 1)))
    (row,) = rows(whole)
    assert "RMSE 0&#46;0162&#44; limit 0&#46;0101" in row
    for text in (render_markdown(whole), render_html(whole)):
        assert "RMSE 0.00829" not in text
    (record,) = json.loads(render_html(whole).partition('id="data">')[2].partition("</script>")[0])["cases"]
    problem = record["verdicts"][0]["reason"]
    assert problem
    assert all(problem not in cell for line in record["numerics"] for cell in line)


def test_everything_that_may_press_still_fits_the_screen() -> None:
    """Edits, warnings, undecided, faster and unmeasured cases, twenty lanes: all beside twelve causes."""
    silent = [LaneView(f"lane{number}", problem="the job was cancelled") for number in range(9)]
    odd = lane("amd-mi300x", result("fast", FASTER), result("open", UNPAIRED))
    odd = msgspec.structs.replace(odd, name="odd", unmeasured=[f"gone[{number}]/forward" for number in range(30)])
    whole = msgspec.structs.replace(
        changed(400, odd, *silent), edits=[EDIT] * 40, warnings=[f"warning {number}" for number in range(12)]
    )
    text = render_markdown(whole)
    assert visible_lines(text) <= MOST_LINES
    screen = first_screen(whole)
    for told in (
        "30 cases not measured", "1 time faster", "40 edits of baselines or settings, ⚠️ 40 let a worse",
        "warning 0 and 11 more warnings", "lane8 no result: the job was cancelled", "timed cases could not be judged",
    ):  # fmt: skip
        assert told in screen


@pytest.mark.parametrize("cases", SIZES)
@pytest.mark.parametrize("word", [Word.NEW, Word.DRIFT, Word.UNRESOLVED, Word.BROKEN])
def test_what_could_not_be_judged_is_grouped_by_reason(cases: int, word: Word) -> None:
    reasons = ["no baseline on nvidia-h200", "it took too long"]
    made = [result(f"a[{n}]", Verdict(word, "launches", reasons[n % 2]), us=None) for n in range(cases)]
    whole = overview(lane("nvidia-h200", *made))
    assert visible_lines(render_markdown(whole)) <= MOST_LINES
    told = rows(whole)
    assert len(told) == 2
    assert f"{(cases + 1) // 2} {word}" in told[0]


def test_a_dirty_tree_keeps_its_plus_in_every_output() -> None:
    whole = msgspec.structs.replace(changed(3), head="4f1c0de58d0a+")
    assert "<code>4f1c0de58d0a&#43;</code> judged by" in render_markdown(whole)
    assert "<code>4f1c0de58d0a+</code>" in render_html(whole)


def report_of(whole: Overview) -> Report:
    (report,) = [view.report for view in whole.lanes[:1] if view.report is not None]
    return report


@pytest.mark.parametrize("findings", SIZES)
def test_the_terminal_tells_each_cause_once(findings: int) -> None:
    whole = changed(findings)
    lines = [line.text for line in render_summary(report_of(whole)).lines]
    text = "\n".join(lines)
    slower = [line for line in lines if line.startswith("SLOWER  ")]
    assert len(slower) == len({cause.name for cause in whole.causes})
    assert text.count("SLOWER  quantize_0 (kernels/quantize.py:40), in ") == 1
    assert ": held 9 -> 2" in slower[0] + text
    assert sum("reproduce: " in line for line in lines) == len(slower) + 1  # and the wrong case's


@pytest.mark.parametrize("findings", SIZES)
def test_page_annotations_and_code_quality_have_the_rows_of_the_comment(findings: int) -> None:
    whole = changed(findings)
    page = render_html(whole)
    block = page.partition('<section class="causes">')[2].partition("</section>")[0]
    assert page.index('<section class="causes">') < page.index('<section class="lanes"')
    names = [cause.name for cause in whole.causes]
    assert re.findall(r"<strong>(\w+)</strong>", block) == names[:MOST_CAUSES]
    assert f'href="{SOURCE}kernels/quantize.py#L40"' in block
    assert "perfguard accept --lane nvidia-h200" in block
    entries = json.loads(codequality(whole))
    assert [entry["description"].split(": ")[1].partition(" (")[0] for entry in entries] == names
    assert len({entry["fingerprint"] for entry in entries}) == len(names)
    assert entries[0]["location"] == {"path": "kernels/quantize.py", "lines": {"begin": 40}}
    assert entries[0]["severity"] == "blocker"
    told = github_annotations(whole).splitlines()
    assert len(told) == min(len(names), 10)
    assert told[0].startswith("::error file=kernels/quantize.py,line=40,title=perfguard%3A 1 WRONG%2C ")


def test_names_of_strangers_stay_inside_their_annotation() -> None:
    case = slow("quantize_0", 0)
    readings = [
        msgspec.structs.replace(each, lines={"quantize_0": "../../etc/x.py:3 in quantize_0"}) if each.lines else each
        for each in case.readings
    ]
    hostile = msgspec.structs.replace(case.case, name="a\n::stop-commands::x")
    outside = msgspec.structs.replace(case, case=hostile, readings=readings)
    whole = msgspec.structs.replace(overview(lane("nvidia-h200", outside)), source_url=SOURCE)
    assert github_annotations(whole) == ""  # a path upwards is no place of the repository
    assert "etc" not in render_markdown(whole)
    named = msgspec.structs.replace(case, case=hostile)
    (line,) = github_annotations(overview(lane("nvidia-h200", named))).splitlines()
    assert line.startswith("::error file=kernels/quantize.py,line=40,")


def test_a_case_page_shows_cause_and_labelled_commands() -> None:
    text = render_html(changed(3))
    records = json.loads(text.partition('id="data">')[2].partition("</script>")[0])["cases"]
    slower = next(record for record in records if record["word"] == "SLOWER")
    assert slower["cause"] == "quantize_0 (kernels/quantize.py:40): held 9 -> 2"
    assert [label for label, _ in slower["commands"]] == ["reproduce", "compare with the merge base"]
    assert "2026-11-21 08:30 UTC" in text


def test_a_test_without_known_cause_is_named_with_its_file() -> None:
    whole = msgspec.structs.replace(overview(lane("nvidia-h200", result("f[64]", SLOWER))), source_url=SOURCE)
    (row,) = rows(whole)
    assert row.startswith("| 1 | <code>f</code> [<code>tests/test&#95;norms&#46;py</code>](")
    assert f"{SOURCE}tests/test_norms.py)" in row
