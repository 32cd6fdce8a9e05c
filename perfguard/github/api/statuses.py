"""Sets commit statuses, which a branch rule can require. Each links to its run and attempt, which orders them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from perfguard.github.api.client import Client
from perfguard.github.api.measured_run import WorkflowRun, order_of
from perfguard.model.errors import GitHubError

MOST_CHARACTERS = 140


class Status(Struct, frozen=True, omit_defaults=True):
    """One commit status in the form of the API.

    Attributes:
        context: `perfguard` (which a branch rule requires) or `perfguard/<lane>`.
        description: a text with counts, which is cut to 140 characters.
        target_url: the URL of the run and attempt.
    """

    context: str
    state: Literal["success", "failure", "error", "pending"]
    description: str = ""
    target_url: str = ""


class _Standing(Struct, frozen=True):
    context: str
    target_url: str | None = None


def newer_run(client: Client, run: WorkflowRun, context: str) -> str:
    """The run or attempt after `run` that has set the status `context` of its commit, in words; empty if none has.

    Raises:
        GitHubError: a request fails.
    """
    for page in client.pages(f"/commits/{run.head_sha}/statuses", list[_Standing]):
        for standing in page:  # The newest comes first.
            order = order_of(standing.target_url or "") if standing.context == context else None
            if order is not None:
                return "attempt {1} of run {0}".format(*order) if order > run.order else ""
    return ""


def set_statuses(client: Client, sha: str, statuses: Sequence[Status]) -> list[str]:
    """Set the statuses of a commit, in this order.

    Returns:
        The errors of GitHub, one sentence each, which are not raised.
    """
    problems = []
    for status in statuses:
        text = status.description
        short = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
        try:
            client.write("POST", f"/statuses/{sha}", replace(status, description=short))
        except GitHubError as error:
            problems.append(f"status {status.context}: {error}")
    return problems
