"""The fake GitHub with one pull request of a fork, a client of it, a clock that nobody waits for, and a post job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfguard.github.api import client as client_module
from perfguard.github.api.client import Client, open_client
from perfguard.github.comment_job import Job, post
from perfguard.model.config import Settings
from perfguard.model.errors import ExitStatus
from perfguard.model.records import Report
from tests.github.fake import FakeGitHub, sha
from tests.github.reports import PATH, SLUG, archive, baseline_file, entries

NOW = 1_795_255_200.0  # 2026-11-21 10:00 UTC
BASE = {"f": entries(), "g": entries()}
CONFIGURATION = b"[tool.perfguard]\nlanes = ['nvidia-h200']\n"


@dataclass
class FakeClock:
    """Time that passes only while somebody sleeps, who wakes at once."""

    now: float = NOW
    slept: list[float] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(scope="session")
def _sockets() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        yield fake


@pytest.fixture
def github(_sockets: FakeGitHub) -> Iterator[FakeGitHub]:
    _sockets.reset()
    _sockets.data.add_pull()
    yield _sockets
    assert _sockets.violations == []


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(client_module, "time", made)
    return made


@pytest.fixture
def client(github: FakeGitHub) -> Client:
    return open_client(github.environ())


@dataclass
class PostJob:
    """What a test lays out, and what the job did with it."""

    github: FakeGitHub
    folder: Path
    settings: dict[str, Any] = field(default_factory=lambda: {"lanes": [SLUG]})
    environ: dict[str, str] = field(default_factory=dict)
    number: int = 5000

    def baselines(self, base: bytes | None, head: bytes | None = None) -> None:
        """The suite's file at the merge base and at the head (the same if left out; b"" for none)."""
        head = base if head is None else head
        for name, data in (("fork-point", base), ("head", head)):
            files = {"pyproject.toml": CONFIGURATION} | ({PATH: data} if data else {})
            self.github.data.files[sha(name)] = files

    def measured(self, reports: Mapping[str, Report | bytes | None], attempt: int = 1, **fields: Any) -> int:
        """A new run of the lanes; its id. A lane's value is its report, an archive, or None for no artifact."""
        self.number += 1
        self.github.data.add_run(self.number, attempt=attempt, **fields)
        for lane, given in reports.items():
            if given is not None:
                data = given if isinstance(given, bytes) else archive(given)
                self.github.data.add_artifact(self.number, f"perfguard-{lane}-{attempt}", data)
        return self.number

    def post(self, *, given: Mapping[str, Any] | None = None, **settings: Any) -> ExitStatus:
        """The job for the latest run, or for the `given` event of an earlier one."""
        event = self.folder / "event.json"
        run = given or self.github.data.runs[self.number]
        event.write_text(json.dumps({"action": "completed", "workflow_run": run}))
        environ = {
            **self.github.environ(),
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary.md"),
            "GITHUB_SHA": sha("base"),
            **self.environ,
        }
        options = {name: settings.pop(name) for name in ("workflow",) if name in settings}
        made = Settings(**{**self.settings, **settings})
        return post(Job(made, environ, output=self.folder / "out", **options))

    def posted(self, **settings: Any) -> str:
        """The state of the required status that the job set, if it posted all that it had to."""
        before = len(self.github.data.statuses.get(sha("head"), []))
        assert self.post(**settings) is ExitStatus.PASSED
        new = self.github.data.statuses[sha("head")][before:]
        (state,) = [status["state"] for status in new if status["context"] == "perfguard"]
        return str(state)

    @property
    def comments(self) -> list[str]:
        """Bodies of the pull request's comments, without the marker."""
        return [comment["body"].partition("\n\n")[2] for comment in self.github.data.on(7)]

    @property
    def statuses(self) -> dict[str, tuple[str, str]]:
        """Context -> state and description of the head."""
        found = self.github.data.statuses.get(sha("head"), [])
        return {status["context"]: (status["state"], status["description"]) for status in found}

    @property
    def summary(self) -> str:
        path = self.folder / "summary.md"
        return path.read_text() if path.exists() else ""

    @property
    def report(self) -> dict[str, Any]:
        """report.json: the overview."""
        loaded: dict[str, Any] = json.loads((self.folder / "out" / "report.json").read_text())
        return loaded


@pytest.fixture
def job(github: FakeGitHub, tmp_path: Path) -> PostJob:
    made = PostJob(github, tmp_path)
    github.data.add_comparison("base", "head", "fork-point")
    made.baselines(baseline_file(BASE))
    return made
