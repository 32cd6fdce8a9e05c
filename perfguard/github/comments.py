from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from perfguard.github.client import Client
from perfguard.github.identity import State
from perfguard.github.pulls import Pull

BUDGET = 60_000  # bytes of UTF-8 in a comment, its first two lines included
ROOM = 3_000  # of which marker and state take no more than this


class Action(enum.StrEnum):
    """What became of a comment."""

    CREATED = "created"
    EDITED = "edited"
    SILENT = "silent"  # all is as it should be, nothing was written
    SKIPPED = "not posted"  # the pull request takes no comment: closed, moved on, muted, locked …
    FAILED = "post failed"


class Posted(Struct, frozen=True):
    """What became of a comment, and why, in one sentence that names the next step where there is one.

    Attributes:
        comment: id of the comment that stands now; None where there is none or nobody knows.
        link: `/owner/name/pull/7#issuecomment-1`, empty without a comment.
        tier: of the body that stands, 1 the largest; 0 where none was written.
    """

    action: Action
    reason: str = ""
    comment: int | None = None
    link: str = ""
    tier: int = 0
    warnings: list[str] = []


class Rules(Struct, frozen=True):
    """How a repository wants its comment.

    Attributes:
        key: tells several configurations of one repository apart; `[a-z0-9-]{1,32}`.
        notify: `new-comment`: a comment that turns red is hidden and written anew, which sends mail.
        drafts: also on drafts.
        author: login that our comments have, where the API does not tell it (GitHub Enterprise).
    """

    key: str = "default"
    notify: Literal["edit", "new-comment"] = "edit"
    drafts: bool = True
    author: str = ""


def post_comment(
    client: Client, pull: Pull, bodies: Sequence[str], *, wants: bool, state: State, rules: Rules | None = None
) -> Posted:
    """Make the one comment of perfguard on `pull` say the present truth. Never raises for trouble with GitHub.

    Args:
        bodies: the same in several sizes, the largest first, without marker and state; each but the last may be
            too large, the last is at most `BUDGET - ROOM` bytes of UTF-8.
        wants: somebody has to act, so that a comment is created where there is none.
        state: run, attempt, head and lanes of these bodies.
    """
    raise NotImplementedError
