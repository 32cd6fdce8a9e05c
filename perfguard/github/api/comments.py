"""The sticky comment: created when somebody has to act, kept up to date from then on.

Every step is decided anew from GitHub's current state, inside the retry loop: a decision that is older than a wait or
a failed request creates duplicates.
"""

from __future__ import annotations

import enum
import secrets
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from perfguard.github.api.client import Client, insist
from perfguard.github.api.comment_identity import Identity, Ours, State, check_key, compose, digest
from perfguard.github.api.comment_steps import Create, Drop, Mine, Rest, decide
from perfguard.github.api.comment_writer import MUTE_LABEL, Refusal, Writer
from perfguard.github.api.pulls import Pull
from perfguard.github.api.runs import fetch_run
from perfguard.github.api.troubles import Gone, NotFound, ReadOnly, Unprocessable
from perfguard.model.errors import GitHubError

__all__ = ["BUDGET", "MUTE_LABEL", "ROOM", "Action", "Posted", "Rules", "post_comment"]

BUDGET = 60_000  # bytes of UTF-8 in a comment, its first two lines included
ROOM = 3_000  # bytes of BUDGET reserved for marker and state
_MOST_ROUNDS = 12
_SETTLE_SECONDS = 1.0  # after a write, before another look: lists lag, and another job may have written, too


class Action(enum.StrEnum):
    """Outcome of posting."""

    CREATED = "created"
    EDITED = "edited"
    SILENT = "silent"  # the comment was up to date, nothing was written
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
        author: login that our comments have, where the API does not tell it (GitHub Enterprise).
    """

    key: str = "default"
    drafts: bool = True
    author: str = ""


def post_comment(
    client: Client, pull: Pull, bodies: Sequence[str], *, wants: bool, state: State, rules: Rules | None = None
) -> Posted:
    """Create or update the sticky comment on `pull`. GitHub errors are returned, never raised.

    Args:
        bodies: the same report in several sizes, the largest first, without marker and state. Each but the last may be
            too large; the last is at most `BUDGET - ROOM` bytes of UTF-8.
        wants: somebody has to act, so that a missing comment is created.
        state: run, attempt, head and lanes of these bodies.

    Raises:
        UsageError: the key is not valid in a marker.
    """
    rules = rules or Rules()
    check_key(rules.key)
    poster = _Poster(client, pull, bodies, wants=wants, state=state, rules=rules)
    try:
        rest = poster.post()
    except (Refusal, ReadOnly, Gone) as error:
        return poster.ended(Action.SKIPPED, str(error))
    except GitHubError as error:
        return poster.ended(Action.FAILED, str(error))
    return poster.rested(rest)


class _Poster:
    """Loop for one comment: look, decide, take one step, until nothing is left to do."""

    def __init__(
        self, client: Client, pull: Pull, bodies: Sequence[str], *, wants: bool, state: State, rules: Rules
    ) -> None:
        self._client = client
        self._pull = pull
        self._bodies = bodies
        self._state = msgspec.structs.replace(state, whole=digest(bodies[0]))
        self._rules = rules
        self._mine = Mine(state.order, self._state.whole, wants)
        self._smallest_failed = 0  # GitHub refused the bodies up to this tier as too long
        self._writer = Writer(client, pull, drafts=rules.drafts)
        self._known: set[int] = {state.run}  # runs already looked up
        self._last = Action.SILENT  # the last attempted write

    def ended(self, action: Action, reason: str) -> Posted:
        """The outcome if GitHub or the pull request stopped the loop."""
        if self._mine.wrote:  # the next run does the rest
            return Posted(self._last, "written, but not looked at again", [*self._writer.warnings, reason])
        return Posted(action, reason, self._writer.warnings)

    def rested(self, rest: Rest) -> Posted:
        """The outcome if nothing was left to do."""
        standing, action, reason = rest.standing, Action.SILENT, rest.reason
        if standing is not None and standing.state is not None and standing.state.nonce in self._mine.nonces:
            action, reason = self._last, f"run {self._state.run}, attempt {self._state.attempt}"
        return Posted(action, reason, self._writer.warnings)

    def post(self) -> Rest:
        login = self._rules.author or self._writer.login()
        identity = Identity(self._rules.key, login)
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

    def _looked(self, identity: Identity) -> list[Ours]:
        """Our comments. Anyone with write access can edit a run number into one: newer runs must exist on GitHub."""
        ours = self._writer.look(identity)
        for comment in ours:
            if comment.order > self._mine.order and comment.order[0] not in self._known:
                self._known.add(comment.order[0])
                try:
                    fetch_run(self._client, comment.order[0])
                except NotFound:
                    self._mine.forged.add(comment.order[0])
        return ours

    def _round(self, identity: Identity) -> Rest | None:
        """One look and one step; a `Rest` if there was nothing to do."""
        step = decide(self._looked(identity), self._mine)
        if isinstance(step, Rest):
            return step
        if isinstance(step, Drop):
            self._writer.drop(step.comment)
            return None
        self._writer.check_pull()
        if isinstance(step, Create):
            self._write(None)
        elif step.body is None:
            self._write(step.comment)
        else:
            self._writer.patch(step.comment, step.body)
        return None

    def _write(self, comment: Ours | None) -> None:
        """Write our body, in the largest size that GitHub accepts, into `comment` or a new one."""
        tier, body = self._sized()
        try:
            if comment is None:
                self._last = Action.CREATED
                self._writer.create(body)
            else:
                self._last = Action.EDITED
                if not self._writer.patch(comment, body):
                    return
        except Unprocessable:
            if self._smallest_failed or tier == len(self._bodies):
                raise
            self._smallest_failed = tier
            return
        self._mine.wrote = True

    def _sized(self) -> tuple[int, str]:
        """Tier (from 1) and body of the largest form that fits."""
        for tier, state, text in self._sizes():
            body = compose(self._rules.key, state, text)
            if _size(body) <= BUDGET:
                return tier, body
        raise GitHubError(f"comment: even its smallest form has more than {BUDGET:,} bytes; report this as a bug")

    def _sizes(self) -> list[tuple[int, State, str]]:
        """Tier, state and text of each form that GitHub has not refused as too long, the largest first."""
        nonce = secrets.token_hex(8)
        self._mine.nonces.add(nonce)
        return [
            (tier, msgspec.structs.replace(self._state, tier=tier, hash=digest(text), nonce=nonce), text)
            for tier, text in enumerate(self._bodies, 1)
            if tier > self._smallest_failed
        ]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
