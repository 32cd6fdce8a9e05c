"""`perfguard resume`: which run's progress a job goes on with, and that nothing else comes from an archive."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from perfguard.check.turns import Reached
from perfguard.cli import main
from perfguard.model.errors import ExitStatus
from perfguard.model.records import Case
from perfguard.session.turns_file import TurnsFile
from tests.github.fake import FORK, HOME, TOKEN, FakeGitHub

STRANGER = {"id": 3, "full_name": "other/r"}
CASE = Case("suite", "f", "forward")


def archive(text: bytes | str, name: str = "turns.json") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr(name, text)
    return made.getvalue()


def progress(done: int, folder: Path) -> bytes:
    """An archive of the file of a run that came so far."""
    path = folder / str(done) / "turns.json"
    file = TurnsFile(path, "cpu")
    file.put(CASE, Reached("plan", {"sizes": done}))
    file.save()
    return archive(path.read_bytes())


class Job:
    """A checkout in which the command runs, as in a job of GitHub Actions."""

    def __init__(self, github: FakeGitHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.github, self.folder, self.path = github, folder, folder / ".perfguard" / "cache" / "turns.json"
        (folder / "pyproject.toml").write_text("[tool.perfguard]\n")
        monkeypatch.chdir(folder)
        for name, value in {**github.environ(), "GITHUB_RUN_ID": "9000"}.items():
            monkeypatch.setenv(name, value)
        self.monkeypatch = monkeypatch

    def upload(self, done: int, branch: str, repository: dict[str, Any] = HOME, **fields: Any) -> None:
        run = 5000 + done
        self.github.data.add_run(run, head_branch=branch, head_repository=repository)
        fields.setdefault("data", progress(done, self.folder / "made"))
        self.github.data.add_artifact(run, fields.pop("name", "turns-cpu"), **fields)

    def done(self, branch: str, repository: dict[str, Any] = HOME) -> int:
        """How far the case is after the command has run in a job for this branch."""
        self.github.data.add_run(9000, head_branch=branch, head_repository=repository, conclusion=None)
        self.path.unlink(missing_ok=True)
        assert main(["resume", "turns-cpu"]) == 0
        reached = TurnsFile(self.path, "cpu").of(CASE)
        return reached.done["sizes"] if reached else 0


@pytest.fixture
def job(github: FakeGitHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(github, tmp_path, monkeypatch)


def test_a_job_goes_on_with_the_newest_of_its_branch_or_else_of_the_repository(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job.done("main") == 0
    assert "no earlier run has uploaded turns-cpu; each case begins anew" in capsys.readouterr().out
    for done, branch in enumerate(("main", "topic", "main", "other"), 1):
        job.upload(done, branch)
    job.upload(8, "topic", name="turns-nvidia-h200")
    assert job.done("main") == 3
    assert "perfguard resume: fetched what earlier runs have tried in 1 case\n" in capsys.readouterr().out
    assert job.done("topic") == 2
    assert job.done("new") == job.done("gh-readonly-queue/main/pr-7") == 4


def test_what_a_fork_uploads_reaches_its_own_branch_alone(job: Job) -> None:
    job.upload(1, "main")
    job.upload(2, "topic", FORK)
    job.upload(3, "main", STRANGER)
    assert job.done("topic", FORK) == 2
    assert job.done("topic", STRANGER) == job.done("main", FORK) == job.done("main") == job.done("topic") == 1


def test_an_expired_one_is_passed_over(job: Job) -> None:
    job.upload(1, "topic")
    job.upload(2, "main", expired=True)
    assert job.done("main") == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no zip", "turns-cpu: no archive of turns.json (File is not a zip file)"),
        (archive("{}", "../../turns.json"), "There is no item named 'turns.json' in the archive"),
        (archive("{"), "turns-cpu: no archive of turns.json (Input data was truncated)"),
        (archive("[1]"), "Expected `object`, got `array`"),
        (archive(b"{" + b" " * 20_000_000 + b"}"), "turns-cpu: no archive of turns.json"),
        (os.urandom(10_000_001), "larger than 10,000,000 bytes"),
    ],
    ids=["no zip", "another place", "cut", "no object", "large once unpacked", "large"],
)
def test_what_no_run_uploads_leaves_nothing_behind(
    job: Job, data: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job.upload(1, "main", data=data)
    before = {*job.folder.rglob("*")}
    assert job.done("main") == 0
    assert said in capsys.readouterr().out
    assert {*job.folder.rglob("*")} == before


def test_where_github_does_not_answer_a_job_begins_anew(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.upload(1, "main")
    job.github.data.tokens = {token: frozenset({"contents=read"}) for token in job.github.data.tokens}
    assert job.done("main") == 0
    assert "each case begins anew: GET /actions/runs/9000: " in capsys.readouterr().out
    job.monkeypatch.delenv("GITHUB_TOKEN")
    assert job.done("main") == 0
    assert (
        "each case begins anew: GITHUB_TOKEN is not set; give this step ${{ github.token }}" in capsys.readouterr().out
    )
    job.monkeypatch.setenv("GITHUB_RUN_ID", "")
    job.monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    assert main(["resume", "turns-cpu"]) == ExitStatus.USAGE_ERROR
    assert "GITHUB_RUN_ID='': no run; start this in a job of GitHub Actions" in capsys.readouterr().err
