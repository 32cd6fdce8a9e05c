"""Commit statuses: written in order, and never a reason to stop."""

from __future__ import annotations

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.measured_run import Repository, WorkflowRun
from perfguard.github.api.posts import Status, newer_run, set_statuses
from tests.github.fake import FakeGitHub, sha

HEAD = sha("head")
RUN = "https://github.com/o/r/actions/runs/5001"
LANE = Status("perfguard/h200", "success", "131 cases passed", RUN)
TOTAL = Status("perfguard", "failure", "1 slower", RUN)


def standing(github: FakeGitHub) -> list[tuple[str, ...]]:
    return [
        (status["context"], status["state"], status["description"]) for status in github.data.statuses.get(HEAD, [])
    ]


def test_each_is_set_in_order(github: FakeGitHub, client: Client) -> None:
    assert set_statuses(client, HEAD, [LANE, TOTAL]) == []
    assert standing(github) == [
        ("perfguard/h200", "success", "131 cases passed"), ("perfguard", "failure", "1 slower"),
    ]  # fmt: skip
    assert github.data.statuses[HEAD][0]["target_url"] == RUN
    assert set_statuses(client, HEAD, [Status("perfguard", "success", "é" * 141, RUN)]) == []
    assert standing(github)[-1] == ("perfguard", "success", "é" * 139 + "…")


def test_trouble_with_one_leaves_the_others(github: FakeGitHub, client: Client) -> None:
    github.fail(method="POST", status=422, body={"message": "No commit found for SHA"})
    (problem,) = set_statuses(client, HEAD, [LANE, TOTAL])
    assert problem.startswith("status perfguard/h200: POST")
    assert [context for context, *_ in standing(github)] == ["perfguard"]


def test_one_that_is_not_read_back_is_not_set(github: FakeGitHub, client: Client) -> None:
    page = "<!DOCTYPE html><title>Sign in</title>"
    github.fail(method="POST", status=200, body=page)
    github.fail(method="POST", status=201, body={"context": "perfguard", "state": "success"})
    problems = set_statuses(client, HEAD, [LANE, TOTAL])
    assert ["check GITHUB_API_URL" in problem for problem in problems] == [True, True]
    assert "holds another state" in problems[1]


@pytest.mark.parametrize(
    ("run", "attempt", "newer"),
    [
        (5001, 2, ""),
        (5001, 3, ""),
        (5002, 1, ""),
        (5001, 1, "attempt 2 of run 5001"),
        (5000, 7, "attempt 2 of run 5001"),
    ],
)
def test_a_newer_run_is_found_by_the_status_that_stands(
    github: FakeGitHub, client: Client, run: int, attempt: int, newer: str
) -> None:
    measured = WorkflowRun(run, "push", "x", HEAD, Repository(1, "o/r"), attempt)
    assert newer_run(client, measured) == ""
    set_statuses(client, HEAD, [Status("perfguard", "failure", "red", f"{RUN}/attempts/2")])
    for number in range(150):  # of others, or without a run
        set_statuses(client, HEAD, [Status(f"other/{number}", "success", "", f"{RUN}/attempts/9")])
    set_statuses(client, HEAD, [Status("perfguard", "success", "by hand", "https://example.org/")])
    assert newer_run(client, measured) == newer
