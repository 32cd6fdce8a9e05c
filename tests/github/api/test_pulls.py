"""Which run is posted for, and which pull request it belongs to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.pulls import find_pull
from perfguard.github.api.runs import Run, fetch_run, read_event, reason_to_stop
from perfguard.model.errors import UsageError
from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import Repository, sha


def run_of(github: FakeGitHub, client: Client, **fields: Any) -> Run:
    github.world.add_run(**fields)
    return fetch_run(client, 5001)


def test_the_pull_request_of_a_fork_without_any_hint(github: FakeGitHub, client: Client) -> None:
    github.world.add_pull(8, branch="other", head="another")
    github.world.add_pull(9, source=github.world.home, head="one more")
    found = find_pull(client, run_of(github, client))
    assert found.pull is not None
    assert (found.pull.number, found.pull.base_sha) == (7, sha("base"))
    assert found.pull.alone


def test_a_commit_that_heads_another_pull_request_too_is_not_alone(github: FakeGitHub, client: Client) -> None:
    thief = Repository(3, "thief/r")
    github.world.add_pull(70, branch="stolen", source=thief)
    found = find_pull(client, run_of(github, client))
    assert found.pull is not None
    assert (found.pull.number, found.pull.alone) == (7, False)
    github.world.pulls[70]["state"] = "closed"
    again = find_pull(client, run_of(github, client))
    assert again.pull is not None
    assert again.pull.alone


def test_a_branch_name_that_a_url_would_take_apart(github: FakeGitHub, client: Client) -> None:
    name = "fix/#1&state=all?x=%20 é"
    github.world.add_pull(7, branch=name)
    found = find_pull(client, run_of(github, client, head_branch=name))
    assert found.pull is not None
    assert found.pull.number == 7


def test_row_13_closed_or_merged_meanwhile(github: FakeGitHub, client: Client) -> None:
    github.world.pulls[7]["state"] = "closed"
    found = find_pull(client, run_of(github, client))
    assert found.pull is None
    assert "no open pull request" in found.reason
    assert github.writes == []


def test_row_14_a_push_after_measuring_names_what_is_outdated(github: FakeGitHub, client: Client) -> None:
    run = run_of(github, client)
    github.world.pulls[7]["head"]["sha"] = sha("forced")
    found = find_pull(client, run)
    assert found.pull is None
    assert found.reason == (
        f"measured {sha('head')[:12]}, which is outdated: #7 is at {sha('forced')[:12]}; its own run will comment"
    )


def test_row_15_one_branch_two_pull_requests(github: FakeGitHub, client: Client) -> None:
    github.world.add_pull(8, base="release", base_ref="release")
    run = run_of(github, client)
    both = find_pull(client, run)
    assert both.pull is None
    assert "#7, #8 share the head" in both.reason

    hint = {"id": 1, "number": 8, "head": {"ref": "topic"}, "base": {"ref": "release"}}
    told = find_pull(client, run_of(github, client, pull_requests=[hint]))
    assert told.pull is not None
    assert (told.pull.number, told.pull.alone) == (8, False)

    github.world.pulls[7]["head"]["sha"] = sha("older")
    by_sha = find_pull(client, run)
    assert by_sha.pull is not None
    assert (by_sha.pull.number, by_sha.pull.alone) == (8, True)


def test_a_stale_hint_of_several_decides_nothing(github: FakeGitHub, client: Client) -> None:
    github.world.add_pull(8, base_ref="release")
    hints = [{"number": 7, "base": {"ref": "main"}}, {"number": 8, "base": {"ref": "release"}}]
    assert find_pull(client, run_of(github, client, pull_requests=hints)).pull is None


def test_a_renamed_branch_is_found_by_its_commit_at_the_fork(github: FakeGitHub, client: Client) -> None:
    github.world.pulls[7]["head"]["ref"] = "renamed"
    found = find_pull(client, run_of(github, client))
    assert found.pull is not None
    assert ("GET", f"/repos/stranger/r/commits/{sha('head')}/pulls") in github.requests


def test_the_same_commit_in_another_fork_is_another_pull_request(github: FakeGitHub, client: Client) -> None:
    thief = Repository(3, "stranger/r-again")
    github.world.pulls[7]["head"]["repo"] = thief.as_json()
    assert find_pull(client, run_of(github, client)).pull is None


def test_a_pull_request_into_another_repository_is_not_ours(github: FakeGitHub, client: Client) -> None:
    github.world.pulls[7]["base"]["repo"] = github.world.fork.as_json()
    assert find_pull(client, run_of(github, client)).pull is None


def test_a_fork_that_is_gone(github: FakeGitHub, client: Client) -> None:
    assert "is gone" in find_pull(client, run_of(github, client, head_repository=None)).reason
    github.world.fork.gone = True
    github.world.pulls[7]["head"]["repo"] = None
    assert "no open pull request" in find_pull(client, run_of(github, client)).reason


@pytest.mark.parametrize("event", ["merge_group", "push"])
def test_row_44_without_a_pull_request(github: FakeGitHub, client: Client, event: str) -> None:
    run = run_of(github, client, event=event)
    assert reason_to_stop(run, client) == ""
    assert find_pull(client, run).reason == f"run 5001 was started by {event}: there is no pull request to comment on"


@pytest.mark.parametrize("conclusion", ["success", "failure", "timed_out", "cancelled"])
@pytest.mark.parametrize("path", [".github/workflows/measure.yml", ".github/workflows/measure.yml@refs/heads/main"])
def test_runs_that_are_posted_for(github: FakeGitHub, client: Client, conclusion: str, path: str) -> None:
    assert reason_to_stop(run_of(github, client, conclusion=conclusion, path=path), client) == ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"path": ".github/workflows/measure2.yml"}, "another workflow"),
        ({"path": "evil/r/.github/workflows/measure.yml"}, "another workflow"),
        ({"repository": Repository(9, "o/r").as_json()}, "belongs to o/r, not to o/r"),
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
    event = {"action": "completed", "workflow_run": github.world.add_run(attempt=3), "sender": {"login": "x"}}
    path.write_text(json.dumps(event), encoding="utf-8")
    run = read_event({"GITHUB_EVENT_PATH": str(path)})
    assert (run.id, run.attempt, run.head_branch, run.repository.full_name) == (5001, 3, "topic", "o/r")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"workflow_run": {}}', '{"workflow_run": null}', "[" * 100_000, '{"issue": {"number": 7}}']
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


@pytest.mark.parametrize("name", ["o/..", "o/r/../../x", "o", "/r", "o/r?x=1"])
def test_a_repository_name_that_could_lead_elsewhere_is_refused(github: FakeGitHub, tmp_path: Path, name: str) -> None:
    run = github.world.add_run(head_repository={**github.world.fork.as_json(), "full_name": name})
    path = tmp_path / "event.json"
    path.write_text(json.dumps({"workflow_run": run}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"full_name|head_repository"):
        read_event({"GITHUB_EVENT_PATH": str(path)})
