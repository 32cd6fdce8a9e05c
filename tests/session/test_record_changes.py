"""`perfguard report baselines/`: what a change of the records did, in few lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.checkouts import git
from perfguard.cli import main
from perfguard.model.errors import ExitStatus
from perfguard.model.records import Baseline, CaseBaseline, Entry, Provenance, TimedEntry
from perfguard.render.record_changes import MOST_LINES, summarize
from perfguard.store.baseline_form import render

THEN = Provenance(torch="2.11.0", triton="3.6.0", commit="1a", recorded="2026-11-20")
NOW = Provenance(torch="2.11.0", triton="3.7.0", commit="2b", recorded="2026-11-21", reason="one launch for both")


def times(us: float, timer: str = "graph") -> TimedEntry:
    return TimedEntry([us, us + 0.01, us], timer)


def case(us: float, launches: int = 1, **more: Entry) -> dict[str, Entry]:
    return {"device_time_us": times(us), "launches": launches, "contract": "bfloat16[64] strides (1)" + " " * 9, **more}


def put(folder: str, cases: Mapping[str, dict[str, Entry]], provenance: Provenance) -> None:
    path = Path("baselines", folder, "moe.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    records = {key: CaseBaseline(entries, "bf16", "r") for key, entries in cases.items()}
    path.write_text(render(Baseline(folder, "moe", {"r": provenance}, records)))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of a GPU and of every CPU on main, and a branch that records the GPU's anew."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    before = {f"f[{n}]/forward": case(100.0, 2, peak_memory_bytes=1000) for n in range(6)}
    put("nvidia-h200", {**before, "gone/forward": case(1.0)}, THEN)
    put("cpu", {"f/forward": {"operators": 3}}, THEN)
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=before")
    git(tmp_path, "checkout", "--quiet", "-b", "change")
    after = {f"f[{n}]/forward": case(83.0 + 2 * n, 1, peak_memory_bytes=900 + 10 * n) for n in range(5)}
    after["f[5]/forward"] = case(100.5, 2, peak_memory_bytes=1000)
    after["f[4]/forward"] |= {"device_time_us": times(120.0), "contract": "float32[64] strides (1)", "syncs": 0}
    put("nvidia-h200", {**after, "new/forward": case(2.0)}, NOW)
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=after")
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["report", *arguments]) == ExitStatus.PASSED
    return capsys.readouterr().out.splitlines()


LINES = [
    "nvidia-h200:",
    "  6 cases for the reason: one launch for both",
    "  6 cases under triton 3.6.0 -> 3.7.0",
    "  launches 2 -> 1 in 5 cases",
    "  peak_memory_bytes lower by 6 to 10 % in 5 cases",
    "  4 cases faster by 11 to 17 % (device_time_us)",
    "  1 case gone",
    "  1 case new",
    "  1 case read anew, within 3 % (device_time_us)",
    "  1 case slower by 20 % (device_time_us)",
    "  1 case with another contract",
    "  1 case with syncs new",
]


def test_a_branch_is_compared_with_where_it_left_main(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    title, *lines = shown(capsys, "baselines")
    main_commit = git(repository, "rev-parse", "main")
    assert title == f"Records beside {main_commit[:12]}: 6 cases recorded anew, 1 new, 1 gone"
    assert lines == LINES
    marked = shown(capsys, "baselines", "--as", "markdown")
    assert marked == [f"### {title}", "```", *LINES, "```"]


def test_the_working_tree_is_compared_with_any_commit(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "baselines", "--base", "HEAD")[0].startswith("Records: as at ")
    put("cpu", {"f/forward": {"operators": 2}}, THEN)
    assert shown(capsys, "baselines", "--base", "HEAD")[1:] == ["cpu:", "  operators 3 -> 2 in 1 case"]
    put("cpu", {"f/forward": {"operators": 3}}, NOW)
    assert "  1 case recorded anew, in which nothing moved" in shown(capsys, "baselines", "--base", "HEAD")
    put("amd-mi300x", {"f/forward": {"operators": 3}}, THEN)
    assert shown(capsys, "baselines", "--base", "HEAD")[1:3] == ["amd-mi300x:", "  1 case new"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["baselines", "more.json"], "baselines: a folder of baselines is shown alone, --as terminal or markdown"),
        (["baselines", "--as", "html"], "baselines: a folder of baselines is shown alone, --as terminal or markdown"),
        (["baselines", "--base", "nowhere"], "nowhere: no branch, tag or commit of "),
    ],
)
def test_what_cannot_be_compared_is_told(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["report", *arguments]) == ExitStatus.USAGE_ERROR
    assert message in capsys.readouterr().err


def test_however_much_changes_it_stays_short() -> None:
    def files(value: int, many: int) -> dict[str, dict[str, Baseline]]:
        cases = {"f/forward": CaseBaseline({f"metric{n}": value for n in range(100)})}
        return {f"gpu{n}": {"moe": Baseline(f"gpu{n}", "moe", cases=cases)} for n in range(many)}

    for many in (1, 3, 100):
        lines = summarize(files(1, many), files(2, many), {}, "1a")
        assert len(lines) <= MOST_LINES
        assert lines[0] == f"Records beside 1a: {many} case{'s' * (many > 1)} recorded anew, 0 new, 0 gone"
        assert any("more lines" in line for line in lines)
