"""Commit statuses: written once, in order, and never a reason to stop."""

from __future__ import annotations

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.statuses import Status, set_statuses
from tests.github.fake import FakeGitHub, sha

HEAD = sha("head")
RUN = "https://github.com/o/r/actions/runs/5001"
LANE = Status("perfguard/h200", "success", "131 cases passed", RUN)
TOTAL = Status("perfguard", "failure", "1 slower", RUN)


def standing(github: FakeGitHub) -> list[tuple[str, ...]]:
    return [
        (status["context"], status["state"], status["description"]) for status in github.world.statuses.get(HEAD, [])
    ]


def test_each_is_set_once_in_order(github: FakeGitHub, client: Client) -> None:
    for _ in range(2):
        assert set_statuses(client, HEAD, [LANE, TOTAL]) == []
    assert standing(github) == [
        ("perfguard/h200", "success", "131 cases passed"), ("perfguard", "failure", "1 slower"),
    ]  # fmt: skip
    assert github.world.statuses[HEAD][0]["target_url"] == RUN
    assert set_statuses(client, HEAD, [Status("Perfguard", "success", "é" * 141, RUN)]) == []
    assert standing(github)[-1] == ("Perfguard", "success", "é" * 139 + "…")
    # The latest counts, not that it once stood.
    assert set_statuses(client, HEAD, [TOTAL]) == []
    assert standing(github)[-1][1] == "failure"


@pytest.mark.parametrize(
    ("link", "kept"),
    [
        ("https://github.com/o/r/actions/runs/5002", True),
        ("https://github.com/o/r/actions/runs/5001/attempts/2", True),
        ("https://github.com/o/r/actions/runs/5000/attempts/9", False),
        ("https://github.com/o/r/actions/runs/999", False),
        ("https://ci.example.com/builds/9999", False),
        (None, False),
    ],
)
def test_an_older_run_that_posts_late_leaves_a_newer_one_s_status(
    github: FakeGitHub, client: Client, link: str | None, kept: bool
) -> None:
    red = {"context": "perfguard", "state": "failure", "description": "1 slower", "target_url": link}
    github.world.statuses[HEAD] = [red]
    assert set_statuses(client, HEAD, [Status("perfguard", "success", "all passed", RUN)]) == []
    assert (standing(github)[-1][1] == "failure") is kept


def test_trouble_with_one_leaves_the_others(github: FakeGitHub, client: Client) -> None:
    github.fail(method="POST", status=422, body={"message": "No commit found for SHA"})
    (problem,) = set_statuses(client, HEAD, [LANE, TOTAL])
    assert problem.startswith("status perfguard/h200: POST")
    assert [context for context, *_ in standing(github)] == ["perfguard"]


def test_green_is_not_set_where_nobody_knows_what_stands_there(github: FakeGitHub, client: Client) -> None:
    """A newer run may have set it to red."""
    github.fail(method="GET", path="/status$", times=9, status=404, body={"message": "Not Found"})
    (problem,) = set_statuses(client, HEAD, [LANE, TOTAL])
    assert problem.startswith("status perfguard/h200: not set, since what stands there could not be read (")
    assert [context for context, *_ in standing(github)] == ["perfguard"]
