"""`perfguard judge`: the words and the exit status of `perfguard comment`, from files and without any network."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfguard.cli import main
from perfguard.model.errors import ExitStatus
from perfguard.model.records import Report, dump_report
from tests.github.conftest import BASE, PostJob
from tests.github.fake import sha
from tests.github.reports import SLUG, baseline_file, compared, entries, measured, report

GREEN, RED = compared({"f": 50.0, "g": 50.0}), compared({"f": 55.0, "g": 50.0})
FASTER = compared({"f": 45.0, "g": 50.0})
BESIDE_ITSELF = replace(RED, base=replace(RED.base, commit=sha("head")), pairings=[]) if RED.base else RED
LOOSER = baseline_file({"f": entries(55.0), "g": entries()}, {"f": "more accurate"})
#: Report, and the change's own baselines; "" for those of the base.
CHANGES: dict[str, tuple[Report | None, bytes]] = {
    "green": (GREEN, b""),
    "slower": (RED, b""),
    "slower and accepted": (RED, LOOSER),
    "looser, and nothing moved": (GREEN, LOOSER),
    "faster": (FASTER, b""),
    "a case is gone": (report([measured("g")]), b""),
    "compared with itself": (BESIDE_ITSELF, b""),
    "no result": (None, b""),
    "more launches": (replace(GREEN, results=[measured("f", launches=2), measured("g")]), b""),
}


def lay_out(folder: Path, reports: Mapping[str, Report | bytes], base: bytes, head: bytes = b"") -> None:
    """A checkout with reports and two folders of baselines."""
    for name, data in (("baselines", head or base), ("base", base)):
        (folder / name / SLUG).mkdir(parents=True)
        (folder / name / SLUG / "area.yaml").write_bytes(data)
    (folder / "pyproject.toml").write_text(f"[tool.perfguard]\nlanes = ['{SLUG}']\n")
    for name, given in reports.items():
        (folder / name).write_bytes(dump_report(given) if isinstance(given, Report) else given)


def judge(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the command in `folder`, where any network is an error."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.chdir(folder)
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", refuse)
        patched.setattr(socket, "create_connection", refuse)
        return main(["judge", *arguments, "-o", "out"])


@pytest.mark.parametrize("what", CHANGES)
def test_the_words_and_the_status_are_those_of_the_comment(
    job: PostJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    measured_report, head = CHANGES[what]
    base = baseline_file(BASE)
    job.baselines(base, head or base)
    run = job.measured({SLUG: measured_report})
    state = job.posted()
    commented = (job.folder / "out" / "comment.md").read_text()
    if job.comments:
        assert job.comments[0].rstrip("\n") == commented.rstrip("\n")

    folder = tmp_path / "elsewhere"
    reports = {"report.json": measured_report} if measured_report else {}
    lay_out(folder, reports, base, head)
    for name, value in {**job.github.environ(), "GITHUB_RUN_ID": str(run)}.items():
        monkeypatch.setenv(name, value)
    given = "report.json" if measured_report else f"{SLUG}=report.json"
    ended = judge(folder, monkeypatch, given, "--base-baselines", "base", "--base", sha("fork-point"))
    failures = (ExitStatus.REGRESSED, ExitStatus.WRONG)
    assert state == ("failure" if ended in failures else "success" if ended == ExitStatus.PASSED else "error")

    def told(text: str) -> str:
        # A report knows twelve characters of its commit; without one the reasons name the artifact or the file.
        text = text.replace(sha("head"), sha("head")[:12]).replace(f"<code>{sha('head')[:12]}</code> ", "")
        return re.sub(r"\*\*no result\*\*.*", "no result", text)

    assert told((folder / "out" / "comment.md").read_text()) == told(commented)
    assert told((folder / "out" / "report.md").read_text()) == told((job.folder / "out" / "report.md").read_text())
    written = {path.name for path in (folder / "out").iterdir()}
    assert written == {path.name for path in (job.folder / "out").iterdir()}
    assert written == {"comment.md", "report.md", "report.html", "report.json", "codequality.json"}


def test_without_a_base_the_present_baselines_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path, {"report.json": RED}, baseline_file(BASE))
    assert judge(tmp_path, monkeypatch, "report.json") == ExitStatus.REGRESSED
    out = capsys.readouterr().out
    assert out.splitlines() == ["perfguard: 1 case slower — action needed", "perfguard: report: out"]
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Baseline edits" not in text
    assert "as the report says" in text  # which commit its times are beside
    (entry,) = json.loads((tmp_path / "out" / "codequality.json").read_text())
    assert entry["location"]["path"] == "tests/test_area.py"


def test_an_expected_lane_without_a_report_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out(tmp_path, {"report.json": GREEN, "broken.json": b"{"}, baseline_file(BASE))
    (tmp_path / "pyproject.toml").write_text(f"[tool.perfguard]\nlanes = ['{SLUG}', 'nvidia-b200']\n")
    assert judge(tmp_path, monkeypatch, "report.json") == ExitStatus.TESTS_FAILED
    assert "no report was given for this lane" in (tmp_path / "out" / "report.html").read_text()
    assert judge(tmp_path, monkeypatch, "report.json", "nvidia-b200=broken.json") == ExitStatus.TESTS_FAILED
    assert "no JSON" in (tmp_path / "out" / "report.html").read_text()
    assert judge(tmp_path, monkeypatch, "report.json", "nvidia-b200=absent.json") == ExitStatus.TESTS_FAILED
    assert "absent.json: cannot be read" in (tmp_path / "out" / "report.html").read_text()


def test_a_lane_of_a_gpu_that_claims_to_time_nothing_has_left_out_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untimed = report([measured("f", us=0), measured("g", us=0)], exact_only=True)
    lay_out(tmp_path, {"report.json": untimed}, baseline_file(BASE))
    assert judge(tmp_path, monkeypatch, f"{SLUG}=report.json") == ExitStatus.TESTS_FAILED
    assert "2 cases not measured" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.json"], "absent.json: cannot be read"),
        (["report.json", "report.json"], f"a second report of lane {SLUG}"),
        (["report.json", "--base", "abc123"], "no full hash; give that of: git merge-base"),
        (["report.json", "--baselines", "pyproject.toml"], "pyproject.toml: no folder"),
        (["report.json", "--base-baselines", "bse"], "bse: no folder; name that of the baselines"),
    ],
)
def test_a_wrong_argument_is_one_line_with_a_next_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    said: str,
) -> None:
    lay_out(tmp_path, {"report.json": RED}, baseline_file(BASE))
    assert judge(tmp_path, monkeypatch, *arguments) == ExitStatus.USAGE_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("environ", "run", "source"),
    [
        (
            {"BUILDKITE_BUILD_URL": "https://buildkite.com/o/p/builds/7", "BUILDKITE_REPO": "git@github.com:o/r.git"},
            "https://buildkite.com/o/p/builds/7", "https://github.com/o/r/blob/",
        ),
        (
            {"CI_PROJECT_URL": "https://gitlab.com/o/r", "CI_PIPELINE_URL": "https://gitlab.com/o/r/-/pipelines/7"},
            "https://gitlab.com/o/r/-/pipelines/7", "https://gitlab.com/o/r/-/blob/",
        ),
    ],
)  # fmt: skip
def test_links_are_those_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], run: str, source: str
) -> None:
    lay_out(tmp_path, {"report.json": RED}, baseline_file(BASE))
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    judge(tmp_path, monkeypatch, "report.json")
    text = (tmp_path / "out" / "comment.md").read_text()
    assert f"[summary of the run]({run})" in text
    assert f"]({source}{sha('head')[:12]}/tests/test_area.py)" in text
