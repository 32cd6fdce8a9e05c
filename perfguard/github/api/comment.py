"""The sticky comment: created when somebody has to act, kept up to date from then on.

Its first line is a marker. Anyone can write a marker, so the author must match as well.

Jobs of one pull request follow each other (`concurrency` in comment.yml), and each posts only while the commit that it
measured is the head. A comment whose creation was answered by an error may stand there all the same, so every try looks
again first. The oldest comment of ours is kept, and twins of it are deleted.
"""

from __future__ import annotations

import enum
import re
from functools import partial

from msgspec import Struct

from perfguard.github.api.client import ApiError, Client
from perfguard.github.api.measured_run import Pull
from perfguard.model.errors import GitHubError, UsageError

MUTE_LABEL = "perfguard:mute"
ACTIONS_LOGIN = "github-actions[bot]"  # the author, if the token is the job's own
_KEY = re.compile("[a-z0-9-]{1,32}")
_READ_ONLY = ("locked", "archived", "blocked")


class Action(enum.StrEnum):
    """Outcome of posting."""

    CREATED = "created"
    EDITED = "edited"
    SILENT = "silent"  # nothing was to be written
    SKIPPED = "not posted"  # the pull request takes no comment: closed, moved on, muted, locked …
    FAILED = "post failed"


class Posted(Struct, frozen=True):
    """Outcome of posting, with a reason: one sentence that names the next step if there is one."""

    action: Action
    reason: str = ""


class Rules(Struct, frozen=True):
    """The repository's settings for its comment.

    Attributes:
        key: distinguishes several configurations of one repository; `[a-z0-9-]{1,32}`.
        drafts: also on drafts.
        author: login of the token; "": the job's own.
    """

    key: str = "default"
    drafts: bool = True
    author: str = ""

    @property
    def marker(self) -> str:
        """The first line of the comment."""
        return f"<!-- perfguard:v1 key={self.key} -->"


class User(Struct, frozen=True):
    """Author of a comment; `type` is `User`, `Bot` or `Organization`."""

    login: str
    type: str = ""


class Comment(Struct, frozen=True):
    """A comment of a pull request, from the REST API. The account of its author may be gone."""

    id: int
    body: str | None = None
    user: User | None = None


def is_ours(comment: Comment, rules: Rules) -> bool:
    """Whether we wrote the comment, by its marker and its author."""
    first_line = (comment.body or "").partition("\n")[0].removesuffix("\r")  # edits in the browser insert CRLF
    author = comment.user or User("")
    is_author = author.login == rules.author if rules.author else author == User(ACTIONS_LOGIN, "Bot")
    return first_line == rules.marker and is_author


def post_comment(client: Client, pull: Pull, text: str, *, wants: bool, rules: Rules) -> Posted:
    """Create or update the sticky comment on `pull`. GitHub errors are returned, never raised.

    Args:
        text: without marker; with it at most the 65,536 characters that GitHub takes.
        wants: somebody has to act, so that a missing comment is created.

    Raises:
        UsageError: the key is not valid in a marker.
    """
    if not _KEY.fullmatch(rules.key):
        raise UsageError(f"key {rules.key[:100]!r}: not of a-z, 0-9 and '-', 32 at most; choose another")
    try:
        return client.insist(partial(_post, client, pull, text, wants=wants, rules=rules))
    except GitHubError as error:
        refused = isinstance(error, _Refusal) or _is_read_only(error)
        return Posted(Action.SKIPPED if refused else Action.FAILED, str(error))


class _Refusal(GitHubError):
    """The pull request takes no comment now, with the reason."""


def _is_read_only(error: GitHubError) -> bool:
    """Whether the conversation is locked or gone, the repository archived, or the author blocked."""
    if not isinstance(error, ApiError):
        return False
    return error.status == 410 or (error.status == 403 and any(word in str(error).lower() for word in _READ_ONLY))


def _post(client: Client, pull: Pull, text: str, *, wants: bool, rules: Rules) -> Posted:
    path = f"/issues/{pull.number}/comments"
    comments = [each for page in client.pages(path, list[Comment]) for each in page]
    ours = sorted(each.id for each in comments if is_ours(each, rules))
    if not ours and not wants:
        return Posted(Action.SILENT, "nobody has to act, and there is no comment to keep up to date")
    _check_pull(client, pull, rules)
    body = {"body": f"{rules.marker}\n\n{text}"}
    if not ours:
        client.write("POST", path, body, once=True)
        return Posted(Action.CREATED)
    oldest, *twins = ours
    client.write("PATCH", f"/issues/comments/{oldest}", body)
    for twin in twins:
        client.write("DELETE", f"/issues/comments/{twin}")
    return Posted(Action.EDITED)


def _check_pull(client: Client, pull: Pull, rules: Rules) -> None:
    """Check right before a write that the pull request is still at the measured commit and takes a comment."""
    now = client.get(f"/pulls/{pull.number}", Pull)
    if now.state != "open":
        raise _Refusal(f"#{now.number} is closed; nothing is posted")
    if now.head.sha != pull.head.sha:
        raise _Refusal(
            f"measured {pull.head.sha[:12]}, which is outdated: #{now.number} is at {now.head.sha[:12]}; "
            "its own run will comment"
        )
    if MUTE_LABEL in [label.name for label in now.labels]:
        raise _Refusal(f"#{now.number} carries the label {MUTE_LABEL}; remove it for a comment")
    if now.draft and not rules.drafts:
        raise _Refusal(f"#{now.number} is a draft, which gets no comment here")
