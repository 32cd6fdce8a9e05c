"""The comment: golden texts, what stands in the open, and its sizes."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfguard.model.records import BaseTree, CaseResult, HardCounts, Invocation, Verdict, Word
from perfguard.render.html import render_html
from perfguard.render.markdown import COMMENT_BYTES, render_markdown, visible_lines
from perfguard.render.outputs import OUTPUTS
from perfguard.render.overview import Headline, LaneView, Overview
from perfguard.render.terminal import render_summary
from perfguard.render.title import title_of
from tests.render.examples import (
    BETTER,
    CONTRACT,
    DOUBTED,
    DRIFT,
    EDIT,
    EXAMPLES,
    FASTER,
    FINE,
    LAUNCHES,
    NOISY,
    OLD_FAULT,
    PASSED,
    SLOWER,
    UNPAIRED,
    WRONG,
    lane,
    other_code,
    overview,
    result,
)
from tests.render.golden import FOLDER, texts, to_html
from tests.render.test_escaping import HOSTILE


def test_golden_comments() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert texts() == stored, "if the new text is right: python -m tests.render.golden"


@pytest.mark.parametrize("headline", Headline)
def test_every_headline_has_its_example(headline: Headline) -> None:
    assert EXAMPLES[headline].headline is headline


def test_other_code_is_named_by_a_lane_that_times_nothing() -> None:
    view = lane("amd-mi300x", other_code("a", "_sum|lists"), other_code("b", "_rows"))
    timed = render_markdown(overview(view))
    assert "other code" not in timed
    assert view.report is not None
    view = msgspec.structs.replace(view, report=msgspec.structs.replace(view.report, exact_only=True))
    told = render_markdown(overview(view))
    assert told.startswith("### ✅ perfguard: no change in 2 cases on 1 lane, not timed, other code in 2 cases\n")
    (line,) = [line for line in told.splitlines() if line.startswith("- ")]
    assert re.sub("<[^>]*>", "", line) == (
        "- amd-mi300x: other code in 2 cases, which nothing here times: &#95;sum&#124;lists, &#95;rows"
    )


def test_options_that_no_case_switches_on_are_named_of_new_cases_and_of_other_code() -> None:
    """Where one case varies an option it is checked."""

    def told(*cases: tuple[str, dict[str, str], bool]) -> list[str]:
        made = [other_code(name, "_f") if moved else result(name) for name, _, moved in cases]
        pairs = zip(made, cases, strict=True)
        view = lane("amd-mi300x", *(msgspec.structs.replace(each, unchecked=case[1]) for each, case in pairs))
        assert view.report is not None
        view = msgspec.structs.replace(view, report=msgspec.structs.replace(view.report, exact_only=True))
        return [f"{said}: {names}" for said, names in view.remarks if "unchecked" in said]

    still, varied = {"decay of lion": "0.0"}, {"decay of lion": ""}
    line = "1 option whose code is unchecked: ['decay of lion is 0.0 in every case']"
    assert told(("a", still, True), ("b", still, False)) == [line]
    assert told(("a", still, False)) == told(("a", still, True), ("b", varied, False)) == []


def test_kinds_that_no_run_has_reached_are_a_line_of_every_output() -> None:
    """A report's own words are not shown, only the names of kinds."""
    untried = [["sizes", "modes"], ["modes", "configurations", "modes", "<b>mine"], []]
    made = [
        msgspec.structs.replace(result(str(at)), hard=HardCounts(untried=kinds)) for at, kinds in enumerate(untried)
    ]
    whole = overview(lane("amd-mi300x", *made, result("none")))
    named = ["modes (2 cases)", "configurations (1 case)", "sizes (1 case)"]
    assert whole.lanes[0].remarks == [("kinds never tried here", named)]
    told = html.unescape(re.sub("<[^>]*>", "", render_markdown(whole)))
    assert f"\n- amd-mi300x: kinds never tried here: {', '.join(named)}\n" in told
    for name in ("html", "terminal"):
        assert f"kinds never tried here: {', '.join(named)}" in OUTPUTS[name](whole)


class Balance(HTMLParser):
    """Fails where a tag is closed that is not the last one open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag != "wbr":  # has no end
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(markdown: str) -> Balance:
    balance = Balance()
    balance.feed(to_html(markdown))
    assert balance.open == []
    return balance


@pytest.mark.parametrize("headline", Headline)
def test_one_heading_and_tables_inside_the_details(headline: Headline) -> None:
    for text in (render_markdown(EXAMPLES[headline]), render_markdown(EXAMPLES[headline], 4000)):
        seen = parsed(text).seen
        assert seen.count("h3") == 1
        assert not {"h1", "h2", "img"} & set(seen)
        if "details" in seen:
            assert "table" in seen[seen.index("details") :]
        assert not any(line.startswith("/") for line in text.splitlines())


def test_a_loosened_baseline_is_as_loud_as_a_regression() -> None:
    """Nothing moved, but the next regression of that size would pass."""
    strict = msgspec.structs.replace(EDIT, loosens="", case="strict")
    gone = "no longer judged"
    removed = msgspec.structs.replace(EDIT, after=None, reason="", measured=None, case="removed", loosens=gone)
    text = render_markdown(overview(FINE, edits=[EDIT, removed, strict]))
    assert text.startswith(
        "### ⚠️ perfguard: no change in 2 cases on 1 lane, 2 baseline edits let worse pass than before\n"
    )
    table = text.split("**Edits of baselines")[1].split("<details>")[0]
    rows = [line for line in table.splitlines() if line.startswith("| <code>")]
    assert "2 of 3 let a worse reading pass" in table
    assert ["looser" in row for row in rows] == [True, True, False]
    assert "61.2\xa0µs → removed ⚠️ looser: no longer judged | no reason | not measured" in rows[1]
    worse = msgspec.structs.replace(EXAMPLES[Headline.WORSE], edits=[EDIT, EDIT])
    title = "1 case slower, 1 changed, 1 faster, 2 baseline edits let worse pass than before — action needed"
    assert title_of(worse) == title


def test_new_metrics_of_a_judged_case_take_one_line_and_no_row() -> None:
    new = [Verdict(Word.NEW, f"metric_{number}", "no baseline on nvidia-h200") for number in range(24)]
    text = render_markdown(overview(lane("nvidia-h200", result("rms_norm[64]", SLOWER, *new, us=64.93))))
    assert "\n- <code>nvidia-h200</code>: 24 metrics new: <code>metric&#95;0</code>, " in text
    assert "</code> and 19 more\n" in text
    assert "NEW" not in text


def test_new_metrics_that_the_change_records_are_new_no_more() -> None:
    new = [Verdict(Word.NEW, name, "no baseline on nvidia-h200") for name in ("sorts", "waits")]
    view = lane("nvidia-h200", result("gelu", PASSED, *new), accepted=[("norms", "gelu/forward", "sorts")])
    text = render_markdown(overview(view))
    assert "\n- <code>nvidia-h200</code>: 1 metric new: <code>waits</code>\n" in text


def test_an_old_fault_takes_one_line_and_nothing_from_the_headline() -> None:
    for verdicts, sign in (([PASSED], "✅ perfguard: no change"), ([FASTER], "⚡ perfguard: 1 case faster")):
        text = render_markdown(overview(lane("nvidia-h200", result("softmax", *verdicts, OLD_FAULT))))
        assert text.startswith(f"### {sign}")
        shown = text.partition("<details>")[0]
        (line,) = [line for line in shown.splitlines() if "softmax" in line and "**" not in line and "|" not in line]
        assert line.endswith(": 1 case wrong beside the given inputs, at the base too: <code>softmax/forward</code>")


def test_a_better_exact_metric_is_a_quiet_line_and_never_lightning() -> None:
    text = render_markdown(overview(lane("nvidia-h200", result("a", FASTER), result("b", PASSED, BETTER))))
    assert text.index("**1 time faster**, the best: ") < text.index("; **1 exact metric better**: ")
    alone = overview(lane("nvidia-h200", result("b", PASSED, BETTER)))
    assert alone.headline is Headline.UNCHANGED
    assert render_markdown(alone).startswith(
        "### ✅ perfguard: nothing worse in 1 case on 1 lane, 1 changed for the better\n"
    )


def test_a_fault_beside_the_given_inputs_says_what_the_base_does_and_shows_no_errors_of_the_given_ones() -> None:
    long = msgspec.structs.replace(DOUBTED, reason=f"hard input, x (reversed): {'RMSE ' * 100}\nright at 9ab77e2c1d5b")
    for verdict in (DOUBTED, long):
        text = render_markdown(overview(lane("nvidia-h200", result("gelu", verdict))))
        (row,) = [line for line in text.partition("**Next steps**")[0].splitlines() if "gelu" in line]
        assert row.endswith("<code>right at 9ab77e2c1d5b</code> |")
        assert "RMSE 0.0011" not in row


def test_many_bases_are_counted_and_the_smallest_text_still_fits() -> None:
    view = lane("nvidia-h200", result("a", SLOWER))
    assert view.report is not None
    bases = {f"{number:07x}": BaseTree(f"{number:040x}") for number in range(5000)}
    whole = overview(msgspec.structs.replace(view, report=msgspec.structs.replace(view.report, base=None, bases=bases)))
    assert "</code> and 4995 more · lanes: 1 of 1 reported" in render_markdown(whole, 4000)


HOSTILE_VALUES = ["1\nrm -rf ~", "$(id)", "`id`", "'; id; '", "a b", "\u202e1", "<b>x", "1" * 101]


@pytest.mark.parametrize("value", HOSTILE_VALUES)
def test_only_known_variables_with_plain_values_stand_in_commands(value: str) -> None:
    view = lane("nvidia-h200", result("a", SLOWER))
    assert view.report is not None
    for variables, device in (
        ({"TRITON_INTERPRET": value, "LD_PRELOAD": "1"}, value),
        ({"TRITON_INTERPRET": "1", value: "1"}, "cuda:1"),
    ):
        report = msgspec.structs.replace(view.report, invocation=Invocation(variables, device))
        whole = overview(msgspec.structs.replace(view, report=report))
        plain = "TRITON_INTERPRET=1 pytest --perfguard --perfguard-device=cuda:1 tests" if device == "cuda:1" else ""
        line = f"\n{plain or 'pytest --perfguard tests'}/test_norms.py::test_a\n"
        assert line in render_markdown(whole)
        terminal = "\n".join(each.text for each in render_summary(report).lines)
        for text in (render_markdown(whole), render_html(whole), terminal):
            assert value not in text
            assert "LD_PRELOAD" not in text


def test_one_lane_is_named_once_and_takes_no_column() -> None:
    moved = overview(lane("nvidia-h200", result("rms_norm[64]", SLOWER, us=64.93), result("softmax", WRONG, us=None)))
    text = render_markdown(moved)
    assert "|  | Kernel or line | What changed in it | Cases | Worst (95 % CI) |\n" in text
    assert text.partition("<details>")[0].count("<code>nvidia-h200</code>") == 1
    new = overview(lane("nvidia-h200", result("rms_norm[64]", DRIFT, us=61.9)))
    assert "|  | Why | Cases | Such as |\n" in render_markdown(new)


def test_a_lane_without_a_result_is_never_green() -> None:
    silent = overview(FINE, LaneView("nvidia-h200"))
    for text in (render_markdown(silent), render_markdown(silent, 4000)):
        assert text.startswith("### ⚠️ perfguard: incomplete: 1 of 2 lanes without a result")
        assert "⚠️ <code>nvidia-h200</code> **no result**" in text
    assert "no lane is expected" in render_markdown(Overview(lanes=[]))


def test_half_slower_and_half_faster_are_both_told() -> None:
    slow = [result(f"slow[{number}]", SLOWER) for number in range(500)]
    better = [msgspec.structs.replace(FASTER, ratio=0.92 - n / 1000, interval=None) for n in range(500)]
    fast = [result(f"fast[{number}]", verdict) for number, verdict in enumerate(better)]
    text = render_markdown(overview(lane("nvidia-h200", *slow, *fast)))
    assert text.startswith("### ❌ perfguard: 500 cases slower, 500 faster — action needed\n")
    assert "| 500 SLOWER | <code>slow<wbr>" in text or "| 500 SLOWER | <code>slow&#91;" in text
    assert "\n**500 times faster**, the best: <code>fast&#91;499&#93;/forward</code> " in text
    assert ", 57.9\xa0% faster\n" in text  # 1/0.421 as its time is shown


@pytest.mark.parametrize("kernels", [1, 10, 1000])
def test_a_thousand_of_a_thousand_slower(kernels: int) -> None:
    """Within its size, by their count, the worst causes, the rest counted."""
    cases = [
        result(f"kernel_{n % kernels}[{n}]", msgspec.structs.replace(SLOWER, ratio=1.02 + n / 1000, interval=None))
        for n in range(1000)
    ]
    text = render_markdown(overview(lane("nvidia-h200", *cases)))
    assert len(text.encode()) <= COMMENT_BYTES
    assert visible_lines(text) <= 25
    assert text.startswith("### ❌ perfguard: 1000 cases slower — action needed\n")
    shown = text.partition("<details>")[0]
    changes = [float(each) for each in re.findall(r", ([\d.]+)\xa0% slower \|", shown)]
    assert changes[0] == 101.9
    assert changes == sorted(changes, reverse=True)
    counts = [int(count) for count in re.findall(r"\| (\d+) SLOWER \|", shown)]
    rest = re.search(r"^and (\d+) more: (\d+) cases", shown, re.MULTILINE)
    assert sum(counts) + (int(rest[2]) if rest else 0) == 1000
    assert len(counts) + (int(rest[1]) if rest else 0) == kernels
    parsed(text)


def test_undecided_times_beside_something_worse_are_one_line() -> None:
    cases = [result("slow", SLOWER), *(result(f"open{number}", UNPAIRED) for number in range(3))]
    text = render_markdown(overview(lane("nvidia-h200", *cases)))
    assert text.startswith("### ❌ perfguard: 1 case slower, 3 of 4 timed cases could not be judged — action needed\n")
    assert "\n\n**3 of 4 timed cases could not be judged:** <code>UNPAIRED&#58; " in text
    assert "open0" not in text.partition("<details>")[0]


def test_commands_only_for_ids_that_can_be_pasted() -> None:
    case = result("rms_norm[64]", SLOWER)
    for nodeid, shown in (("--rootdir=/x", False), ("@answers", False), ("a b; rm -rf /", True)):
        hostile = msgspec.structs.replace(case, case=msgspec.structs.replace(case.case, nodeid=nodeid))
        text = render_markdown(overview(lane("nvidia-h200", hostile)))
        assert ("pytest --perfguard" in text) is shown
        if shown:
            assert "pytest --perfguard 'a b; rm -rf /'" in text


def test_accepting_names_the_run_and_without_one_the_file() -> None:
    assert "perfguard accept --lane nvidia-h200 --run 123456789" in render_markdown(EXAMPLES[Headline.WORSE])
    unguarded = render_markdown(EXAMPLES[Headline.UNVERIFIED])
    assert "pytest --perfguard --perfguard-update=changed,new\n" in unguarded  # nothing that pairs judged
    assert "perfguard accept" not in unguarded
    local = msgspec.structs.replace(EXAMPLES[Headline.WORSE], run_url="")
    text = render_markdown(local)
    assert "\nperfguard accept --from report-nvidia-h200.json --reason 'why'\n" in text
    assert "--run" not in text
    assert "perfguard accept" not in render_markdown(msgspec.structs.replace(local, lanes=[FINE]))


def many(cases: int, lanes: int = 4, name: str = "case{}") -> Overview:
    slow = [result(name.format(number), SLOWER, LAUNCHES) for number in range(cases // lanes)]
    return overview(*(msgspec.structs.replace(lane("nvidia-h200", *slow), name=f"lane{n}") for n in range(lanes)))


def test_row_16_five_thousand_regressions() -> None:
    text = render_markdown(many(5000))
    assert len(text.encode()) <= COMMENT_BYTES
    assert text.startswith("### ❌ perfguard: 5000 cases slower — action needed")
    assert "_Shortened: only the worst findings; all of them are in the run's summary" in text
    assert text.count("| 1250 | 1250 of 1250 |") == 4  # slower of cases, a row a lane
    parsed(text)
    shown = len(re.findall(r"^\| \d+ \|.*\| 4 SLOWER \|", text.partition("<details>")[0], re.MULTILINE))
    assert f"\nand {1250 - shown} more: {5000 - 4 * shown} cases, listed below\n" in text


def test_row_18_the_budget_counts_bytes() -> None:
    text = render_markdown(many(600, name="漢字🔥{}"))
    assert len(text.encode()) <= COMMENT_BYTES
    assert "�" not in text
    assert len(render_markdown(many(600), budget=1_000_000)) > len(text)


VERDICTS = st.sampled_from([SLOWER, LAUNCHES, CONTRACT, FASTER, NOISY, UNPAIRED, DRIFT, WRONG])


@st.composite
def hostile_results(draw: st.DrawFn) -> CaseResult:
    """A case whose every text is untrusted."""
    verdicts = [
        msgspec.structs.replace(verdict, metric=draw(HOSTILE), reason=draw(HOSTILE))
        for verdict in draw(st.lists(VERDICTS, max_size=3))
    ]
    made = result(draw(HOSTILE), *verdicts)
    if draw(st.booleans()):
        other = other_code("f", draw(HOSTILE))
        readings, told = made.readings + other.readings[1:], made.verdicts + other.verdicts
        made = msgspec.structs.replace(made, readings=readings, verdicts=told)
    return msgspec.structs.replace(made, case=msgspec.structs.replace(made.case, nodeid=draw(HOSTILE)))


@st.composite
def hostile_overviews(draw: st.DrawFn) -> Overview:
    views = []
    for _ in range(draw(st.integers(0, 3))):
        view = lane("nvidia-h200", *draw(st.lists(hostile_results(), max_size=3)) * draw(st.sampled_from([1, 40])))
        assert view.report is not None
        device = msgspec.structs.replace(view.report.hardware, name=draw(HOSTILE), warnings=[draw(HOSTILE)])
        untimed = draw(st.booleans())
        report = (
            msgspec.structs.replace(view.report, hardware=device, exact_only=untimed) if draw(st.booleans()) else None
        )
        views.append(msgspec.structs.replace(view, name=draw(HOSTILE), report=report, problem=draw(HOSTILE)))
    edit = msgspec.structs.replace(EDIT, folder=draw(HOSTILE), case=draw(HOSTILE), reason=draw(HOSTILE))
    whole = overview(*views, edits=[edit] * draw(st.integers(0, 2)))
    return msgspec.structs.replace(whole, head=draw(HOSTILE), warnings=draw(st.lists(HOSTILE, max_size=2)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(whole=hostile_overviews(), budget=st.sampled_from([4000, 8000, COMMENT_BYTES]))
def test_whatever_the_names_the_comment_keeps_its_size_shape_and_counts(whole: Overview, budget: int) -> None:
    for text in (render_markdown(whole, budget),):
        assert len(text.encode()) <= budget
        assert title_of(whole) in text.splitlines()[0]
        seen = parsed(text).seen
        own = {"table", "thead", "tbody", "tr", "th", "td", "h3", "ul", "li", "p", "strong", "em", "details", "summary",
               "code", "span", "wbr", "pre", "a"}  # fmt: skip
        assert set(seen) <= own
        assert seen.count("a") <= 1  # the run's summary
        outside = re.sub(r"<code>.*?</code>|^(`{3,})sh\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
        assert "@" not in outside


def test_a_suspect_is_undecided_not_passed() -> None:
    suspect = msgspec.structs.replace(SLOWER, word=Word.SUSPECT)
    found = overview(lane("nvidia-h200", result("rms_norm[64]", suspect, FASTER)))
    assert found.headline is Headline.INCONCLUSIVE
    assert found.total(Word.SUSPECT) == 1
