"""The page: nothing from a report becomes markup or script; sorting, filtering and opening work in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfguard.model.records import PairedCase, PairedTime, Pairing, PairReading, Reading, Verdict, Word
from perfguard.model.units import Unit
from perfguard.render.html import render_html
from perfguard.render.overview import Headline, LaneView
from tests.render.browser import dump, probe
from tests.render.examples import (
    BETTER,
    CONTRACT,
    EDIT,
    EXAMPLES,
    FASTER,
    LAUNCHES,
    NEW,
    NOISY,
    OLD_FAULT,
    PASSED,
    SLOWER,
    WRONG,
    lane,
    overview,
    result,
)

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
WHOLE = overview(
    lane(
        "nvidia-h200", result("slow", SLOWER, LAUNCHES, us=64.93), result("fast", FASTER, us=56.3), result("fine10"),
        result("fine9"),
    ),
    lane("amd-mi300x", result(HOSTILE, WRONG, us=None), result("noisy", NOISY), result("new", NEW, us=88.1),
         result("slow", CONTRACT)),
    LaneView("nvidia-b200", problem=HOSTILE),
    edits=[msgspec.structs.replace(EDIT, reason=HOSTILE)],
)  # fmt: skip


class Elements(HTMLParser):
    """Every element and attribute name; scripts and styles by their text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.inside = ""
        self.code: dict[str, list[str]] = {"script": [], "style": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]
        self.inside = tag
        if tag in self.code:
            self.code[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in self.code:
            self.code[self.inside][-1] += data


def elements(text: str) -> Elements:
    found = Elements()
    found.feed(text)
    return found


def data(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(elements(text).code["script"][0])
    return loaded


def test_only_our_style_and_script_may_run() -> None:
    text = render_html(WHOLE)
    found = elements(text)
    _, script = found.code["script"]
    (style,) = found.code["style"]
    for part, rule in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}';" in text
    assert "default-src 'none'" in text
    assert not {"style", "src"} & found.attributes
    assert found.links
    assert all(link.startswith("#find=") for link in found.links)  # no URL of a run or of sources is known here
    assert not any(name.startswith("on") for name in found.attributes)
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in script
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("headline", Headline)
def test_every_headline_has_its_page(headline: Headline) -> None:
    whole = EXAMPLES[headline]
    text = render_html(whole)
    assert "<h1>" in text
    assert len(data(text)["cases"]) == sum(len(view.report.results) for view in whole.lanes if view.report)


def test_what_asks_for_nothing_is_a_line_of_the_lane_as_in_the_comment() -> None:
    hostile = msgspec.structs.replace(NEW, metric="<b>sorts")
    one = result("softmax", PASSED, OLD_FAULT)
    text = render_html(overview(lane("nvidia-h200", one, result("gelu", PASSED, BETTER, hostile))))
    remarks = re.findall(r"<li>([^<]*)</li>", text.partition('<ul class="remarks">')[2].partition("</ul>")[0])
    assert remarks == [
        "1 case wrong beside the given inputs, at the base too: softmax/forward", "1 metric new: &lt;b&gt;sorts",
    ]  # fmt: skip
    tones = {each["word"]: each["tone"] for each in data(text)["cases"]}
    assert tones == {"OLD FAULT": "calm", "CHANGED (better)": "calm"}


def test_sessions_are_of_the_same_timer_only() -> None:
    (one, *_) = data(render_html(EXAMPLES[Headline.WORSE]))["cases"]
    (time,) = one["times"]
    assert time["sessions"] == [61.1, 61.2, 61.4, 61.2, 61.3]
    assert time["band"] == pytest.approx([61.2 / 1.01, 61.2 * 1.01])
    view = EXAMPLES[Headline.WORSE].lanes[0]
    assert view.report is not None
    other = json.loads(msgspec.json.encode(view.report).replace(b"graph-cold", b"queue-cold"))
    report = msgspec.convert(other, type(view.report))
    (one, *_) = data(render_html(overview(msgspec.structs.replace(view, report=report))))["cases"]
    assert one["times"][0]["sessions"] == []


def test_what_is_not_gated_says_so_and_is_no_change_of_the_case() -> None:
    """A time that is only shown, +199,900 % slower, stood beside PASS as the case's own change."""
    ranked = Reading("ranks_time_us", Unit.MICROSECONDS, 2000.0, timer="ranks-queue-cold-m12", gated=False)
    mix = Reading("sm_90.instructions", Unit.COUNT, {"rows": 900}, gated=False, target="sm_90")
    shown = Verdict(
        Word.PASS, "ranks_time_us", "not gated: +199,900.0 %", before=1.0, after=2000.0, unit=Unit.MICROSECONDS,
        ratio=2000.0,
    )  # fmt: skip
    told = Verdict(Word.PASS, "sm_90.instructions", "not gated: rows 9 -> 900", ratio=100.0)
    gated = Verdict(Word.PASS, "device_time_us", before=61.2, after=61.3, unit=Unit.MICROSECONDS, ratio=1.0016)
    timed = result("timed", gated, shown, told)
    timed = msgspec.structs.replace(timed, readings=[ranked, mix, *timed.readings])
    untimed = msgspec.structs.replace(result("untimed", shown, told, us=None), readings=[ranked, mix])
    first, second = data(render_html(overview(lane("nvidia-h200", timed, untimed))))["cases"]
    assert (first["ratio"], second["ratio"]) == (1.0016, None)
    assert [time["metric"] for time in first["times"]] == ["device_time_us", "ranks_time_us"]
    words = {verdict["metric"]: verdict["word"] for verdict in first["verdicts"]}
    assert words == {"device_time_us": "PASS", "ranks_time_us": "not gated", "sm_90.instructions": "not gated"}


def test_blocks_stand_beside_the_value_that_they_gave_and_no_other() -> None:
    """Process pairs measure anew: their time is no point among the blocks of the run that asked them."""
    paired, read = data(render_html(overview(lane("nvidia-h200", result("paired", SLOWER), result("read")))))["cases"]
    (time,) = paired["times"]
    assert (time["now"], time["source"], time["blocks"]) == (64.93, "process pairs", [])
    (time,) = read["times"]
    assert time["source"] == "this run"
    assert min(time["blocks"]) <= time["now"] <= max(time["blocks"])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_html(WHOLE), encoding="utf-8")
    return path


def test_it_runs_from_a_file_under_its_policy_and_an_address_filters_it(page: Path) -> None:
    shown = dump(page, "#verdict=SLOWER%7CFASTER&sort=-time")
    names = re.findall('<td class="name"[^>]*>([^<]*)<', shown)
    assert names == ["slow/forward", "fast/forward"]
    assert "2 of 8 cases" in shown
    assert "<title>perfguard: 1 case wrong" in shown
    assert shown.count("<svg") == 2
    assert "<img" not in shown


SCRIPT = """
const names = () => [...document.querySelectorAll(".row .name")].map((cell) => cell.firstChild.textContent);
const press = (selector) => document.querySelector(selector).click();
const type = (text) => { const box = document.querySelector("#find"); box.value = text; box.dispatchEvent(new Event("input")); };
seen.worst_first = names();
press('[data-sort="time"]'); seen.slowest_first = names();
seen.sorted = document.querySelector('[data-sort="time"]').parentElement.getAttribute("aria-sort");
press('[data-sort="time"]'); seen.quickest_first = names();
press('[data-sort="name"]'); seen.by_name = names();
type("h200 FINE"); seen.found = names(); seen.status = document.querySelector("#shown").textContent;
type("no such case"); seen.nothing = names(); type("");
press('[data-word="FASTER"]'); seen.faster = names(); press('[data-word="FASTER"]');
const lane = document.querySelector("#lane"); lane.value = "1"; lane.dispatchEvent(new Event("change"));
seen.second_lane = names(); lane.value = ""; lane.dispatchEvent(new Event("change"));
press('[data-sort="urgency"]'); if (names()[0].startsWith("fine")) press('[data-sort="urgency"]');
document.querySelectorAll(".row")[1].click();
const open = document.querySelector(".detail");
seen.detail = open.textContent; seen.plots = open.querySelectorAll("svg").length;
seen.dots = open.querySelectorAll("circle.session").length; seen.bands = open.querySelectorAll("rect.band").length;
document.querySelectorAll(".row")[1].click(); seen.closed = document.querySelector(".detail") === null;
seen.title = document.title;
"""


def test_sorting_filtering_and_opening(page: Path) -> None:
    seen = probe(page, SCRIPT)
    assert seen["worst_first"][0].startswith("</script>")
    assert seen["worst_first"][1:3] == ["slow/forward", "slow/forward"]
    assert seen["worst_first"][-2:] == ["fine10/forward", "fine9/forward"]
    assert seen["slowest_first"][0] == "new/forward"
    assert seen["sorted"] == "descending"
    assert seen["quickest_first"][0] == "fast/forward"
    assert seen["slowest_first"][-1].startswith("</script>")  # what has no time stands last, either way
    assert seen["quickest_first"][-1].startswith("</script>")
    assert seen["by_name"].index("fine9/forward") < seen["by_name"].index("fine10/forward")
    assert sorted(seen["found"]) == ["fine10/forward", "fine9/forward"]
    assert seen["status"] == "2 of 8 cases"
    assert seen["nothing"] == []
    assert seen["faster"] == ["fast/forward"]
    assert len(seen["second_lane"]) == 4
    assert "launches 1 -> 2" in seen["detail"]
    assert "pytest --perfguard tests/test_norms.py::test_slow" in seen["detail"]
    assert (seen["plots"], seen["dots"], seen["bands"]) == (1, 5, 1)
    assert seen["closed"]
    assert seen["title"].startswith("perfguard: 1 case wrong")


PAIRED = """
document.querySelectorAll(".row")[0].click();
const [plot, pairs] = document.querySelectorAll(".detail .plots svg");
seen.label = pairs.getAttribute("aria-label");
seen.dots = pairs.querySelectorAll("circle.session").length; seen.now = pairs.querySelectorAll("circle.now.bad").length;
seen.columns = new Set([...pairs.querySelectorAll("circle")].map((dot) => dot.getAttribute("cx"))).size;
seen.hidden = [...document.querySelectorAll("#cases > thead th")].filter((cell) => cell.hidden).map((cell) => cell.textContent);
"""


def test_process_pairs_are_lines_through_base_copy_and_change(tmp_path: Path) -> None:
    view = lane("nvidia-h200", result("slow", SLOWER, us=64.93))
    assert view.report is not None
    readings = [PairReading(pair, 0.06, -0.001, 61.2, 64.9 + pair / 100) for pair in (1, 2, 3)]
    pairing = Pairing(
        "9ab77e2", [PairedCase("norms", "slow/forward", times=[PairedTime("device_time_us", "", readings)])]
    )
    report = msgspec.structs.replace(view.report, pairings=[pairing])
    path = tmp_path / "report.html"
    path.write_text(render_html(overview(msgspec.structs.replace(view, report=report))), encoding="utf-8")
    seen = probe(path, PAIRED)
    assert seen["label"] == "3 process pairs, 61.14 µs to 64.93 µs: 6.1 % slower (5.5 to 6.7)"
    assert (seen["dots"], seen["now"], seen["columns"]) == (6, 3, 3)
    assert seen["hidden"] == []


def test_columns_without_any_value_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_html(overview(lane("nvidia-h200", result("a", CONTRACT, us=None)))), encoding="utf-8")
    script = PAIRED.partition("const [plot")[0] + PAIRED[PAIRED.index("seen.hidden") :]
    assert probe(path, script)["hidden"] == ["Time", "Change", "Sessions and now", "% of copy"]
