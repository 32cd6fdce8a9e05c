"""The history of a case on the page: what the commits of its file recorded, with anchors and reasons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.checkouts import git
from perfguard.cli import main
from perfguard.model.errors import ExitStatus
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.render.overview import LaneView, Overview
from perfguard.session import report_command
from perfguard.session.report_command import with_history
from perfguard.store.baseline_form import render
from perfguard.store.report_file import save_report
from tests.render.examples import SLOWER, lane, result
from tests.render.test_html import data

Record = Callable[..., str]
KEY = "slow/forward"
VIEW = lane("nvidia-h200", result("slow", SLOWER, us=64.93))


def time(us: float, anchor: float | None = None, timer: str = "graph-cold") -> TimedEntry:
    return TimedEntry([us, us, us], timer, anchor)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Commits a file of baselines with these entries of the case; returns the commit."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "baselines" / "nvidia-h200" / "norms.yaml"
    path.parent.mkdir(parents=True)
    git(tmp_path, "init", "--quiet")

    def commit(entries: dict[str, Entry] | bytes, reason: str = "", code: str | None = "abc") -> str:
        if isinstance(entries, dict):
            provenance = Provenance(commit=code, recorded="2026-11-16", reason=reason)
            case = CaseBaseline(entries, "bfloat16[64]", "1a")
            entries = render(Baseline("nvidia-h200", "norms", {"1a": provenance}, {KEY: case})).encode()
        path.write_bytes(entries)
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=x")
        return git(tmp_path, "rev-parse", "HEAD")

    return commit


def recorded(commit: str = "HEAD", view: LaneView = VIEW) -> list[dict[str, Entry]]:
    (shown,) = with_history(Overview([view]), Path("baselines"), commit).lanes
    return [each.entries for each in shown.history.get("norms", {}).get(KEY, [])]


def test_the_page_shows_levels_anchors_and_reasons_by_commit(
    record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    code = {"_kernel": "aa-bb"}
    record({"device_time_us": time(60.0), "launches": 1, "code": code}, code="1111")
    record({"device_time_us": time(60.0), "launches": 1, "code": code}, code="2222")  # recorded anew: nothing moved
    record(
        {"device_time_us": time(66.0, 60.0), "launches": 2, "code": {"_kernel": "cc-dd"}},
        "float32 accumulation </script>", "3333",
    )  # fmt: skip
    brought = record({"device_time_us": time(61.2, 60.0), "launches": 2, "code": {"_kernel": "cc-dd"}}, code=None)
    assert VIEW.report is not None
    save_report(Path("h200.json"), VIEW.report)
    assert main(["report", "h200.json", "--as", "html"]) == ExitStatus.PASSED
    text = capsys.readouterr().out
    assert text.count("</script>") == 2
    (case,) = data(text)["cases"]
    assert case["records"] == [
        [brought[:12], "2026-11-16", "device_time_us 66 µs -> 61.2 µs (-7.3 %)", "device_time_us 60 µs", ""],
        [
            "3333", "2026-11-16", "code; device_time_us 60 µs -> 66 µs (+10.0 %); launches 1 -> 2",
            "device_time_us 60 µs", "float32 accumulation </script>",
        ],
        ["1111", "2026-11-16", "device_time_us 60 µs", "", ""],
    ]  # fmt: skip
    now, levels = case["times"]
    assert (levels["sessions"], levels["centre"], levels["now"]) == ([60.0, 66.0, 61.2], 60.0, now["now"])
    assert levels["caption"] == "device_time_us: level at 3 commits, then this run; line: anchor"
    assert now["caption"] == "device_time_us: 3 stored sessions, this run, its blocks"


def test_what_judges_without_a_network_shows_it_up_to_the_base(record: Record) -> None:
    base = record({"device_time_us": time(60.0)}, code="1111")
    record({"device_time_us": time(61.0)}, code="2222")
    assert VIEW.report is not None
    save_report(Path("h200.json"), VIEW.report)
    for arguments, shown in (([], ["2222", "1111"]), (["--base", base], ["1111"])):
        main(["judge", "h200.json", "-o", "out", *arguments])
        (case,) = data(Path("out", "report.html").read_text())["cases"]
        assert [commit for commit, *_ in case["records"]] == shown


def test_it_ends_at_the_commit_that_judges(record: Record) -> None:
    first = record({"launches": 1})
    record({"launches": 2})
    assert recorded() == [{"launches": 1}, {"launches": 2}]
    assert recorded(first) == [{}]
    assert recorded("0" * 40) == []  # a shallow clone does not hold it


def test_it_begins_behind_a_file_of_another_version_and_behind_a_gap(record: Record) -> None:
    for unread in (b"schema: 1\n...\n", b"\xff"):
        record({"launches": 1})
        record(unread)
        record({"launches": 2})
        record({"launches": 3})
        assert recorded() == [{"launches": 2}, {"launches": 3}]
    record({"launches": 4})
    Path("baselines/nvidia-h200/norms.yaml").unlink()
    record({"launches": 5})
    assert recorded()[-1] == {"launches": 5}


def test_of_a_long_history_the_last_commits_are_read(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_command, "MOST_COMMITS", 2)
    for launches in range(5):
        record({"launches": launches, "device_time_us": time(50.0 + launches)})
    assert recorded() == [
        {"device_time_us": time(53.0), "launches": 3},
        {"device_time_us": time(54.0), "launches": 4},
    ]


def test_times_of_another_timer_have_no_common_level(record: Record) -> None:
    record({"device_time_us": time(50.0, timer="queue-cold")})
    record({"device_time_us": time(60.0)})
    (shown,) = with_history(Overview([VIEW]), Path("baselines")).lanes
    (case,) = page_cases(shown)
    assert [each["sessions"] for each in case["times"]] == [[61.1, 61.2, 61.4, 61.2, 61.3]]
    assert case["records"][0][2] == "device_time_us 50 µs -> 60 µs (another timer)"


def test_what_holds_on_every_machine_is_told_with_the_times_of_this_one(record: Record) -> None:
    report = VIEW.report
    assert report is not None
    view = replace(VIEW, report=replace(report, hardware=replace(report.hardware, target="cpu")))
    for launches, us in ((1, 50.0), (2, 50.0), (2, 60.0), (3, 70.0)):
        shared = Baseline("cpu", "norms", {"1a": Provenance()}, {KEY: CaseBaseline({"launches": launches}, "", "1a")})
        path = Path("baselines", "cpu", "norms.yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(render(shared))
        record({"device_time_us": time(us)})
    assert recorded(view=view) == [
        {"device_time_us": time(50.0), "launches": 1}, {"launches": 2}, {"device_time_us": time(60.0)},
        {"device_time_us": time(70.0), "launches": 3},
    ]  # fmt: skip
    assert recorded() == [{"device_time_us": time(us)} for us in (50.0, 60.0, 70.0)]


def page_cases(view: LaneView) -> list[dict[str, Any]]:
    from perfguard.render.html import render_html

    cases: list[dict[str, Any]] = data(render_html(Overview([view])))["cases"]
    return cases


@pytest.mark.parametrize("suite", ["../norms", "*", "norms\n", ":(top)norms", "-n"])
def test_names_of_a_report_reach_no_other_file(record: Record, suite: str) -> None:
    record({"launches": 1})
    report = VIEW.report
    assert report is not None
    results = [replace(each, case=replace(each.case, suite=suite)) for each in report.results]
    (shown,) = with_history(Overview([replace(VIEW, report=replace(report, results=results))]), Path("baselines")).lanes
    assert shown.history == {}


def test_without_git_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    whole = Overview([VIEW, LaneView("cpu", problem="gone")])
    assert with_history(whole, tmp_path / "baselines") is whole
