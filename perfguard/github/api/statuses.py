"""Commit statuses, which a branch rule can require.

Each status links to its run and attempt. The link orders them: an older run that posts late does not overwrite a newer
one's status.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from perfguard.github.api.client import Client
from perfguard.model.errors import GitHubError

MOST_CHARACTERS = 140
_RUN = re.compile(r"/actions/runs/(\d{1,18})(?:/attempts/(\d{1,9}))?$")


class Status(Struct, frozen=True, omit_defaults=True):
    """One commit status, as the API takes and gives it.

    Attributes:
        context: `perfguard` (the one that a branch rule requires) or `perfguard/<lane>`.
        description: counts only, cut to 140 characters.
        target_url: the run and attempt.
    """

    context: str
    state: Literal["success", "failure", "error", "pending"]
    description: str | None = ""
    target_url: str | None = ""

    @property
    def order(self) -> tuple[int, int]:
        """Run and attempt that it links to; the smallest for other links, such as another tool's."""
        found = _RUN.search(self.target_url or "")
        return (int(found[1]), int(found[2] or 1)) if found else (0, 0)


class _Combined(Struct, frozen=True):
    statuses: list[Status]


def set_statuses(client: Client, sha: str, statuses: Sequence[Status]) -> list[str]:
    """Set statuses of a commit, in this order. Equal statuses and those of a newer run are left alone.

    Returns:
        GitHub errors, a sentence each; they are never raised.
    """
    try:  # contexts are compared without regard to case
        pages = client.pages(f"/commits/{sha}/status", _Combined)
        standing = {status.context.lower(): status for page in pages for status in page.statuses}
        unread = ""
    except GitHubError as error:
        standing, unread = {}, f"what stands there could not be read ({error})"
    problems = []
    for status in map(_cut, statuses):
        if unread and status.state == "success":  # a newer run may have found something
            problems.append(f"status {status.context}: not set, since {unread}")
            continue
        found = standing.get(status.context.lower())
        if found is not None and (found == status or found.order > status.order):
            continue
        try:
            client.write("POST", f"/statuses/{sha}", status)
        except GitHubError as error:
            problems.append(f"status {status.context}: {error}")
    return problems


def _cut(status: Status) -> Status:
    text = " ".join((status.description or "").split())
    short = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
    return msgspec.structs.replace(status, description=short)
