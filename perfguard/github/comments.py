"""The one comment: created when somebody has to act, kept true from then on.

Every step is decided anew from what GitHub shows, inside the loop of tries: a decision that is older than a wait or
a failed request makes twins.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perfguard.errors import GitHubError
from perfguard.github.client import Client, insist
from perfguard.github.deciding import Create, Drop, Mine, Rest, Retire, decide
from perfguard.github.identity import Comment, Identity, Ours, State, check_key, compose, digest, retired
from perfguard.github.pulls import Pull, read_pull
from perfguard.github.troubles import BadCredentials, Gone, NotFound, ReadOnly, Refused, Unprocessable

BUDGET = 60_000  # bytes of UTF-8 in a comment, its first two lines included
ROOM = 3_000  # of which marker and state take no more than this
MUTE_LABEL = "perfguard:mute"
_MOST_ROUNDS = 12
_SETTLE_SECONDS = 1.0  # after a write, before another look: lists lag, and another job may have written, too

_VIEWER = "query { viewer { login } }"
_MINIMIZE = (
    "mutation($subject: ID!) { minimizeComment(input: {subjectId: $subject, classifier: OUTDATED}) "
    "{ minimizedComment { isMinimized } } }"
)


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
        tier: of the body that was written, 1 the largest; 0 where none was.
        warnings: what went wrong beside it.
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


class _Person(Struct, frozen=True):
    login: str


class _Viewer(Struct, frozen=True):
    viewer: _Person


class _Refusal(Exception):
    """The pull request takes no comment now; says why."""


def post_comment(
    client: Client, pull: Pull, bodies: Sequence[str], *, wants: bool, state: State, rules: Rules | None = None
) -> Posted:
    """Make the one comment of perfguard on `pull` say the present truth. Never raises for trouble with GitHub.

    Args:
        bodies: the same in several sizes, the largest first, without marker and state; each but the last may be
            too large, the last is at most `BUDGET - ROOM` bytes of UTF-8.
        wants: somebody has to act, so that a comment is created where there is none.
        state: run, attempt, head and lanes of these bodies.

    Raises:
        UsageError: a key that cannot stand in a marker.
    """
    rules = rules or Rules()
    check_key(rules.key)
    poster = _Poster(client, pull, bodies, msgspec.structs.replace(state, alarm=wants), rules)
    try:
        rest = poster.post()
    except (_Refusal, ReadOnly, Gone) as error:
        return poster.ended(Action.SKIPPED, str(error))
    except GitHubError as error:
        return poster.ended(Action.FAILED, str(error))
    return poster.rested(rest)


class _Poster:
    """One comment's way: look, decide, do one thing, until nothing is left to do."""

    def __init__(self, client: Client, pull: Pull, bodies: Sequence[str], state: State, rules: Rules) -> None:
        self._client = client
        self._pull = pull
        self._bodies = bodies
        self._state = msgspec.structs.replace(state, whole=digest(bodies[0]))
        self._rules = rules
        self._mine = Mine(state.order, self._state.whole, state.alarm)
        self._smallest_failed = 0  # bodies up to this one were refused as too long
        self._written: set[int] = set()  # their present body is asked for: a list may lag behind
        self._gone: set[int] = set()
        self._vanished = 0
        self._last = Action.SILENT  # kind of the last write that was tried
        self._warnings: list[str] = []

    def ended(self, action: Action, reason: str) -> Posted:
        """What became of it where GitHub, or the pull request, put an end to it."""
        if self._mine.wrote:  # the next run sees to what is left
            return Posted(self._last, "written, but not looked at again", warnings=[*self._warnings, reason])
        return Posted(action, reason, warnings=self._warnings)

    def rested(self, rest: Rest) -> Posted:
        """What became of it where nothing was left to do."""
        standing = rest.standing
        if standing is None:
            return Posted(Action.SILENT, rest.reason, warnings=self._warnings)
        link = f"/{self._client.repository}/pull/{self._pull.number}#issuecomment-{standing.id}"
        if standing.state is not None and standing.state.nonce in self._mine.nonces:
            reason = f"run {self._state.run}, attempt {self._state.attempt}"
            return Posted(self._last, reason, standing.id, link, standing.state.tier, self._warnings)
        return Posted(Action.SILENT, rest.reason, standing.id, link, 0, self._warnings)

    def post(self) -> Rest:
        identity = Identity(self._rules.key, self._rules.author or self._login())
        patience = self._client.patience()
        for _ in range(_MOST_ROUNDS):
            rest = insist(patience, lambda: self._round(identity))
            if rest is not None:
                return rest
            self._client.clock.sleep(_SETTLE_SECONDS + self._client.clock.jitter())
        raise GitHubError(
            f"#{self._pull.number}: the comment was written {_MOST_ROUNDS} times and never stayed; "
            "look for another workflow that posts with the same key"
        )

    def _login(self) -> str | None:
        try:
            return self._client.graphql(_VIEWER, {}, _Viewer).viewer.login
        except BadCredentials:
            raise
        except Refused:
            return None

    def _round(self, identity: Identity) -> Rest | None:
        """One look and one step; the rest if there was nothing to do."""
        step = decide(self._look(identity), self._mine, self._rules.notify)
        if isinstance(step, Rest):
            return step
        if isinstance(step, Drop):
            self._drop(step.comment)
            return None
        self._check_pull()
        if isinstance(step, Retire):
            self._retire(step.comment)
        elif isinstance(step, Create):
            self._write(None)
        elif step.body is None:
            self._write(step.comment)
        else:
            self._patch(step.comment, step.body)
        return None

    def _look(self, identity: Identity) -> list[Ours]:
        """All of ours that stand on the pull request."""
        comments: dict[int, Comment] = {}
        for page in self._client.pages(self._comments, list[Comment]):
            comments.update({comment.id: comment for comment in page})
        for number in self._written - self._gone:
            try:
                comments[number] = self._client.get(self._path(number), Comment)
            except (NotFound, Gone):
                self._gone.add(number)
        left = [comment for number, comment in comments.items() if number not in self._gone]
        found = [identity.ours(comment, written=comment.id in self._written) for comment in left]
        return [ours for ours in found if ours is not None]

    def _check_pull(self) -> None:
        """Right before a write: whether the pull request still is what was measured, and takes a comment."""
        now, is_open = read_pull(self._client, self._pull.number)
        if not is_open:
            raise _Refusal(f"#{now.number} is closed; nothing is posted")
        if now.head_sha != self._pull.head_sha:
            raise _Refusal(
                f"measured {self._pull.head_sha[:12]}, which is outdated: #{now.number} is at {now.head_sha[:12]}; "
                "its own run will comment"
            )
        if MUTE_LABEL in now.labels:
            raise _Refusal(f"#{now.number} carries the label {MUTE_LABEL}; remove it for a comment")
        if now.draft and not self._rules.drafts:
            raise _Refusal(f"#{now.number} is a draft, which gets no comment here")

    def _write(self, comment: Ours | None) -> None:
        """Our own body, in the largest size that is taken, into a comment or a new one."""
        tier, body = self._sized()
        try:
            if comment is None:
                self._last = Action.CREATED
                answer = self._client.write_once("POST", self._comments, {"body": body}, Comment)
                self._written.add(answer.id)
            else:
                self._last = Action.EDITED
                if not self._patch(comment, body):
                    return
        except Unprocessable:
            if self._smallest_failed or tier == len(self._bodies):
                raise
            self._smallest_failed = tier
            return
        self._mine.wrote = True

    def _sized(self) -> tuple[int, str]:
        """Tier, from 1, and body."""
        nonce = secrets.token_hex(8)
        self._mine.nonces.add(nonce)
        for tier, text in enumerate(self._bodies, 1):
            state = msgspec.structs.replace(self._state, tier=tier, hash=digest(text), nonce=nonce)
            body = compose(self._rules.key, state, text)
            if tier > self._smallest_failed and len(body.encode("utf-8", "surrogatepass")) <= BUDGET:
                return tier, body
        raise GitHubError(f"comment: even its smallest form has more than {BUDGET:,} bytes; report this as a bug")

    def _patch(self, comment: Ours, body: str) -> bool:
        """Whether the comment was still there."""
        try:
            self._client.write_once("PATCH", self._path(comment.id), {"body": body}, Comment)
        except (NotFound, Gone):
            self._gone.add(comment.id)
            self._vanished += 1
            if self._vanished > 1:
                raise
            return False
        self._written.add(comment.id)
        return True

    def _retire(self, comment: Ours) -> None:
        body = {"body": retired(comment.body, self._rules.key)}
        self._gone.add(comment.id)
        try:
            self._client.write("PATCH", self._path(comment.id), body, Comment)
        except (NotFound, Gone):
            return
        try:
            self._client.graphql(_MINIMIZE, {"subject": comment.node_id}, dict[str, Any])
        except GitHubError as error:
            self._warnings.append(f"comment {comment.id} could not be hidden: {error}")

    def _drop(self, comment: Ours) -> None:
        try:
            self._client.delete(self._path(comment.id))
        except (NotFound, Gone):
            pass
        except GitHubError as error:
            self._warnings.append(f"comment {comment.id}, a twin of ours, could not be deleted: {error}")
        self._gone.add(comment.id)

    @property
    def _comments(self) -> str:
        return f"/repos/{self._client.repository}/issues/{self._pull.number}/comments"

    def _path(self, number: int) -> str:
        return f"/repos/{self._client.repository}/issues/comments/{number}"
