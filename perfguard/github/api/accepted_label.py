"""A maintainer's permission for one commit to be worse: a label, and a comment with the commit and the reason.

The label alone names no commit and stays after the next push. So the comment decides: its author must have write
access to the repository, and it holds for the named commit only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from msgspec import Struct

from perfguard.github.api.client import Client
from perfguard.github.api.comment_identity import Comment
from perfguard.github.api.pulls import Pull
from perfguard.github.api.troubles import Gone, NotFound
from perfguard.model.errors import GitHubError

ACCEPTED_LABEL = "perfguard:accepted"
# Matches only at the start of a comment, where neither a quotation nor a code block can begin like this.
_WORD = re.compile(rf"{ACCEPTED_LABEL} (?P<sha>[0-9a-f]{{7,64}})[ :]+(?P<reason>\S[^\r\n]*)")
_LOGIN = re.compile(r"[A-Za-z0-9_-]{1,100}")
_MAY_WRITE = ("admin", "write")  # GitHub reports `maintain` as write, `triage` as read


@dataclass(frozen=True)
class Easing:
    """Whether one commit may be worse.

    Attributes:
        by: login of the maintainer; "" without permission.
        reason: in their words.
        problem: why the label has no effect.
    """

    by: str = ""
    reason: str = ""
    problem: str = ""


class _Permission(Struct, frozen=True):
    permission: str


def read_easing(client: Client, pull: Pull) -> Easing:
    """The permission for the pull request's head. A label for an earlier head is removed.

    Raises:
        GitHubError: GitHub cannot be asked.
    """
    if ACCEPTED_LABEL not in pull.labels:
        return Easing()
    earlier = False
    may_write: dict[str, bool] = {}
    for login, sha, reason in _words(client, pull):
        if login not in may_write:
            may_write[login] = _may_write(client, login)
        if may_write[login] and pull.head_sha.startswith(sha):
            return Easing(login, reason)
        earlier |= may_write[login]
    if earlier:
        return Easing(problem=_taken_off(client, pull))
    return Easing(
        problem=f"label {ACCEPTED_LABEL}: without effect until somebody who may write here comments "
        f"'{ACCEPTED_LABEL} {pull.head_sha[:12]}: why', and the comment job runs again"
    )


def _words(client: Client, pull: Pull) -> list[tuple[str, str, str]]:
    """(login, commit, reason) of every comment by a person that begins with the label's words, the latest first."""
    found = []
    for page in client.pages(f"/repos/{client.repository}/issues/{pull.number}/comments", list[Comment]):
        for comment in page:
            word = _WORD.match(comment.body or "")
            user = comment.user
            if word and user is not None and user.type == "User" and _LOGIN.fullmatch(user.login):
                found.append((user.login, word["sha"], word["reason"].strip()))
    return found[::-1]


def _may_write(client: Client, login: str) -> bool:
    path = f"/repos/{client.repository}/collaborators/{login}/permission"
    try:
        return client.get(path, _Permission).permission in _MAY_WRITE
    except (NotFound, Gone):
        return False


def _taken_off(client: Client, pull: Pull) -> str:
    said = f"label {ACCEPTED_LABEL}: was for an earlier commit than {pull.head_sha[:12]}"
    try:
        client.delete(f"/repos/{client.repository}/issues/{pull.number}/labels/{quote(ACCEPTED_LABEL, safe='')}")
    except (NotFound, Gone):
        pass
    except GitHubError as error:
        return f"{said}; it could not be taken off: {error}"
    return f"{said}, and was taken off"
