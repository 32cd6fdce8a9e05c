"""Downloads the artifacts that the lanes of one run uploaded, without parsing them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from perfguard.github.api.client import ApiError, Client
from perfguard.github.api.measured_run import WorkflowRun
from perfguard.model.errors import GitHubError

_LANES = 5  # So many of the largest archives are read together; others are smaller.


class _Source(Struct, frozen=True):
    head_branch: str | None = None
    head_repository_id: int | None = None


class _Artifact(Struct, frozen=True):
    id: int
    name: str
    size_in_bytes: int
    expired: bool
    digest: str | None = None
    workflow_run: _Source = _Source()


class _Page(Struct, frozen=True):
    artifacts: list[_Artifact]


def fetch_artifacts(
    client: Client, run: WorkflowRun, lanes: Sequence[str], most: int
) -> tuple[dict[str, bytes | str], list[str]]:
    """Lane -> the zip file that it uploaded, or why there is none, with the next step; and a warning for each lane
    whose file is of an earlier attempt.

    An artifact is called `perfguard-<lane>-<attempt>`. The highest attempt counts, up to the run's own.

    Args:
        most: the most bytes of an archive.

    Raises:
        GitHubError: the artifacts cannot be listed.
    """
    by_lane: dict[str, bytes | str] = {}
    earlier: list[str] = []
    for lane in lanes:
        left = _LANES * most - sum(len(data) for data in by_lane.values() if isinstance(data, bytes))
        attempt, by_lane[lane] = _fetch_lane(client, run, lane, min(most, left))
        if attempt < run.attempt and isinstance(by_lane[lane], bytes):
            earlier.append(f"{lane}: the report is of attempt {attempt}, since attempt {run.attempt} uploaded none")
    return by_lane, earlier


def fetch_newest(client: Client, run: WorkflowRun, name: str, most: int) -> bytes | None:
    """The newest zip file of this name that a run of the branch of `run` uploaded, otherwise the newest of any branch
    of the repository itself; None if there is none. Those of other forks are not used.

    Args:
        most: the most bytes of an archive.

    Raises:
        GitHubError: a request fails, or the file is too large.
    """
    listed = client.get("/actions/artifacts", _Page, name=name, per_page="100").artifacts  # The newest come first.
    own, home = (run.head_repository.id if run.head_repository else 0, run.head_branch), run.repository.id

    def branch(each: _Artifact) -> tuple[int | None, str | None]:
        return each.workflow_run.head_repository_id, each.workflow_run.head_branch

    usable = [each for each in listed if not each.expired and (branch(each) == own or branch(each)[0] == home)]
    newest = max(usable, key=lambda each: (branch(each) == own, each.id), default=None)
    return None if newest is None else _download(client, newest, most)


def _fetch_lane(client: Client, run: WorkflowRun, lane: str, limit: int) -> tuple[int, bytes | str]:
    """The attempt that uploaded something, and the file or why it is not used."""
    for attempt in range(run.attempt, 0, -1):  # A lane that did not run again has an earlier one.
        # The name filters the list, because a run of untrusted code may have thousands of other artifacts.
        pages = client.pages(f"/actions/runs/{run.id}/artifacts", _Page, name=f"perfguard-{lane}-{attempt}")
        same = [artifact for page in pages for artifact in page.artifacts]
        if len(same) > 1:
            return attempt, f"{len(same)} artifacts are called {same[0].name}; upload one"
        if same:
            try:
                return attempt, _download(client, same[0], limit)
            except GitHubError as error:
                return attempt, f"{same[0].name}: {error}"
    return 0, "nothing was uploaded; look at the lane's job, and run it again"


def _download(client: Client, artifact: _Artifact, limit: int) -> bytes:
    expired = GitHubError("expired; run the lane again")
    if artifact.expired:
        raise expired
    if artifact.size_in_bytes > limit:
        raise GitHubError(
            f"{artifact.size_in_bytes:,} bytes, larger than {limit:,} bytes; upload nothing but the report"
        )
    try:
        data = client.download(f"/actions/artifacts/{artifact.id}/zip", limit)
    except ApiError as error:
        raise (expired if error.status == 410 else error) from error
    kind, _, digest = (artifact.digest or "").partition(":")
    if kind == "sha256" and hashlib.sha256(data).hexdigest() != digest:
        raise GitHubError("its bytes are not those that were uploaded; run the post job again")
    return data
