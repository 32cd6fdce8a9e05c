"""What the lanes uploaded: of this run, of the right attempt, whole, and never with the token."""

from __future__ import annotations

import pytest

from perfguard.github.api.artifacts import LaneArtifact, fetch_artifacts
from perfguard.github.api.client import Client
from perfguard.github.api.runs import Run, fetch_run
from perfguard.model.errors import GitHubError, UsageError
from tests.github.api.fake import FakeGitHub


@pytest.fixture
def run(github: FakeGitHub, client: Client) -> Run:
    github.world.add_run(attempt=2)
    return fetch_run(client, 5001)


def one(client: Client, run: Run, lane: str = "h200") -> LaneArtifact:
    return fetch_artifacts(client, run, [lane])[0]


def test_the_highest_attempt_up_to_the_runs_own(github: FakeGitHub, client: Client, run: Run) -> None:
    for attempt in (1, 2, 3):
        github.world.add_artifact(5001, f"perfguard-h200-{attempt}", f"attempt {attempt}".encode())
    github.world.add_artifact(5002, "perfguard-h200-2", b"of another run")
    assert one(client, run) == LaneArtifact("h200", b"attempt 2", "", 2, "2027-02-19T10:00:00Z")


def test_a_lane_that_was_not_run_again_keeps_its_report(github: FakeGitHub, client: Client, run: Run) -> None:
    github.world.add_artifact(5001, "perfguard-h200-1", b"first")
    github.world.add_artifact(5001, "perfguard-b200-2", b"second")
    assert [(lane.lane, lane.data) for lane in fetch_artifacts(client, run, ["b200", "h200"])] == [
        ("b200", b"second"),
        ("h200", b"first"),
    ]


def test_row_29_no_artifact_is_no_result(github: FakeGitHub, client: Client, run: Run) -> None:
    github.world.add_artifact(5001, "perfguard-h200-1-x", b"")
    github.world.add_artifact(5001, "h200-1", b"")
    github.world.add_artifact(5001, "perfguard-other-1", b"")
    assert one(client, run) == LaneArtifact("h200", problem="no result")


def test_thousands_of_others_cost_nothing(github: FakeGitHub, client: Client, run: Run) -> None:
    for number in range(5_100):
        github.world.add_artifact(5001, f"junk-{number}", b"")
    github.world.add_artifact(5001, "perfguard-h200-1", b"fine")
    github.requests.clear()
    assert one(client, run).data == b"fine"
    assert len([path for _, path in github.requests if path.endswith("/artifacts")]) == 2  # one for each attempt


def test_row_30_expired(github: FakeGitHub, client: Client, run: Run) -> None:
    github.world.add_artifact(5001, "perfguard-h200-2", b"zip", expired=True)
    assert one(client, run).problem == "perfguard-h200-2: expired; run the lane again"


def test_row_30_expired_between_listing_and_download(github: FakeGitHub, client: Client, run: Run) -> None:
    github.world.add_artifact(5001, "perfguard-h200-2", b"zip")
    github.fail(path="/zip$", status=410, body={"message": "Artifact has expired"})
    assert one(client, run).problem == "perfguard-h200-2: expired; run the lane again"


def test_two_of_one_lane_and_attempt(github: FakeGitHub, client: Client, run: Run) -> None:
    for data in (b"a", b"b"):
        github.world.add_artifact(5001, "perfguard-h200-2", data)
    found = one(client, run)
    assert found.data is None
    assert "2 artifacts of one name" in found.problem


@pytest.mark.parametrize("size", [None, 10])
def test_too_large_whatever_it_says(github: FakeGitHub, client: Client, run: Run, size: int | None) -> None:
    github.world.add_artifact(5001, "perfguard-h200-2", b"x" * 2_000_001, size=size)
    github.world.add_artifact(5001, "perfguard-b200-2", b"fine")
    b200, h200 = fetch_artifacts(client, run, ["b200", "h200"])
    assert b200.data == b"fine"
    assert h200.data is None
    assert "2,000,000 bytes" in h200.problem


def test_ten_megabytes_in_all(github: FakeGitHub, client: Client, run: Run) -> None:
    lanes = [f"lane{number}" for number in range(6)]
    for lane in lanes:
        github.world.add_artifact(5001, f"perfguard-{lane}-1", b"x" * 1_900_000)
    assert [lane.data is not None for lane in fetch_artifacts(client, run, lanes)] == [True] * 5 + [False]


def test_other_bytes_than_were_uploaded(github: FakeGitHub, client: Client, run: Run) -> None:
    github.world.add_artifact(5001, "perfguard-h200-2", b"zip", digest=f"sha256:{'0' * 64}")
    assert "not those that were uploaded" in one(client, run).problem


def test_a_lane_name_is_no_pattern_and_holds_hyphens(github: FakeGitHub, client: Client, run: Run) -> None:
    github.world.add_artifact(5001, "perfguard-nvidia-h200-1", b"long")
    assert one(client, run, "nvidia-h200").data == b"long"
    assert one(client, run, "nvidia").data is None
    assert one(client, run, ".*").data is None


def test_lists_of_several_pages(github: FakeGitHub, client: Client, run: Run) -> None:
    for number in range(150):
        github.world.add_artifact(5001, f"wheel-{number}", b"")
    github.world.add_artifact(5001, "perfguard-h200-1", b"last")
    assert one(client, run).data == b"last"


def test_a_list_that_fails_is_told_and_too_many_lanes_are_refused(github: FakeGitHub, client: Client, run: Run) -> None:
    with pytest.raises(UsageError, match="21 are expected, 20 at most"):
        fetch_artifacts(client, run, [str(number) for number in range(21)])
    github.fail(path="/artifacts", times=9, status=404, body={"message": "Not Found"})
    with pytest.raises(GitHubError, match="artifacts: 404 Not Found"):
        fetch_artifacts(client, run, ["h200"])
