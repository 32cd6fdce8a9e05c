"""Commit statuses: written in order, and never a reason to stop."""

from __future__ import annotations

from perfguard.github.api.client import Client
from perfguard.github.api.statuses import Status, set_statuses
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
