"""The command line: each form of a report, doctor, and errors as one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfguard import ExitStatus
from perfguard.cli import main
from perfguard.measure import devices
from perfguard.measure.devices import Finding, open_device
from perfguard.model.errors import EXIT_MEANINGS
from perfguard.store.report_file import read_report, save_report
from tests.store.test_report_file import REPORT


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    save_report(path, REPORT)
    return path


def test_a_report_in_each_form(report: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(report)]) == 0
    assert "fake-gpu, 0 of 1 case guarded" in capsys.readouterr().out
    target = tmp_path / "out" / "copy.json"
    assert main(["report", str(report), "--as", "json", "-o", str(target)]) == 0
    assert read_report(target) == REPORT
    assert main(["report", str(report), "--as", "pytest-benchmark"]) == 0
    (benchmark,) = json.loads(capsys.readouterr().out)["benchmarks"]
    assert benchmark["name"] == "double[64]/forward:device_time_us"
    assert benchmark["stats"]["median"] == pytest.approx(5e-6)


def test_an_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "none.json")]) == ExitStatus.USAGE_ERROR
    assert capsys.readouterr().err.count("\n") == 1


def test_help_lists_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(meaning in text for meaning in EXIT_MEANINGS.values())
    assert set(EXIT_MEANINGS) == set(ExitStatus)


@pytest.mark.parametrize("line", [[], ["bark"], ["report"], ["accept", "--from", "x.json"], ["doctor", "--fast"]])
def test_wrong_usage_has_the_status_that_the_help_says(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == ExitStatus.USAGE_ERROR  # not argparse's 2, which is "interrupted" here
    assert "usage: perfguard" in capsys.readouterr().err


def test_doctor_prints_brackets_and_reads_the_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.perfguard]\ncase_secnds = 1\n")
    step = "pip install 'perfguard[kernels]'"
    monkeypatch.setattr(devices, "diagnose", lambda: [Finding("torch", "", "cannot be imported: [x]", step)])
    assert main(["doctor"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert step in output
    assert "cannot be imported: [x]" in output
    assert "case_secnds" in output


def test_doctor_names_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "torch" in out
    assert "next step" in out
    assert "…" not in out
    (slug,) = (line.split()[-1] for line in out.splitlines() if line.startswith("device hardware"))
    assert slug == open_device("auto").identity.slug  # whole, although no terminal is wide enough here
