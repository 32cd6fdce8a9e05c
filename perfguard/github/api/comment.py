"""The sticky comment: created when somebody has to act, kept up to date from then on.

Its first line is a marker with the run and attempt that wrote it. Anyone can write a marker, so the author must match
as well.

GitHub offers no conditional write. So a job repeats "look, decide, take one step" until nothing is left to do. Two
racing jobs reach the same state, even if one is killed on the way. The comment with the lowest id is canonical: it is
never deleted, and the newest content moves into it before a twin is deleted. A decision that is older than a wait or a
failed request would make twins, so every step is decided anew, inside the retries.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from perfguard.github.api.client import ApiError, Client, decoded
from perfguard.github.api.measured_run import Pull, fetch_run
from perfguard.model.errors import GitHubError, UsageError

MUTE_LABEL = "perfguard:mute"
ACTIONS_LOGIN = "github-actions[bot]"  # the author, if the token is the job's own
_MARKER = re.compile(r"<!-- perfguard:v1 key=([a-z0-9-]{1,32})(?: run=(\d{1,18}) attempt=(\d{1,9}))? -->")
_READ_ONLY = ("locked", "archived", "blocked")
_MOST_ROUNDS = 12
_SETTLE_SECONDS = 1.0  # after a write, before another look: lists lag, and another job may have written, too

Order = tuple[int, int]  # run and attempt: greater for a newer result


class Action(enum.StrEnum):
    """Outcome of posting."""

    CREATED = "created"
    EDITED = "edited"
    SILENT = "silent"  # nothing was to be written
    SKIPPED = "not posted"  # the pull request takes no comment: closed, moved on, muted, locked …
    FAILED = "post failed"


class Posted(Struct, frozen=True):
    """Outcome of posting, with a reason: one sentence that names the next step if there is one.

    Attributes:
        warnings: errors that did not stop the comment.
    """

    action: Action
    reason: str = ""
    warnings: list[str] = []


class Rules(Struct, frozen=True):
    """The repository's settings for its comment.

    Attributes:
        key: tells several configurations of one repository apart; `[a-z0-9-]{1,32}`.
        drafts: also on drafts.
        author: login of the token; "": the job's own.
    """

    key: str = "default"
    drafts: bool = True
    author: str = ""


class User(Struct, frozen=True):
    """Author of a comment; `type` is `User`, `Bot` or `Organization`."""

    login: str
    type: str = ""


class Comment(Struct, frozen=True):
    """A comment of a pull request, from the REST API. The account of its author may be gone."""

    id: int
    body: str | None = None
    user: User | None = None


@dataclass(frozen=True)
class Ours:
    """A comment of ours. `order` is the smallest if the marker names no run, or one that GitHub does not know."""

    id: int
    order: Order
    body: str


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
    """Delete a twin, whose content is in the canonical comment or older."""

    comment: Ours


@dataclass(frozen=True)
class Rest:
    """Nothing is left to do."""

    reason: str


Step = Create | Edit | Drop | Rest


def decide(ours: Sequence[Ours], order: Order, *, wants: bool, wrote: bool) -> Step:
    """The next step.

    Args:
        ours: every comment of ours on the pull request, in any order.
        order: of the result that this job posts.
        wants: somebody has to act, so that a missing comment is created.
        wrote: this job has written its result.
    """
    if not ours:
        return Create() if wants else Rest("nobody has to act, and there is no comment to keep up to date")
    canonical, *twins = sorted(ours, key=lambda comment: comment.id)
    newest = max([canonical, *twins], key=lambda comment: comment.order)
    if newest.order > max(order, canonical.order):
        return Edit(canonical, newest.body)
    # What stands there is of this very run, and we have written: two jobs of one run that undo each other would loop.
    if canonical.order < order or (canonical.order == order and not wrote):
        return Edit(canonical)
    if twins:
        return Drop(twins[-1])
    return Rest("" if canonical.order == order else f"run {canonical.order[0]} is newer and has posted")


def compose(key: str, order: Order, text: str) -> str:
    """The body of a comment: marker, a blank line, text."""
    return f"<!-- perfguard:v1 key={key} run={order[0]} attempt={order[1]} -->\n\n{text}"


def parse(comment: Comment, rules: Rules, *, written: bool = False) -> Ours | None:
    """`comment`, if it is ours; else None.

    Args:
        written: this job has written it, so its author is not checked.
    """
    body = (comment.body or "").replace("\r\n", "\n")  # edits in the browser insert CRLF
    found = _MARKER.fullmatch(body.partition("\n")[0])
    author = comment.user or User("")
    is_author = author.login == rules.author if rules.author else author == User(ACTIONS_LOGIN, "Bot")
    if found is None or found[1] != rules.key or not (written or is_author):
        return None
    return Ours(comment.id, (int(found[2] or -1), int(found[3] or -1)), body)


def post_comment(
    client: Client, pull: Pull, text: str, *, wants: bool, order: Order, rules: Rules | None = None
) -> Posted:
    """Create or update the sticky comment on `pull`. GitHub errors are returned, never raised.

    Args:
        text: without marker; with it at most the 65,536 characters that GitHub takes.
        wants: somebody has to act, so that a missing comment is created.
        order: run and attempt of the text.

    Raises:
        UsageError: the key is not valid in a marker.
    """
    rules = rules or Rules()
    body = compose(rules.key, order, text)
    if not _MARKER.fullmatch(body.partition("\n")[0]):
        raise UsageError(f"key {rules.key[:100]!r}: not of a-z, 0-9 and '-', 32 at most; choose another")
    poster = _Poster(client, pull, body, wants, order, rules)
    try:
        reason = poster.post()
    except GitHubError as error:
        if poster.action is not None:  # the next run does the rest
            return Posted(poster.action, "written, but not looked at again", [*poster.warnings, str(error)])
        refused = isinstance(error, _Refusal) or _is_read_only(error)
        return Posted(Action.SKIPPED if refused else Action.FAILED, str(error), poster.warnings)
    return Posted(poster.action or Action.SILENT, reason, poster.warnings)


class _Refusal(GitHubError):
    """The pull request takes no comment now, with the reason."""


def _is_read_only(error: GitHubError) -> bool:
    """Whether the conversation is locked or gone, the repository archived, or the author blocked."""
    if not isinstance(error, ApiError):
        return False
    return error.status == 410 or (error.status == 403 and any(word in str(error).lower() for word in _READ_ONLY))


class _Poster:
    """The loop for one comment.

    Attributes:
        action: what this job has written; None: nothing yet.
        warnings: errors that did not stop the comment, a sentence each.
    """

    def __init__(self, client: Client, pull: Pull, body: str, wants: bool, order: Order, rules: Rules) -> None:
        self._client = client
        self._pull = pull
        self._body = body
        self._wants = wants
        self._order = order
        self._rules = rules
        self._written: set[int] = set()  # ids whose body is fetched one by one, because lists lag
        self._gone: set[int] = set()
        self._known = {order[0]: True}  # run -> whether GitHub knows it
        self.action: Action | None = None
        self.warnings: list[str] = []

    def post(self) -> str:
        """Why nothing is left to do."""
        for _ in range(_MOST_ROUNDS):
            step = self._client.insist(self._round)
            if isinstance(step, Rest):
                return step.reason
            self._client.clock.sleep(_SETTLE_SECONDS)
        raise GitHubError(
            f"#{self._pull.number}: the comment was written {_MOST_ROUNDS} times and never stayed; "
            "look for another workflow that posts with the same key"
        )

    def _round(self) -> Step:
        """One look and one step."""
        step = decide(self._look(), self._order, wants=self._wants, wrote=self.action is not None)
        if isinstance(step, Drop):
            self._drop(step.comment)
        elif isinstance(step, Create | Edit):
            self._check_pull()
            if isinstance(step, Create):
                path = f"/issues/{self._pull.number}/comments"
                answer = self._client.write("POST", path, {"body": self._body}, once=True)
                self._written.add(decoded(f"POST {path}", answer, Comment).id)
                self.action = Action.CREATED
            else:
                self._edit(step)
        return step

    def _look(self) -> list[Ours]:
        """All our comments on the pull request."""
        path = f"/issues/{self._pull.number}/comments"
        comments = {each.id: each for page in self._client.pages(path, list[Comment]) for each in page}
        for number in self._written - self._gone:
            try:
                comments[number] = self._client.get(f"/issues/comments/{number}", Comment)
            except ApiError as error:
                if not error.is_gone:
                    raise
                self._gone.add(number)
        found = [parse(each, self._rules, written=each.id in self._written) for each in comments.values()]
        return [self._believed(ours) for ours in found if ours is not None and ours.id not in self._gone]

    def _believed(self, ours: Ours) -> Ours:
        """The comment; with the smallest order if GitHub does not know its run, which stops no update. Whoever has
        write access can edit our comment, and other workflows post under the same name."""
        run = ours.order[0]
        if ours.order > self._order and run not in self._known:
            try:
                fetch_run(self._client, run)
                self._known[run] = True
            except ApiError as error:
                if not error.is_gone:
                    raise
                self._known[run] = False
        return ours if self._known.get(run, True) else Ours(ours.id, (-1, -1), ours.body)

    def _check_pull(self) -> None:
        """Check right before a write that the pull request is still at the measured commit and takes a comment."""
        now = self._client.get(f"/pulls/{self._pull.number}", Pull)
        if now.state != "open":
            raise _Refusal(f"#{now.number} is closed; nothing is posted")
        if now.head.sha != self._pull.head.sha:
            raise _Refusal(
                f"measured {self._pull.head.sha[:12]}, which is outdated: #{now.number} is at {now.head.sha[:12]}; "
                "its own run will comment"
            )
        if MUTE_LABEL in [label.name for label in now.labels]:
            raise _Refusal(f"#{now.number} carries the label {MUTE_LABEL}; remove it for a comment")
        if now.draft and not self._rules.drafts:
            raise _Refusal(f"#{now.number} is a draft, which gets no comment here")

    def _edit(self, step: Edit) -> None:
        """Edit a comment; one that was deleted meanwhile is not looked for again."""
        number = step.comment.id
        try:
            self._client.write("PATCH", f"/issues/comments/{number}", {"body": step.body or self._body}, once=True)
        except ApiError as error:
            if not error.is_gone:
                raise
            self._gone.add(number)
            return
        self._written.add(number)
        if step.body is None:
            self.action = self.action or Action.EDITED

    def _drop(self, comment: Ours) -> None:
        try:
            self._client.write("DELETE", f"/issues/comments/{comment.id}")
        except ApiError as error:
            if not error.is_gone:
                self.warnings.append(f"comment {comment.id}, a twin of ours, could not be deleted: {error}")
        self._gone.add(comment.id)
