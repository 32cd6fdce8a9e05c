"""The posts of a run: the sticky comment, and commit statuses, which a branch rule can require.

The comment is created when action is needed, and kept up to date from then on.

Its first line is a marker with the run that wrote it, which no earlier run replaces. Anyone can write a marker, so that
the author has to be the owner of the token as well.

The jobs of one pull request run one after the other (`concurrency` in comment.yml), and each posts only while the
measured commit is the head. Failed creations may have stored a comment, so that the second attempt looks for it first.
Our oldest comment is kept, and duplicates of it are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from perfguard.github.api.client import OUTAGES, ApiError, Client
from perfguard.github.api.measured_run import Pull, WorkflowRun, order_of
from perfguard.model.errors import GitHubError

MOST_CHARACTERS = 140  # Of a status's description.
TOTAL = "perfguard"  # The status of all lanes.
_MARKER = re.compile(r"<!-- perfguard:v1 key=default(?: run=([0-9]{1,18})\.([0-9]{1,9}))? -->")
_READ_ONLY = ("locked", "archived", "blocked")


class User(Struct, frozen=True):
    """The author of a comment. Only logins of bots end in `[bot]`."""

    login: str


class Comment(Struct, frozen=True):
    """A comment of a pull request. The account of its author may have been deleted."""

    id: int
    body: str | None = None
    user: User | None = None


def order_in(comment: Comment) -> tuple[int, int] | None:
    """The order of the run in the comment's marker; None if it has no marker."""
    first_line = (comment.body or "").partition("\n")[0].removesuffix("\r")  # Browsers insert CRLF.
    marker = _MARKER.fullmatch(first_line)
    return (int(marker[1] or 0), int(marker[2] or 0)) if marker else None


def post_comment(client: Client, pull: Pull, text: str, *, wants: bool, order: tuple[int, int]) -> str:
    """Create or update the sticky comment on `pull`.

    Args:
        text: the text without its marker; with the marker it has at most the 65,536 characters that GitHub accepts.
        wants: whether action is needed, so that a missing comment is created.
        order: that of the run that the text is about. The comment of a later one stays.

    Returns:
        A line for the log, with the reason if nothing was posted.

    Raises:
        GitHubError: a request failed.
    """
    try:
        try:
            return _post(client, pull, text, wants, order)
        except ApiError as error:
            if error.status not in (0, 404, *OUTAGES):
                raise
        return _post(client, pull, text, wants, order)  # An answer was lost, or our comment was deleted meanwhile.
    except ApiError as error:
        locked = error.status == 403 and any(word in str(error).lower() for word in _READ_ONLY)
        if locked or error.status == 410:
            return f"comment not posted: {error}"
        raise


def _post(client: Client, pull: Pull, text: str, wants: bool, order: tuple[int, int]) -> str:
    path, measured = f"/issues/{pull.number}/comments", pull.head.sha
    ours = _ours(client, [each for page in client.pages(path, list[Comment]) for each in page])
    if not ours and not wants:
        return "no comment: nobody has to act, and there is none to keep up to date"
    newest = max(ours.values(), default=order)
    if newest > order:
        return "comment not posted: attempt {1} of run {0}, which is newer, has written it".format(*newest)
    now = client.get(f"/pulls/{pull.number}", Pull)
    if now.state != "open":
        return f"comment not posted: #{now.number} is closed"
    if now.head.sha != measured:
        return (
            f"comment not posted: measured {measured[:12]}, which is outdated: #{now.number} is at "
            f"{now.head.sha[:12]}; its own run will comment"
        )
    body = {"body": f"<!-- perfguard:v1 key=default run={order[0]}.{order[1]} -->\n\n{text}"}
    if not ours:
        client.write("POST", path, body)
        return "comment created"
    oldest, *duplicates = sorted(ours)
    client.write("PATCH", f"/issues/comments/{oldest}", body)
    for duplicate in duplicates:
        client.delete(f"/issues/comments/{duplicate}")
    return "comment edited"


def _ours(client: Client, comments: list[Comment]) -> dict[int, tuple[int, int]]:
    """Id -> order of the comments with a marker that the owner of the token wrote."""
    marked = {each: order for each in comments if (order := order_in(each)) is not None}
    login = client.login() if marked else ""
    return {each.id: order for each, order in marked.items() if each.user is not None and each.user.login == login}


# -- commit statuses: each links to its run and attempt, which orders them --------------------------------------------


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


def newer_run(client: Client, run: WorkflowRun) -> str:
    """The run or attempt after `run` that has set the total status of its commit, in words; empty if none has.

    Raises:
        GitHubError: a request fails.
    """
    for page in client.pages(f"/commits/{run.head_sha}/statuses", list[_Standing]):
        for standing in page:  # The newest comes first.
            order = order_of(standing.target_url or "") if standing.context == TOTAL else None
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
