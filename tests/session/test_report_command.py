"""`perfguard report`: one report or several lanes, each form, and lanes that are expected but absent."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.checkouts import git
from perfguard.cli import main
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records import BaseTree, Reading, Verdict, Word
from perfguard.model.records.code import CODE
from perfguard.model.units import Unit
from perfguard.render.overview import Headline
from perfguard.session.report_command import NO_REPORT, merge, read_lanes
from perfguard.store.baseline_files import Store
from perfguard.store.report_file import save_report
from tests.render.examples import EXAMPLES, SLOWER, lane, result

SLOW, FINE = lane("nvidia-h200", result("rms_norm", SLOWER)).report, lane("amd-mi300x", result("rms_norm")).report
BASELINE = """\
schema: 3
hardware: nvidia-h200
recordings:
  1a: {torch: 2.10.0, recorded: 2026-11-16}
cases:
  rms_norm/forward:
    device_time_us: {timer: graph-cold, sessions: [61.1, 61.2, 61.4, 61.2, 61.3]}
    inputs: bfloat16[64]
    recording: 1a

...
"""


@pytest.fixture
def lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reports of two lanes, in a repository that remembers one of them."""
    monkeypatch.chdir(tmp_path)
    assert SLOW is not None
    assert FINE is not None
    save_report(tmp_path / "h200.json", SLOW)
    save_report(tmp_path / "mi300x.json", FINE)
    folder = tmp_path / "baselines" / "nvidia-h200"
    folder.mkdir(parents=True)
    (folder / "norms.yaml").write_text(BASELINE)
    return ["h200.json", "mi300x.json"]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["report", *arguments]) == ExitStatus.PASSED
    return capsys.readouterr().out


def test_markdown_of_several_lanes(lanes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *lanes, "--as", "markdown")
    assert text.startswith("### ❌ perfguard: 1 case slower — action needed\n")
    assert "lanes: 2 of 2 reported" in text


def test_an_expected_lane_without_a_report_is_never_green(lanes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text('[tool.perfguard]\nlanes = ["amd-mi300x", "nvidia-b200"]\n')
    text = shown(capsys, lanes[1], "--as", "markdown")
    assert text.startswith("### ⚠️ perfguard: incomplete: 1 of 2 lanes without a result")
    assert f"**no result**: <code>{NO_REPORT}</code>" in text
    assert "no result" in shown(capsys, lanes[1], "--as", "html")


def test_the_settings_expect_lanes(lanes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text('[tool.perfguard]\nlanes = ["nvidia-h200", "nvidia-b200"]\n')
    assert "1 case slower, 1 lane without a result — action needed" in shown(capsys, lanes[0], "--as", "html")
    assert "nvidia-b200: no result" in shown(capsys, *lanes)
    assert "no result" not in shown(capsys, lanes[0])  # one report, looked at by itself


def test_the_terminal_and_json_show_each_lane(lanes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *lanes)
    assert text.startswith("perfguard: 1 case slower — action needed\n")
    assert "\n\nperfguard: nvidia-h200, 1 of 1 case guarded" in text
    assert "\n\nperfguard: amd-mi300x, 1 of 1 case guarded" in text
    document = json.loads(shown(capsys, *lanes, "--as", "json"))
    assert document["headline"] == "slower or heavier"
    assert [each["name"] for each in document["lanes"]] == ["nvidia-h200", "amd-mi300x"]


def test_html_is_written_to_a_file(lanes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, *lanes, "--as", "html", "-o", "out/report.html") == ""
    assert "61.1,61.2,61.4,61.2,61.3" in Path("out/report.html").read_text()


def test_lanes_of_one_hardware_are_named_apart(lanes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", lanes[0], lanes[0]]) == ExitStatus.USAGE_ERROR
    assert "h200.json: a second report of lane nvidia-h200, beside h200.json; name them apart: LANE=h200.json" in (
        capsys.readouterr().err
    )
    assert list(read_lanes(["nightly=h200.json", lanes[0]])) == ["nightly", "nvidia-h200"]
    Path("a=b.json").write_bytes(Path(lanes[0]).read_bytes())
    assert list(read_lanes(["a=b.json"])) == ["nvidia-h200"]


def test_benchmark_json_holds_one_machine(lanes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *lanes, "--as", "pytest-benchmark"]) == ExitStatus.USAGE_ERROR
    assert "one report at a time" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no such report"):
        read_lanes(["none.json"])


def test_a_time_of_zero_has_no_operations_per_second(lanes: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert FINE is not None
    times = [msgspec.structs.replace(each, value=0.0, blocks=[0.0] * 3) for each in FINE.results[0].readings]
    result = msgspec.structs.replace(FINE.results[0], readings=times)
    save_report(Path("zero.json"), msgspec.structs.replace(FINE, results=[result]))
    (benchmark, *_) = json.loads(shown(capsys, "zero.json", "--as", "pytest-benchmark"))["benchmarks"]
    assert (benchmark["stats"]["max"], benchmark["stats"]["ops"]) == (0.0, 0.0)


def test_a_broken_baseline_costs_its_sessions_only(lanes: list[str]) -> None:
    Path("baselines/nvidia-h200/norms.yaml").write_text("schema: [")
    whole = merge(read_lanes(lanes), [], Store(Path("baselines")))
    (warning,) = whole.warnings
    assert "shown without its baseline" in warning
    assert "norms.yaml" in warning


def test_lanes_of_different_commits_are_told(lanes: list[str]) -> None:
    reports = read_lanes(lanes)
    store = Store(Path("baselines"))
    assert merge(reports, [], store).head == "4f1c0de"
    reports["amd-mi300x"] = msgspec.structs.replace(reports["amd-mi300x"], commit="9ab77e2")
    mixed = merge(reports, [], store)
    assert mixed.head == ""
    assert mixed.warnings == ["the lanes measured different commits: 4f1c0de, 9ab77e2"]
    assert mixed.headline is EXAMPLES[Headline.WORSE].headline


KERNEL = """\
import triton

@triton.jit
def rows(x):
    first = 1
    second = 2

def other(): pass
"""


@pytest.mark.parametrize(
    ("edit", "line"),
    [(("second = 2", "second = 3"), 6), (("triton.jit", "triton.jit()"), 3), (("pass", "return"), 3)],
    ids=["inside", "the definition", "another function"],
)
def test_an_annotation_is_at_the_changed_line_of_its_kernel(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    edit: tuple[str, str],
    line: int,
) -> None:
    """GitHub shows it beside the diff, if the diff holds its line; a kernel that is as it was keeps its definition."""
    monkeypatch.chdir(tmp_path)

    kernel = Path("k") / "rows.py"
    kernel.parent.mkdir()
    kernel.write_text(KERNEL)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=base")
    kernel.write_text(KERNEL.replace(*edit))
    code = Reading(CODE, Unit.TEXT, {"rows": "b-b"}, gated=False, lines={"rows": "k/rows.py:3 in rows"})
    moved = Verdict(Word.PASS, CODE, "", {"rows": "a-a"}, {"rows": "b-b"})
    case = result("rms_norm", SLOWER, moved)
    report = lane("nvidia-h200", msgspec.structs.replace(case, readings=[*case.readings, code])).report
    assert report is not None
    base = BaseTree(git(tmp_path, "rev-parse", "HEAD"))
    save_report(tmp_path / "report.json", msgspec.structs.replace(report, base=base))
    (told,) = shown(capsys, "report.json", "--as", "github-annotations").splitlines()
    assert told.startswith(f"::error file=k/rows.py,line={line},title=perfguard%3A 1 SLOWER%3A rows::its code; worst ")
