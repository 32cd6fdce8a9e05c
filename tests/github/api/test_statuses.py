"""Commit statuses: written once, in order, and never a reason to stop."""

from __future__ import annotations

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.statuses import Status, set_statuses
from tests.github.api.conftest import FakeClock
from tests.github.api.fake import FakeGitHub
from tests.github.api.fake.world import sha

HEAD = sha("head")
LANE = Status("perfguard/h200", "success", "131 cases passed")
TOTAL = Status("perfguard", "failure", "1 slower", "https://github.com/o/r/actions/runs/5001")


def standing(github: FakeGitHub) -> list[tuple[str, str, str, str | None]]:
    return [
        (status["context"], status["state"], status["description"], status["target_url"])
        for status in github.world.statuses.get(HEAD, [])
    ]


def test_each_is_set_in_order(github: FakeGitHub, client: Client) -> None:
    assert set_statuses(client, HEAD, [LANE, TOTAL]) == []
    assert standing(github) == [
        ("perfguard/h200", "success", "131 cases passed", None),
        ("perfguard", "failure", "1 slower", "https://github.com/o/r/actions/runs/5001"),
    ]


def test_row_05_what_stands_is_not_written_again(github: FakeGitHub, client: Client) -> None:
    set_statuses(client, HEAD, [LANE, TOTAL])
    changed = Status("perfguard", "success", "all passed", TOTAL.link)
    assert set_statuses(client, HEAD, [LANE, changed]) == []
    assert [context for context, *_ in standing(github)] == ["perfguard/h200", "perfguard", "perfguard"]
    # The latest counts, not that it once stood.
    assert set_statuses(client, HEAD, [TOTAL]) == []
    assert standing(github)[-1][1] == "failure"


@pytest.mark.parametrize(
    ("standing_link", "kept"),
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
    github: FakeGitHub, client: Client, standing_link: str | None, kept: bool
) -> None:
    red = {"context": "perfguard", "state": "failure", "description": "1 slower", "target_url": standing_link}
    github.world.statuses[HEAD] = [red]
    late = Status("perfguard", "success", "all passed", "https://github.com/o/r/actions/runs/5001")
    assert set_statuses(client, HEAD, [late]) == []
    assert (standing(github)[-1][1] == "failure") is kept


def test_a_long_description_is_cut(github: FakeGitHub, client: Client) -> None:
    assert set_statuses(client, HEAD, [Status("perfguard", "success", "é" * 141)]) == []
    assert standing(github)[0][2] == "é" * 139 + "…"


def test_trouble_with_one_leaves_the_others(github: FakeGitHub, client: Client) -> None:
    github.fail(method="GET", path="/status$", times=9, status=404, body={"message": "Not Found"})
    github.fail(method="POST", status=422, body={"message": "No commit found for SHA"})
    red = Status("perfguard/h200", "failure", "1 slower")
    problems = set_statuses(client, HEAD, [red, TOTAL])
    assert len(problems) == 1
    assert problems[0].startswith("status perfguard/h200: POST")
    assert [context for context, *_ in standing(github)] == ["perfguard"]


def test_green_is_not_set_where_nobody_knows_what_stands_there(github: FakeGitHub, client: Client) -> None:
    """A newer run may have set it to red."""
    github.fail(method="GET", path="/status$", times=9, status=404, body={"message": "Not Found"})
    (problem,) = set_statuses(client, HEAD, [LANE, TOTAL])
    assert problem.startswith("status perfguard/h200: not set, since what stands there could not be read (")
    assert [context for context, *_ in standing(github)] == ["perfguard"]


def test_an_outage_is_waited_for(github: FakeGitHub, client: Client) -> None:
    github.fail(method="POST", times=2, status=503, body="")
    assert set_statuses(client, HEAD, [TOTAL]) == []
    assert len(standing(github)) == 1


def test_writes_keep_a_second_between_them(github: FakeGitHub, client: Client, clock: FakeClock) -> None:
    assert set_statuses(client, HEAD, [LANE, TOTAL]) == []
    assert clock.slept == [1.0]
