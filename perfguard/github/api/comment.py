"""The sticky comment: created when action is needed, and kept up to date from then on.

Its first line is a marker. Anyone can write a marker, so that the author has to match as well.

The jobs of one pull request run one after the other (`concurrency` in comment.yml), and each posts only while the
measured commit is the head. Failed creations may have stored a comment, so that the second attempt looks for it first.
Our oldest comment is kept, and duplicates of it are deleted.
"""

from __future__ import annotations

import re

from msgspec import Struct

from perfguard.github.api.client import OUTAGES, ApiError, Client
from perfguard.github.api.measured_run import Pull
from perfguard.model.errors import UsageError

ACTIONS_LOGIN = "github-actions[bot]"  # The author if the token is that of the job.
_KEY = re.compile("[a-z0-9-]{1,32}")
_READ_ONLY = ("locked", "archived", "blocked")


class User(Struct, frozen=True):
    """The author of a comment; `type` is `User`, `Bot` or `Organization`."""

    login: str
    type: str = ""


class Comment(Struct, frozen=True):
    """A comment of a pull request. The account of its author may have been deleted."""

    id: int
    body: str | None = None
    user: User | None = None


def marker_of(key: str) -> str:
    """The first line of the comment of one configuration."""
    return f"<!-- perfguard:v1 key={key} -->"


def is_ours(comment: Comment, key: str, author: str) -> bool:
    """Whether perfguard wrote the comment, by its marker and its author (a login; "": the bot of Actions)."""
    first_line = (comment.body or "").partition("\n")[0].removesuffix("\r")  # Browsers insert CRLF.
    user = comment.user or User("")
    return first_line == marker_of(key) and (user.login == author if author else user == User(ACTIONS_LOGIN, "Bot"))


def post_comment(client: Client, pull: Pull, text: str, *, wants: bool, key: str = "default", author: str = "") -> str:
    """Create or update the sticky comment on `pull`.

    Args:
        text: the text without its marker; with the marker it has at most the 65,536 characters that GitHub accepts.
        wants: whether action is needed, so that a missing comment is created.
        key: the name of one of several configurations of a repository; `[a-z0-9-]{1,32}`.
        author: the login of the token; "" for the token of the job.

    Returns:
        A line for the log, with the reason if nothing was posted.

    Raises:
        GitHubError: a request failed.
        UsageError: the key is not valid in a marker.
    """
    if not _KEY.fullmatch(key):
        raise UsageError(f"key {key[:100]!r}: not of a-z, 0-9 and '-', 32 at most; choose another")
    try:
        try:
            return _post(client, pull, text, wants, key, author)
        except ApiError as error:
            if error.status not in (0, *OUTAGES):
                raise
        return _post(client, pull, text, wants, key, author)
    except ApiError as error:
        locked = error.status == 403 and any(word in str(error).lower() for word in _READ_ONLY)
        if locked or error.status == 410:
            return f"comment not posted: {error}"
        raise


def _post(client: Client, pull: Pull, text: str, wants: bool, key: str, author: str) -> str:
    path = f"/issues/{pull.number}/comments"
    comments = [each for page in client.pages(path, list[Comment]) for each in page]
    ours = sorted(each.id for each in comments if is_ours(each, key, author))
    if not ours and not wants:
        return "no comment: nobody has to act, and there is none to keep up to date"
    now = client.get(f"/pulls/{pull.number}", Pull)
    if now.state != "open":
        return f"comment not posted: #{now.number} is closed"
    if now.head.sha != pull.head.sha:
        return (
            f"comment not posted: measured {pull.head.sha[:12]}, which is outdated: #{now.number} is at "
            f"{now.head.sha[:12]}; its own run will comment"
        )
    body = {"body": f"{marker_of(key)}\n\n{text}"}
    if not ours:
        client.write("POST", path, body)
        return "comment created"
    oldest, *duplicates = ours
    client.write("PATCH", f"/issues/comments/{oldest}", body)
    for duplicate in duplicates:
        client.write("DELETE", f"/issues/comments/{duplicate}")
    return "comment edited"
