"""Commit statuses: what a branch rule can require."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from perfguard.errors import GitHubError
from perfguard.github.client import Client

MOST_CHARACTERS = 140


class Status(Struct, frozen=True):
    """One commit status.

    Attributes:
        context: `perfguard` (the one that a branch rule requires) or `perfguard/<lane>`.
        description: counts only; what is beyond 140 characters is cut.
        link: where it leads, a full URL.
    """

    context: str
    state: Literal["success", "failure", "error", "pending"]
    description: str
    link: str = ""


class _Standing(Struct, frozen=True):
    context: str
    state: str
    description: str | None = None
    target_url: str | None = None


class _Combined(Struct, frozen=True):
    statuses: list[_Standing]


def set_statuses(client: Client, sha: str, statuses: Sequence[Status]) -> list[str]:
    """Set statuses of a commit, in this order; those that stand already are left alone.

    Returns:
        What went wrong, a sentence each; never raises for trouble with GitHub.
    """
    try:
        standing = _standing(client, sha)
    except GitHubError:  # then all are written, which does no harm
        standing = {}
    problems = []
    for status in statuses:
        wanted = _standing_like(status)
        if standing.get(status.context.lower()) == wanted:
            continue
        body = {"state": wanted.state, "context": wanted.context, "description": wanted.description or ""}
        if wanted.target_url:
            body["target_url"] = wanted.target_url
        try:
            client.write("POST", f"/repos/{client.repository}/statuses/{sha}", body, dict[str, Any])
        except GitHubError as error:
            problems.append(f"status {status.context}: {error}")
    return problems


def _standing(client: Client, sha: str) -> dict[str, _Standing]:
    """The latest status of each context, which GitHub compares without regard to case."""
    pages = client.pages(f"/repos/{client.repository}/commits/{sha}/status", _Combined)
    return {status.context.lower(): status for page in pages for status in page.statuses}


def _standing_like(status: Status) -> _Standing:
    text = " ".join(status.description.split())
    short = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
    return _Standing(status.context, status.state, short, status.link or None)
