"""What the lanes uploaded: of this run, of the right attempt, whole, and never with the token."""

from __future__ import annotations

from typing import Any

import pytest

from perfguard.github.api.client import Client
from perfguard.github.api.measured_run import WorkflowRun, fetch_artifacts, fetch_run
from perfguard.model.errors import GitHubError
from tests.github.fake import FakeGitHub

MOST = 2_000_000  # bytes of an archive


@pytest.fixture
def run(github: FakeGitHub, client: Client) -> WorkflowRun:
    github.data.add_run(attempt=2)
    return fetch_run(client, 5001)


def one(client: Client, run: WorkflowRun, lane: str = "h200") -> bytes | str:
    return fetch_artifacts(client, run, [lane], MOST)[0][lane]


def why_none(client: Client, run: WorkflowRun, lane: str = "h200") -> str:
    found = one(client, run, lane)
    assert isinstance(found, str)
    return found


def test_the_highest_attempt_up_to_the_runs_own(github: FakeGitHub, client: Client, run: WorkflowRun) -> None:
    for attempt in (1, 2, 3):
        github.data.add_artifact(5001, f"perfguard-h200-{attempt}", f"attempt {attempt}".encode())
    github.data.add_artifact(5002, "perfguard-h200-2", b"of another run")
    github.data.add_artifact(5001, "perfguard-b200-1", b"not run again")
    assert fetch_artifacts(client, run, ["b200", "h200"], MOST) == (
        {"b200": b"not run again", "h200": b"attempt 2"},
        ["b200: the report is of attempt 1, since attempt 2 uploaded none"],
    )


def test_other_artifacts_are_no_result_and_cost_nothing(github: FakeGitHub, client: Client, run: WorkflowRun) -> None:
    for name in ("perfguard-h200-1-x", "h200-1", "perfguard-nvidia-h200-1", *(f"junk-{each}" for each in range(5100))):
        github.data.add_artifact(5001, name, b"")
    github.requests.clear()
    for lane in ("h200", "nvidia", ".*"):
        assert why_none(client, run, lane).startswith("nothing was uploaded; look at the lane's job")
    assert len(github.requests) == 3 * 2  # one for each attempt
    assert one(client, run, "nvidia-h200") == b""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"expired": True}, "perfguard-h200-2: expired; run the lane again"),
        ({"data": b"x" * 2_000_001}, "larger than 2,000,000 bytes"),
        ({"data": b"x" * 2_000_001, "size": 10}, "more than 2,000,000 bytes"),
        ({"digest": f"sha256:{'0' * 64}"}, "not those that were uploaded"),
    ],
    ids=["expired", "large", "larger than it says", "other bytes"],
)
def test_a_lane_that_cannot_be_read_leaves_the_others(
    github: FakeGitHub, client: Client, run: WorkflowRun, fields: dict[str, Any], said: str
) -> None:
    github.data.add_artifact(5001, "perfguard-h200-2", **{"data": b"zip", **fields})
    github.data.add_artifact(5001, "perfguard-b200-2", b"fine")
    assert fetch_artifacts(client, run, ["h200", "b200"], MOST)[0]["b200"] == b"fine"
    assert said in why_none(client, run)


def test_expired_between_listing_and_download(github: FakeGitHub, client: Client, run: WorkflowRun) -> None:
    github.data.add_artifact(5001, "perfguard-h200-2", b"zip")
    github.fail(path="/zip$", status=410, body={"message": "Artifact has expired"})
    assert why_none(client, run) == "perfguard-h200-2: expired; run the lane again"


def test_two_of_one_lane_and_attempt(github: FakeGitHub, client: Client, run: WorkflowRun) -> None:
    for data in (b"a", b"b"):
        github.data.add_artifact(5001, "perfguard-h200-2", data)
    assert "2 artifacts are called perfguard-h200-2" in why_none(client, run)


def test_ten_megabytes_in_all(github: FakeGitHub, client: Client, run: WorkflowRun) -> None:
    lanes = [f"lane{number}" for number in range(6)]
    for lane in lanes:
        github.data.add_artifact(5001, f"perfguard-{lane}-1", b"x" * 1_900_000)
    found, _ = fetch_artifacts(client, run, lanes, MOST)
    assert [isinstance(each, bytes) for each in found.values()] == [True] * 5 + [False]


def test_a_list_that_fails(github: FakeGitHub, client: Client, run: WorkflowRun) -> None:
    github.fail(path="/artifacts", status=404, body={"message": "Not Found"})
    with pytest.raises(GitHubError, match="artifacts: 404 Not Found"):
        one(client, run)
