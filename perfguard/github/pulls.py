from __future__ import annotations

from msgspec import Struct

from perfguard.github.client import Client
from perfguard.github.runs import Run


class Pull(Struct, frozen=True):
    """An open pull request whose head is the commit that was measured.

    Attributes:
        base_sha, base_ref: tip and name of the branch that it is to be merged into.
        head_sha: what was measured.
        labels: their names.
        alone: no other open pull request has this head, so a status on it speaks of this one.
    """

    number: int
    base_sha: str
    base_ref: str
    head_sha: str
    draft: bool = False
    labels: list[str] = []
    alone: bool = True


class Found(Struct, frozen=True):
    """The pull request of a run, or why there is none to write to (for the log; one sentence)."""

    pull: Pull | None = None
    reason: str = ""


def find_pull(client: Client, run: Run) -> Found:
    """The open pull request whose head is what `run` measured, by repository, branch and commit of the event.

    Raises:
        GitHubError: GitHub cannot be asked.
    """
    raise NotImplementedError
