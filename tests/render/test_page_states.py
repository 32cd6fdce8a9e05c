"""The page in ten states, one for each headline: readable on a telephone, in light and in dark, with all details open.

PERFGUARD_PICTURES=folder keeps the pictures, for a person to look at.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfguard.model.records import (
    CaseResult,
    PairedCase,
    PairedTime,
    Pairing,
    PairReading,
    Provenance,
    Recorded,
    Throughput,
    TimedEntry,
)
from perfguard.render.html import render_html
from perfguard.render.overview import Headline, LaneView
from tests.render.browser import photograph, probe
from tests.render.examples import EXAMPLES, SLOWER, lane, overview, result
from tests.render.test_html import data

WIDTH = 420
#: As loud as text has to be: WCAG 2.2, level AA.
LEAST_CONTRAST = 4.5
RECORDS = [
    Recorded({"device_time_us": TimedEntry([60.0], "graph-cold")}, "", Provenance(commit="1f00aa", recorded="2026-09-01")),
    Recorded(
        {"device_time_us": TimedEntry([63.1], "graph-cold", 60.0), "launches": 2}, "",
        Provenance(commit="2b11bb", recorded="2026-10-02", reason="float32 accumulation, see #412"),
    ),
    Recorded(
        {"device_time_us": TimedEntry([61.2], "graph-cold", 60.0), "launches": 1}, "",
        Provenance(commit="9ab77e2", recorded="2026-11-16"),
    ),
]  # fmt: skip


def furnished(view: LaneView) -> LaneView:
    """The lane with everything that the page can show of a case."""
    if view.report is None:
        return view
    pairs = [PairReading(pair, 0.06, -0.001, 61.2, 64.9 + pair / 100) for pair in (1, 2, 3)]
    results = [each if each.throughput is None else with_rates(each) for each in view.report.results]
    paired = [PairedCase(*each.id, times=[PairedTime("device_time_us", "", pairs)]) for each in results]
    report = msgspec.structs.replace(view.report, results=results, pairings=[Pairing("9ab77e2", paired)])
    history = {"norms": {each.case.key: RECORDS for each in results}}
    return msgspec.structs.replace(view, report=report, history=history)


def with_rates(one: CaseResult) -> CaseResult:
    return msgspec.structs.replace(one, throughput=Throughput(2.1e12, 3.0e14, 0.54, 0.43, "bfloat16"))


def state(headline: Headline) -> str:
    whole = EXAMPLES[headline]
    lanes = [furnished(view) for view in whole.lanes]
    source = "https://github.com/example/project/blob/4f1c0de58d0a0a4c3a0f5f8f3c8b7f1f6d2f9f10/"
    return render_html(msgspec.structs.replace(whole, lanes=lanes, source_url=source))


def gallery(folder: Path, name: str, pages: list[str], height: int) -> Path:
    """A page of pages, each as wide as a telephone."""
    frame = '<iframe style="width:{}px;height:{}px;border:0;margin:4px" srcdoc="{}"></iframe>'
    frames = "".join(frame.format(WIDTH, height, html.escape(page)) for page in pages)
    path = folder / f"{name}.html"
    path.write_text(f"<!DOCTYPE html><html><body style='margin:0'>{frames}</body></html>", encoding="utf-8")
    return path


LOOK = """
const channels = (text) => { const found = text.match(/[\\d.]+/g).map(Number); return { rgb: found.slice(0, 3), alpha: found.length > 3 ? found[3] : 1 }; };
const light = (rgb) => { const [r, g, b] = rgb.map((each) => { const s = each / 255; return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const contrast = (one, two) => { const [low, high] = [light(one), light(two)].sort((a, b) => a - b); return (high + 0.05) / (low + 0.05); };
const behind = (view, node) => { for (let at = node; at; at = at.parentElement) { const colour = channels(view.getComputedStyle(at).backgroundColor); if (colour.alpha === 1) return colour.rgb; } return [255, 255, 255]; };
const look = (frame) => {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  for (const row of page.querySelectorAll(".row")) row.click();
  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), low = [], small = [];
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement, style = view.getComputedStyle(node);
    if (!texts.currentNode.textContent.trim() || !node.getClientRects().length || ["SCRIPT", "STYLE", "OPTION"].includes(node.tagName)) continue;
    const inside = node instanceof view.SVGElement, ratio = contrast(channels(inside ? style.fill : style.color).rgb, behind(view, node));
    const shrunk = inside ? node.ownerSVGElement.getBoundingClientRect().width / node.ownerSVGElement.viewBox.baseVal.width : 1;
    if (ratio < LEAST) low.push([texts.currentNode.textContent.trim(), ratio]);
    if (parseFloat(style.fontSize) * shrunk < 9) small.push([texts.currentNode.textContent.trim(), parseFloat(style.fontSize) * shrunk]);
  }
  return { page: root.clientWidth, scrolled: root.scrollWidth, dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    details: page.querySelectorAll(".detail").length, plots: page.querySelectorAll(".plots svg").length, low, small,
    wide: [...page.querySelectorAll(".detail *, .lane *, .causes *, .edits *")].filter((each) => !each.closest("pre, .command, svg") && each.getBoundingClientRect().right > root.clientWidth + 1).map((each) => each.outerHTML.slice(0, 120)) };
};
addEventListener("load", () => {
  seen.states = [...document.querySelectorAll("iframe")].map(look);
  document.documentElement.dataset.seen = JSON.stringify(seen);
});
""".replace("LEAST)", f"{LEAST_CONTRAST})")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_ten_states_can_be_read_on_a_telephone(tmp_path: Path, dark: bool) -> None:
    pages = [state(headline) for headline in Headline]
    assert len(pages) == 10
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    path = gallery(tmp_path, "states", pages, 1600)
    seen: dict[str, Any] = probe(path, LOOK, "--window-size=2200,900", scheme)
    for headline, one in zip(Headline, seen["states"], strict=True):
        assert one["dark"] is dark
        assert one["scrolled"] <= one["page"] <= WIDTH, headline
        assert (one["low"], one["small"], one["wide"]) == ([], [], []), headline
        assert one["details"], headline
    assert sum(one["plots"] for one in seen["states"]) > 2 * len(pages)
    if folder := os.environ.get("PERFGUARD_PICTURES"):
        for headline, page in zip(Headline, pages, strict=True):
            opened = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace(
                "</body>", "<script>document.querySelectorAll('.row').forEach((row) => row.click())</script></body>"
            )
            photograph(
                gallery(tmp_path, headline.name, [opened], 2600),
                Path(folder, f"{headline.name}-{'dark' if dark else 'light'}.png"),
                WIDTH + 8,
                2600,
                scheme,
            )


def test_ceilings_and_what_is_left_are_told() -> None:
    shown = with_rates(result("slow", SLOWER))
    alone = msgspec.structs.replace(shown, throughput=Throughput(2.1e12, 3.0e14))
    above = msgspec.structs.replace(shown, throughput=Throughput(None, 8.0e14, None, 1.04, "bfloat16"))
    untimed = msgspec.structs.replace(shown, throughput=None)
    cases = data(render_html(overview(lane("nvidia-h200", shown, alone, above, untimed))))["cases"]
    assert [case["roofline"] for case in cases] == [
        [
            ["2.1 TB/s of 3.89 TB/s, which a copy reached in this run", 0.54],
            ["300 TFLOP/s of 698 TFLOP/s, which a bfloat16 matmul reached in this run", 0.43],
            ["At the nearer ceiling it would take 54 % of its time: 46 % is left", None],
        ],
        [["2.1 TB/s", None], ["300 TFLOP/s", None]],
        [
            ["800 TFLOP/s of 769 TFLOP/s, which a bfloat16 matmul reached in this run", 1.04],
            ["At the nearer ceiling it would take 104 % of its time: 0 % is left", None],
        ],
        [],
    ]


RECORD = """
document.querySelectorAll(".row")[0].click();
seen.links = [...document.querySelectorAll(".records a")].map((link) => link.href);
seen.rows = [...document.querySelectorAll(".records tbody tr")].map((row) => row.textContent);
seen.dots = [...document.querySelectorAll(".plots svg")].map((plot) => plot.querySelectorAll("circle.session").length);
seen.bars = [...document.querySelectorAll(".roof")].map((line) => line.textContent);
"""


def test_the_history_is_a_plot_and_a_table_with_links(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(state(Headline.WORSE), encoding="utf-8")
    seen = probe(path, RECORD)
    start = "https://github.com/example/project/commit/"
    assert seen["links"] == [f"{start}{commit}" for commit in ("9ab77e2", "2b11bb", "1f00aa")]
    assert "float32 accumulation, see #412" in seen["rows"][1]
    assert seen["dots"] == [5, 3, 6]  # sessions, levels by commit, bases and their copies
    assert seen["bars"][0].endswith("a copy reached in this run: 54 %")
