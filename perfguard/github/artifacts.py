from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfguard.github.client import Client
from perfguard.github.runs import Run


class LaneArtifact(Struct, frozen=True):
    """What one expected lane uploaded.

    Attributes:
        lane: as expected, e.g. `nvidia-h200`; the artifact is called `perfguard-<lane>-<attempt>`.
        data: the packed bytes (a zip file that nobody has looked into), at most 2 MB; None without a valid one.
        problem: why there is none: "no result", "expired …", "two artifacts …", "… larger than 2 MB".
        attempt: of the run that uploaded it.
        expires: ISO date and time, empty where unknown.
    """

    lane: str
    data: bytes | None = None
    problem: str = ""
    attempt: int = 0
    expires: str = ""


def fetch_artifacts(client: Client, run: Run, lanes: Sequence[str]) -> list[LaneArtifact]:
    """For every expected lane the artifact of exactly this run with the highest attempt up to the run's own.

    Trouble with one lane is that lane's `problem`; the others are fetched.

    Returns:
        One for each of `lanes`, in their order.

    Raises:
        GitHubError: the artifacts cannot be listed.
        UsageError: more than 20 lanes.
    """
    raise NotImplementedError
