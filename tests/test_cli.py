"""The command line: each form of a report, doctor, and errors as one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.checkouts import git
from perfguard import ExitStatus
from perfguard.cli import main
from perfguard.measure import devices
from perfguard.measure.devices import Finding, open_device
from perfguard.model.errors import EXIT_MEANINGS
from perfguard.store.report_file import save_report
from tests.store.test_report_file import REPORT

COMMAND = [sys.executable, "-c", "import sys; from perfguard.cli import main; sys.exit(main())"]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    save_report(path, REPORT)
    return path


@pytest.mark.parametrize("line", [["."], ["lane=."], [f"lane={'x' * 300}.json"], ["REPORT", "-o", "."]])
def test_what_is_no_file_is_named(line: list[str], report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [argument.replace("REPORT", str(report)) for argument in line]
    assert main(["report", *line]) == ExitStatus.USAGE_ERROR
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert ".: " in told or ".json: " in told


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_a_locale_without_our_characters(form: str, report: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    command = [*COMMAND, "report", str(report), "--as", form]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "double" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_is_one_line(report: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*COMMAND, "report", str(report)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == ExitStatus.USAGE_ERROR
    assert done.stderr == "perfguard: standard output: No space left on device; make room, or mend its permissions\n"


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
    finding = Finding("torch", "", "cannot be imported: [x]", step)
    monkeypatch.setattr(devices, "diagnose", lambda **_: [finding])
    assert main(["doctor"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert step in output
    assert "cannot be imported: [x]" in output
    assert "case_secnds" in output


def test_doctor_ends_with_the_next_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = [Finding("device hardware", "nvidia-h200")]
    monkeypatch.setattr(devices, "diagnose", lambda **_: found)
    monkeypatch.chdir(tmp_path)

    def following() -> str:
        assert main(["doctor"]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("next: ")
        return last.removeprefix("next: ")

    assert following() == "git init && perfguard init"
    git(tmp_path, "init", "--quiet")
    assert following() == "perfguard init"
    with monkeypatch.context() as patched:
        patched.setenv("PATH", "")
        assert following() == "install git, which holds base and baselines"
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    (tmp_path / ".github" / "workflows" / "guard.yml").write_text("run: pytest --perfguard\n")
    assert following().startswith("pytest --perfguard --perfguard-lane=cpu --perfguard-update=new  # once")
    (tmp_path / "baselines" / "amd-mi300x").mkdir(parents=True)
    assert following().endswith("--perfguard-update=new  # once a guarded test is committed: docs/start.md")
    (tmp_path / "baselines" / "cpu").mkdir()
    assert following() == "pytest --perfguard --perfguard-lane=cpu"
    (tmp_path / "baselines" / "nvidia-h200").mkdir()
    assert following() == "pytest --perfguard"
    found[:] = [Finding("torch", "", "cannot be imported", "pip install torch")]
    assert following() == "pip install torch"


def test_doctor_names_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "torch" in out
    assert "next: " in out
    assert "…" not in out
    (slug,) = (line.split()[-1] for line in out.splitlines() if line.startswith("device hardware"))
    assert slug == open_device("auto").identity.slug  # whole, although no terminal is wide enough here
