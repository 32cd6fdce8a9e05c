"""A lane's report -> artifact -> `perfguard comment` -> `perfguard accept` -> a push that mends it -> green."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

import pytest

from benchmarks.checkouts import git
from perfguard import ExitStatus
from perfguard.cli import main
from perfguard.github.comment_job import Job, post
from perfguard.model.config import read_settings
from tests.flows.conftest import Project
from tests.github.conftest import _no_proxy, _sockets, clock, github
from tests.github.fake import FakeGitHub, Gh, sha
from tests.github.reports import archive

__all__ = ["_no_proxy", "_sockets", "clock", "github"]  # fixtures of the fake's own tests

LANE = "fake-gpu"


@dataclass
class PullRequest:
    """A project on a topic branch, whose pushes are measured by one lane and told by the post job."""

    project: Project
    github: FakeGitHub
    base: str = ""
    run: int = 5000
    lane: str = LANE

    def commit(self, why: str) -> str:
        git(self.project.path, "add", "--all")
        git(self.project.path, "commit", "--quiet", "--allow-empty", f"--message={why}")
        return git(self.project.path, "rev-parse", "HEAD")

    def files(self) -> dict[str, bytes]:
        names = git(self.project.path, "ls-files").splitlines()
        return {name: (self.project.path / name).read_bytes() for name in names}

    def push(self, why: str) -> ExitStatus:
        """Commit, measure in the lane, post."""
        head = self.commit(why)
        self.github.data.files[head] = self.files()
        self.project.guard(f"--perfguard-lane={self.lane}", f"--perfguard-base={self.base}")
        self.run += 1
        data = self.github.data
        data.pulls[7]["head"]["sha"] = head
        data.comparisons[self.base, head] = comparison(self.base)
        data.add_run(self.run, head_sha=head)
        (report,) = (self.project.path / ".perfguard").glob("report-*.json")
        data.add_artifact(self.run, f"perfguard-{self.lane}-1", archive(report.read_bytes(), report.name))
        return self.post()

    def post(self) -> ExitStatus:
        path = self.project.path
        return post(Job(read_settings(path), self.environ(), output=path / "out"))

    def environ(self) -> dict[str, str]:
        event = self.project.path.parent / f"{self.project.path.name}-event.json"
        event.write_text(json.dumps({"workflow_run": self.github.data.runs[self.run]}))
        return {**self.github.environ(), "GITHUB_EVENT_PATH": str(event), "GITHUB_SHA": self.base}

    @property
    def comment(self) -> str:
        bodies: list[str] = [comment["body"] for comment in self.github.data.on(7)]
        assert len(bodies) == 1
        return bodies[0]


def comparison(base: str) -> dict[str, object]:
    commit = {"committer": {"name": "a", "email": "a@b.c", "date": "2026-11-20T10:00:00Z"}, "message": "m"}
    return {
        "status": "ahead", "ahead_by": 1, "behind_by": 0, "total_commits": 1, "commits": [], "files": [],
        "base_commit": {"sha": base, "commit": commit},
        "merge_base_commit": {"sha": base, "commit": commit},
    }  # fmt: skip


def open_pull_request(recorded: Project, github: FakeGitHub, lane: str = LANE) -> PullRequest:
    """One of a project whose baselines are recorded, and which waits for one lane."""
    recorded.configure(lanes=[lane])
    (recorded.path / ".gitignore").write_text(
        "*\n!/kernel.py\n!/test_suite.py\n!/pyproject.toml\n!/baselines/\n!*.yaml\n!*/\n"
    )
    git(recorded.path, "init", "--quiet")
    made = PullRequest(recorded, github, lane=lane)
    made.base = made.commit("recorded")
    github.data.files[made.base] = made.files()
    github.data.pulls[7]["base"]["sha"] = made.base
    assert sha("base") != made.base
    return made


@pytest.fixture
def pull_request(recorded: Project, github: FakeGitHub) -> PullRequest:
    return open_pull_request(recorded, github)


def test_slower_is_told_accepted_and_mended(pull_request: PullRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    project = pull_request.project
    project.kernel(us=55.0)
    assert pull_request.push("slower") is ExitStatus.PASSED  # The commit statuses hold the verdict.
    head = pull_request.github.data.pulls[7]["head"]["sha"]
    assert {status["state"] for status in pull_request.github.data.statuses[head]} == {"failure"}
    told = pull_request.comment
    assert "### ❌ perfguard: 2 cases slower — action needed" in told
    assert f"perfguard accept --lane {LANE} --run {pull_request.run} --reason" in told
    assert "test_suite.py::test_double[" in told

    # The command that the comment names makes the baselines that cover the finding.
    gh = Gh(project.path.with_name("gh"), monkeypatch)
    (report,) = (project.path / ".perfguard").glob("report-*.json")
    gh.has(f"perfguard-{LANE}-1", report.read_bytes(), report.name)
    monkeypatch.chdir(project.path)
    (line,) = re.findall(r"^perfguard (accept --lane .*)$", told, re.MULTILINE)
    assert main([part.replace("why", "more accurate") for part in shlex.split(line)]) == ExitStatus.PASSED
    head = pull_request.github.data.pulls[7]["head"]["sha"]
    judged_by = pull_request.github.data.files[head]
    edited = "baselines/fake-gpu/test_suite.yaml"
    pull_request.github.data.files[head] = {**judged_by, edited: project.baseline.read_bytes()}
    pull_request.run += 1
    pull_request.github.data.add_run(pull_request.run, head_sha=head)
    for artifact in list(pull_request.github.data.artifacts.values()):
        pull_request.github.data.add_artifact(pull_request.run, artifact.name, artifact.data)
    assert pull_request.post() is ExitStatus.PASSED
    assert "accepted: 2 findings" in pull_request.comment
    assert "more accurate" in pull_request.comment
    git(project.path, "checkout", "--quiet", "--", "baselines")

    project.kernel()
    assert pull_request.push("as fast as before") is ExitStatus.PASSED
    assert "no change in 2 cases on 1 lane" in pull_request.comment
    assert "slower" not in pull_request.comment
    head = pull_request.github.data.pulls[7]["head"]["sha"]
    assert [status["state"] for status in pull_request.github.data.statuses[head]] == ["success", "success"]
