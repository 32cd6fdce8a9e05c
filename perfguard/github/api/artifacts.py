"""The artifacts that the lanes of one run uploaded, as bytes that are not parsed yet."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from perfguard.github.api.client import Client
from perfguard.github.api.runs import Run
from perfguard.github.api.troubles import Gone
from perfguard.model.errors import GitHubError, UsageError

MOST_LANES = 20
MOST_LANE_BYTES = 2_000_000
MOST_BYTES = 10_000_000
NO_RESULT = "no result"


class LaneArtifact(Struct, frozen=True):
    """The artifact of one expected lane.

    Attributes:
        lane: the expected name, e.g. `nvidia-h200`; the artifact is called `perfguard-<lane>-<attempt>`.
        data: the zip file, not parsed yet, at most 2 MB; None without a valid one.
        problem: why `data` is None: "no result", "expired …", "2 artifacts …", "… larger than 2,000,000 bytes".
        attempt: attempt of the run that uploaded it.
        expires: ISO date and time; empty if unknown.
    """

    lane: str
    data: bytes | None = None
    problem: str = ""
    attempt: int = 0
    expires: str = ""


class _Artifact(Struct, frozen=True):
    id: int
    name: str
    size_in_bytes: int
    expired: bool
    expires_at: str | None = None
    digest: str | None = None


class _Page(Struct, frozen=True):
    artifacts: list[_Artifact]


def fetch_artifacts(client: Client, run: Run, lanes: Sequence[str]) -> list[LaneArtifact]:
    """Fetch the artifact of every expected lane: from this run only, with the highest attempt up to the run's own.

    An error with one lane becomes that lane's `problem`; the others are still fetched.

    Returns:
        One artifact for each of `lanes`, in their order.

    Raises:
        GitHubError: the artifacts cannot be listed.
        UsageError: more than 20 lanes.
    """
    if len(lanes) > MOST_LANES:
        raise UsageError(f"lanes: {len(lanes)} are expected, {MOST_LANES} at most; split them over two workflows")
    found: list[LaneArtifact] = []
    for lane in lanes:
        left = MOST_BYTES - sum(len(other.data or b"") for other in found)
        found.append(_fetch_lane(client, run, lane, left))
    return found


def _fetch_lane(client: Client, run: Run, lane: str, left: int) -> LaneArtifact:
    """Query by name: a run of untrusted code may hold thousands of other artifacts."""
    path = f"/repos/{client.repository}/actions/runs/{run.id}/artifacts"
    for attempt in range(run.attempt, 0, -1):  # a lane that was not rerun has an artifact of an earlier attempt
        pages = client.pages(path, _Page, {"name": f"perfguard-{lane}-{attempt}"})
        same = [artifact for page in pages for artifact in page.artifacts]
        if same:
            break
    else:
        return LaneArtifact(lane, problem=NO_RESULT)
    if len(same) > 1:
        names = f"{len(same)} artifacts of one name, {same[0].name}"
        return LaneArtifact(lane, problem=f"{names}; which is right cannot be told", attempt=attempt)
    artifact = same[0]
    try:
        data = _download(client, artifact, left)
    except GitHubError as error:
        return LaneArtifact(lane, problem=str(error), attempt=attempt)
    return LaneArtifact(lane, data, attempt=attempt, expires=artifact.expires_at or "")


def _download(client: Client, artifact: _Artifact, left: int) -> bytes:
    limit = min(MOST_LANE_BYTES, left)
    if artifact.expired:
        raise Gone(f"{artifact.name}: expired; run the lane again")
    if artifact.size_in_bytes > limit:
        raise GitHubError(
            f"{artifact.name}: {artifact.size_in_bytes:,} bytes, larger than {limit:,} bytes; "
            "upload nothing but the report"
        )
    try:
        data = client.download(f"/repos/{client.repository}/actions/artifacts/{artifact.id}/zip", limit)
    except Gone as error:
        raise Gone(f"{artifact.name}: expired; run the lane again") from error
    kind, _, digest = (artifact.digest or "").partition(":")
    if kind == "sha256" and hashlib.sha256(data).hexdigest() != digest:
        raise GitHubError(f"{artifact.name}: its bytes are not those that were uploaded; run the post job again")
    return data
