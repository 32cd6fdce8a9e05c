"""Two post jobs, each a process of its own, on one GitHub: whatever happens in between, one comment in the end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from perfguard.github.api.comments import Action, Posted
from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import ALL_PERMISSIONS, sha
from tests.github.api.poster import Job
from tests.github.api.test_comments import texts

ROOT = Path(__file__).parents[3]
COMMENTS = "/issues/7/comments$"
OLDER, NEWER = "ghs_older", "ghs_newer"  # tokens: the fake tells the two jobs apart by them
PATIENCE = 60.0

Start = Callable[[str], "subprocess.Popen[str]"]  # token


@pytest.fixture
def start(github: FakeGitHub) -> Iterator[Start]:
    github.world.tokens = {OLDER: ALL_PERMISSIONS, NEWER: ALL_PERMISSIONS}
    for number in (5001, 5002):
        github.world.add_run(number)
    started: list[subprocess.Popen[str]] = []

    def started_job(token: str) -> subprocess.Popen[str]:
        run, name = (5001, "older") if token == OLDER else (5002, "newer")
        job = Job(run, f"by the {name} run", sha("base"), sha("head"))
        command = [sys.executable, "-m", "tests.github.api.poster", msgspec.json.encode(job).decode()]
        environ = {**os.environ, **github.environ(token)}
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield started_job
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def end(process: subprocess.Popen[str]) -> Posted:
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return msgspec.json.decode(output, type=Posted)


def wait(event: threading.Event) -> Callable[[], object]:
    return lambda: event.wait(PATIENCE)


@pytest.mark.parametrize("lag", [0, 1])
def test_row_08_two_jobs_that_both_see_no_comment(github: FakeGitHub, start: Start, lag: int) -> None:
    github.world.list_lag = lag
    both = threading.Barrier(2)
    for token in (OLDER, NEWER):
        github.fail(method="GET", path=COMMENTS, token=token, after=lambda: both.wait(PATIENCE))
    jobs = [start(OLDER), start(NEWER)]
    posted = [end(job) for job in jobs]
    assert Action.FAILED not in [one.action for one in posted]
    assert github.requests.count(("POST", "/repos/o/r/issues/7/comments")) == 2
    assert texts(github) == ["by the newer run"]


def test_row_09_the_older_job_comes_last(github: FakeGitHub, start: Start) -> None:
    newer_is_done = threading.Event()
    github.fail(method="GET", path=COMMENTS, token=OLDER, before=wait(newer_is_done))
    older = start(OLDER)
    assert end(start(NEWER)).action is Action.CREATED
    newer_is_done.set()
    posted = end(older)
    assert posted.action is Action.SILENT
    assert "run 5002, attempt 1, is newer" in posted.reason
    assert texts(github) == ["by the newer run"]


def test_row_09_the_older_job_writes_over_the_newer_one(github: FakeGitHub, start: Start) -> None:
    github.world.list_lag = 0
    end(start(OLDER))
    (comment,) = github.world.comments.values()
    comment["body"] = comment["body"].replace("perfguard:state ", "perfguard:state AAAA")
    older_decided, newer_wrote, older_wrote = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        older_decided.set()
        newer_wrote.wait(PATIENCE)

    github.fail(method="PATCH", token=OLDER, before=hold, after=older_wrote.set)
    github.fail(method="PATCH", token=NEWER, before=wait(older_decided), after=newer_wrote.set)
    github.fail(method="GET", path=COMMENTS, token=NEWER, skip=1, before=wait(older_wrote))
    jobs = [start(OLDER), start(NEWER)]
    assert [end(job).action for job in jobs][1] is Action.EDITED
    assert [method for method, _ in github.writes] == ["POST", "PATCH", "PATCH", "PATCH"]
    assert texts(github) == ["by the newer run"]


def test_row_46_a_job_killed_between_create_and_read_back(github: FakeGitHub, start: Start) -> None:
    stored, killed = threading.Event(), threading.Event()

    def hold() -> None:
        stored.set()
        killed.wait(PATIENCE)

    github.fail(method="POST", path=COMMENTS, token=OLDER, after=hold)
    older = start(OLDER)
    assert stored.wait(PATIENCE)
    older.kill()
    older.wait(PATIENCE)
    killed.set()
    assert texts(github) == ["by the older run"]
    assert end(start(NEWER)).action is Action.EDITED
    assert texts(github) == ["by the newer run"]


def test_row_46_a_job_killed_with_a_twin_left(github: FakeGitHub, start: Start) -> None:
    # Both created, and both were killed before either looked again.
    github.world.list_lag = 99
    for token in (OLDER, NEWER):
        stored, killed = threading.Event(), threading.Event()
        github.fail(method="POST", path=COMMENTS, token=token, after=lambda a=stored, b=killed: (a.set(), b.wait(60)))
        job = start(token)
        assert stored.wait(PATIENCE)
        job.kill()
        job.wait(PATIENCE)
        killed.set()
    assert texts(github) == ["by the older run", "by the newer run"]
    github.world.unlisted = dict.fromkeys(github.world.comments, 0)
    assert end(start(OLDER)).action is Action.SILENT
    assert texts(github) == ["by the newer run"]
