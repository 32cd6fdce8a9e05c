"""The history of a time is what git holds of its baseline; where git cannot tell, there is none and no error."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfguard.cli import main
from perfguard.model.errors import ExitStatus
from perfguard.model.records import Entry, Provenance, TimedEntry
from perfguard.model.records.baseline import Recorded
from perfguard.model.records.change import Change
from perfguard.render.html import render_html
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_history import read_history
from perfguard.store.baseline_update import apply
from perfguard.store.report_file import save_report
from tests.render.browser import probe
from tests.render.examples import lane, overview, result

SLUG, SUITE, TIME = "nvidia-h200", "norms", "device_time_us"
KEY = 'odd "name": 1/forward'


def git(folder: Path, *arguments: str) -> str:
    line = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The baselines of a repository, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    return tmp_path / "baselines"


def commit(folder: Path, key: str = KEY, *, timer: str = "graph-cold", **fields: Any) -> str:
    """Store a time (`us`, `anchor`) and commit; answers the commit's hash."""
    store = Store(folder)
    known = store.load(SLUG, SUITE)
    before = known.cases[key].entries[TIME] if known and key in known.cases else None
    after: Entry = TimedEntry([fields["us"]] * 5, timer, fields.get("anchor"))
    change = Change(category="new", folder=SLUG, suite=SUITE, key=key, metric=TIME, before=before, after=after)
    apply(store, [change], Provenance(recorded="2026-11-21"))
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "--quiet", "--allow-empty", "-m", "x")
    return git(folder.parent, "rev-parse", "HEAD").strip()


FILE = f"{SLUG}/{SUITE}.yaml"


def test_each_recording_is_told_once_oldest_first(folder: Path) -> None:
    first = commit(folder, us=50.0)
    second = commit(folder, us=50.4, anchor=50.0)
    commit(folder, "other/forward", us=9.0)
    third = commit(folder, us=52.5)
    found = read_history(folder, FILE)
    assert [(each.commit, each.us, each.anchor) for each in found[KEY, TIME]] == [
        (first, 50.0, 50.0), (second, 50.4, 50.0), (third, 52.5, 52.5),
    ]  # fmt: skip
    assert len(found["other/forward", TIME]) == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found[KEY, TIME][0].date)
    assert found[KEY, TIME][0].timer == "graph-cold"


def test_what_cannot_be_read_is_left_out(folder: Path) -> None:
    commit(folder, us=50.0)
    path = folder / FILE
    good = path.read_bytes()
    for odd in (b"\xff\xfe", b"cases: [", good.replace(b"50.0, 50.0", b"1e, .")):
        path.write_bytes(odd)
        git(folder.parent, "commit", "--quiet", "-am", "odd")
    path.unlink()
    git(folder.parent, "commit", "--quiet", "-am", "gone")
    path.write_bytes(good.replace(b"50.0", b"51.0"))
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "--quiet", "-m", "again")
    assert [each.us for each in read_history(folder, FILE)[KEY, TIME]] == [50.0, 51.0]


def test_without_git_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_history(tmp_path, FILE) == {}
    assert read_history(tmp_path / "absent", FILE) == {}
    monkeypatch.setenv("PATH", "")
    assert read_history(tmp_path, FILE) == {}


def test_the_page_of_a_report_holds_the_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = "rms_norm/forward"
    commit(folder, key, us=61.2)
    last = commit(folder, key, us=62.0, anchor=61.2)
    report = lane(SLUG, result("rms_norm", us=62.0)).report
    assert report is not None
    save_report(Path("report.json"), report)
    assert main(["report", "report.json", "--as", "html"]) == ExitStatus.PASSED
    (one,) = cases(capsys.readouterr().out)
    points = one["times"][0]["history"]["points"]
    assert [(point["level"], point["anchor"]) for point in points] == [(61.2, 61.2), (62.0, 61.2)]
    assert points[1]["at"].endswith(last[:12])
    assert points[1]["text"] == "62 µs, +1.3 % over its anchor"
    git(folder.parent, "checkout", "--quiet", "--orphan", "alone")
    git(folder.parent, "commit", "--quiet", "-m", "x")
    assert main(["report", "report.json", "--as", "html"]) == ExitStatus.PASSED
    (one,) = cases(capsys.readouterr().out)
    assert "history" not in one["times"][0]  # one recording is no history


def cases(page: str) -> list[dict[str, Any]]:
    (data,) = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    found: list[dict[str, Any]] = json.loads(data)["cases"]
    return found


def recordings(timer: str = "graph-cold") -> list[Recorded]:
    return [Recorded(f"{day:040}", f"2026-11-{day:02}", timer, 60.0 + day, 61.0) for day in range(1, 6)]


def test_a_history_is_drawn_when_its_case_is_opened(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    histories = {(SLUG, "norms", "rms_norm/forward", TIME): recordings()}
    page.write_text(render_html(overview(lane(SLUG, result("rms_norm"))), histories), encoding="utf-8")
    script = """
document.querySelector('.row').click();
const drawn = document.querySelector('.detail svg.recorded');
seen.dots = drawn.querySelectorAll('circle').length;
seen.anchor = drawn.querySelector('polyline.anchor').points.numberOfItems;
seen.first = drawn.querySelector('title').textContent;
seen.text = drawn.textContent;
"""
    seen = probe(page, script)
    assert (seen["dots"], seen["anchor"]) == (5, 5)
    assert seen["first"] == "2026-11-01 000000000000: 61 µs, +0.0 % over its anchor"
    assert "5 recordings, 2026-11-01 to 2026-11-05" in seen["text"]
