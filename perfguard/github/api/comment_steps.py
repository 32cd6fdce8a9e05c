"""The next step for our comment, a pure function of the comments on the pull request, called again after every write.

GitHub offers no conditional write. So a job repeats "look, decide, take one step" until nothing is left to do. Two
racing jobs reach the same state, even if one is killed on the way. The comment with the lowest id is canonical: it is
never deleted, and the newest content moves into it before a twin is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfguard.github.api.comment_identity import Ours


@dataclass(frozen=True)
class Rest:
    """Nothing to do: `reason` says why, `standing` is the comment that stays."""

    reason: str
    standing: Ours | None = None


@dataclass(frozen=True)
class Create:
    """Write a new comment."""


@dataclass(frozen=True)
class Edit:
    """Replace a comment's body: by ours, or by `body`, a newer run's text from a twin."""

    comment: Ours
    body: str | None = None


@dataclass(frozen=True)
class Drop:
    """Delete a twin whose content is in the canonical comment or older."""

    comment: Ours


Step = Rest | Create | Edit | Drop


@dataclass
class Mine:
    """The content that this job posts.

    Attributes:
        order: (run, attempt).
        whole: hash of the text in its largest size.
        alarm: somebody has to act.
        nonces: of this job's writes so far, including those without an answer.
        wrote: an answer confirmed that one of them was stored.
        forged: runs that a comment claims and that GitHub does not know; they never count as newer.
    """

    order: tuple[int, int]
    whole: str
    alarm: bool
    nonces: set[str] = field(default_factory=set)
    wrote: bool = False
    forged: set[int] = field(default_factory=set)

    def order_of(self, comment: Ours) -> tuple[int, int]:
        """Which run and attempt it is of; before all others where it lies about that."""
        return (-1, -1) if comment.order[0] in self.forged else comment.order

    def stands_in(self, comment: Ours) -> bool:
        """Whether a comment says it already.

        GitHub may reformat the text, so after a write the nonce decides.
        """
        state = comment.state
        if state is None:
            return False
        if state.nonce in self.nonces:
            return True
        if self.wrote and comment.order == self.order:
            return True  # another job of the same run wrote after us: two jobs that undo each other would loop forever
        return comment.intact and state.whole == self.whole


def decide(ours: Sequence[Ours], mine: Mine) -> Step:
    """The next step. `ours`: every comment of ours on the pull request, in any order."""
    if not ours:
        return Create() if mine.alarm else Rest("nobody has to act, and there is no comment to keep true")
    canonical, *twins = sorted(ours, key=lambda comment: comment.id)
    newest = max(reversed([canonical, *twins]), key=mine.order_of)
    if mine.order_of(newest) > mine.order:
        if newest.id != canonical.id and mine.order_of(newest) > mine.order_of(canonical):
            return Edit(canonical, newest.body)
        rest = Rest(f"run {newest.order[0]}, attempt {newest.order[1]}, is newer and has posted", canonical)
    elif mine.stands_in(canonical):
        rest = Rest("the comment says so already", canonical)
    else:
        return Edit(canonical)
    return Drop(twins[-1]) if twins else rest
