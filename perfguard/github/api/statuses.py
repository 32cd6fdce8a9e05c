"""Commit statuses, which a branch rule can require.

Each status links to its run and attempt. The link orders them: an older run that posts late does not overwrite a newer
one's status.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from perfguard.github.api.client import Client
from perfguard.model.errors import GitHubError

MOST_CHARACTERS = 140
_RUN = re.compile(r"/actions/runs/(\d{1,18})(?:/attempts/(\d{1,9}))?$")


class Status(Struct, frozen=True):
    """One commit status.

    Attributes:
        context: `perfguard` (the one that a branch rule requires) or `perfguard/<lane>`.
        description: counts only, cut to 140 characters.
        link: target, a full URL.
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
    """Set statuses of a commit, in this order. Equal statuses and those of a newer run are left alone.

    Returns:
        GitHub errors, a sentence each; they are never raised.
    """
    try:
        standing = _standing(client, sha)
        unread = ""
    except GitHubError as error:
        standing, unread = {}, f"what stands there could not be read ({error})"
    problems = []
    for status in statuses:
        if unread and status.state == "success":  # a newer run may have found something
            problems.append(f"status {status.context}: not set, since {unread}")
            continue
        wanted = _standing_like(status)
        found = standing.get(status.context.lower())
        if found == wanted:
            continue
        if found is not None and _order(found) > _order(wanted):
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


def _order(standing: _Standing) -> tuple[int, int]:
    """Run and attempt that a status links to; the smallest for other links, such as another tool's."""
    found = _RUN.search(standing.target_url or "")
    return (int(found[1]), int(found[2] or 1)) if found else (0, 0)


def _standing_like(status: Status) -> _Standing:
    text = " ".join(status.description.split())
    short = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
    return _Standing(status.context, status.state, short, status.link or None)
