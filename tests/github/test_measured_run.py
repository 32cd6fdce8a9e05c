"""Which run is posted for, and which pull request it belongs to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.measured_run import Lookup, WorkflowRun, fetch_run, find_pull, read_event, reason_to_stop
from perfguard.model.errors import GitHubError, UsageError
from tests.github.fake import FORK, HOME, FakeGitHub, repository, sha

THIEF = repository(3, "thief/r")


def run_of(github: FakeGitHub, client: Client, **fields: Any) -> WorkflowRun:
    github.data.add_run(**fields)
    return fetch_run(client, 5001)


def find(github: FakeGitHub, client: Client, **fields: Any) -> Lookup:
    return find_pull(client, run_of(github, client, **fields))


def number(found: Lookup) -> int | None:
    return found.pull.number if found.pull else None


def test_the_pull_request_of_a_fork_among_others(github: FakeGitHub, client: Client) -> None:
    for other in range(100, 250):
        github.data.add_pull(other, branch=f"b{other}", head=f"h{other}", source=HOME)
    found = find(github, client)
    assert (number(found), found.alone) == (7, True)
    github.data.pulls[7]["head"]["ref"] = "renamed"
    assert number(find(github, client)) == 7


def test_a_commit_that_heads_another_pull_request_too_is_not_alone(github: FakeGitHub, client: Client) -> None:
    github.data.add_pull(70, branch="stolen", source=THIEF)
    found = find(github, client)
    assert (number(found), found.alone) == (7, False)
    github.data.pulls[70]["state"] = "closed"
    assert find(github, client).alone


def test_two_pull_requests_of_one_branch_are_told_apart_by_the_event_alone(github: FakeGitHub, client: Client) -> None:
    github.data.add_pull(8, base_ref="release")
    found = find(github, client)
    assert (number(found), found.alone) == (None, False)
    assert "#7, #8 share the head" in found.reason
    both = [{"number": 7}, {"number": 8}]
    assert find(github, client, pull_requests=both).pull is None
    found = find(github, client, pull_requests=both[1:])  # GitHub itself knows the base
    assert (number(found), found.alone) == (8, False)
    assert find(github, client, pull_requests=[{"number": 9}]).pull is None
    assert find(github, client, pull_requests=None).pull is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "closed"}, "no open pull request has"),
        ({"head": {"sha": sha("forced"), "ref": "topic", "repo": FORK}},
         f"measured {sha('head')[:12]}, which is outdated: #7 is at {sha('forced')[:12]}; its own run will comment"),
        ({"head": {"sha": sha("head"), "ref": "topic", "repo": THIEF}}, "no open pull request has"),
        ({"head": {"sha": sha("head"), "ref": "topic", "repo": None}}, "no open pull request has"),
        ({"base": {"sha": sha("base"), "ref": "main", "repo": FORK}}, "no open pull request has"),
    ],
    ids=["closed", "pushed since", "of another fork", "of a fork that is gone", "into another repository"],
)  # fmt: skip
def test_no_pull_request_has_the_measured_head(
    github: FakeGitHub, client: Client, change: dict[str, Any], said: str
) -> None:
    github.data.pulls[7].update(change)
    found = find(github, client)
    assert number(found) is None
    assert said in found.reason


def test_runs_without_a_pull_request(github: FakeGitHub, client: Client) -> None:
    assert "is gone" in find(github, client, head_repository=None).reason
    for event in ("merge_group", "push"):
        run = run_of(github, client, event=event)
        assert reason_to_stop(run, client) == ""
        assert find_pull(client, run).reason == f"the run was started by a {event}, which has no pull request"
    with pytest.raises(GitHubError, match=r"GET /actions/runs/9: 404 Not Found; check the number"):
        fetch_run(client, 9)


@pytest.mark.parametrize("conclusion", ["success", "failure", "timed_out", "cancelled"])
@pytest.mark.parametrize("path", [".github/workflows/measure.yml", ".github/workflows/measure.yml@refs/heads/main"])
def test_runs_that_are_posted_for(github: FakeGitHub, client: Client, conclusion: str, path: str) -> None:
    assert reason_to_stop(run_of(github, client, conclusion=conclusion, path=path), client) == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"path": ".github/workflows/measure2.yml"}, "another workflow"),
        ({"path": "evil/r/.github/workflows/measure.yml"}, "another workflow"),
        ({"repository": repository(9, "o/r")}, "belongs to o/r, not to o/r"),
        ({"event": "workflow_dispatch"}, "was started by 'workflow_dispatch'"),
        ({"conclusion": "action_required"}, "ended as 'action_required'"),
        ({"conclusion": None}, "ended as 'None'"),
        ({"event": "push", "conclusion": "cancelled"}, "was cancelled"),
    ],
)
def test_runs_that_are_not(github: FakeGitHub, client: Client, fields: dict[str, Any], said: str) -> None:
    assert said in reason_to_stop(run_of(github, client, **fields), client)


def test_the_event_of_a_job(github: FakeGitHub, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    event = {"action": "completed", "workflow_run": github.data.add_run(attempt=3), "sender": {"login": "x"}}
    path.write_text(json.dumps(event), encoding="utf-8")
    run = read_event({"GITHUB_EVENT_PATH": str(path)})
    assert (run.id, run.attempt, run.head_branch, run.repository.full_name) == (5001, 3, "topic", "o/r")


RUN = {"id": 1, "event": "push", "path": "x", "head_sha": sha("x"), "repository": repository(1, "o/..")}


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"workflow_run": {}}', "[" * 100_000, '{"issue": {"number": 7}}', json.dumps({"workflow_run": RUN})],
)
def test_another_event_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "event.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="no workflow_run event"):
        read_event({"GITHUB_EVENT_PATH": str(path)})
    with pytest.raises(UsageError, match="GITHUB_EVENT_PATH: not set"):
        read_event({})
    with pytest.raises(UsageError, match="cannot be read"):
        read_event({"GITHUB_EVENT_PATH": str(tmp_path / "none.json")})
