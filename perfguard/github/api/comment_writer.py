"""Reads our comments on a pull request, and changes them one step at a time."""

from __future__ import annotations

from msgspec import Struct

from perfguard.github.api.client import Client
from perfguard.github.api.comment_identity import Comment, Identity, Ours
from perfguard.github.api.pulls import Pull, read_pull
from perfguard.github.api.troubles import BadCredentials, Gone, NotFound, Refused
from perfguard.model.errors import GitHubError

MUTE_LABEL = "perfguard:mute"

_VIEWER = "query { viewer { login } }"


class _Person(Struct, frozen=True):
    login: str


class _Viewer(Struct, frozen=True):
    viewer: _Person


class Refusal(Exception):
    """The pull request takes no comment now, with the reason."""


class Writer:
    """The comments of one pull request.

    Attributes:
        written: ids whose current body is fetched one by one, because lists lag.
        gone: ids that were deleted.
        vanished: how often an edit found its comment deleted.
        warnings: errors that did not stop the comment, a sentence each.
    """

    def __init__(self, client: Client, pull: Pull, *, drafts: bool) -> None:
        self._client = client
        self._pull = pull
        self._drafts = drafts
        self.written: set[int] = set()
        self.gone: set[int] = set()
        self.vanished = 0
        self.warnings: list[str] = []

    def login(self) -> str | None:
        """Our login; None if GitHub does not give it."""
        try:
            return self._client.graphql(_VIEWER, _Viewer).viewer.login
        except BadCredentials:
            raise
        except Refused:
            return None

    def look(self, identity: Identity) -> list[Ours]:
        """All our comments on the pull request."""
        comments: dict[int, Comment] = {}
        for page in self._client.pages(self._comments, list[Comment]):
            comments.update({comment.id: comment for comment in page})
        for number in self.written - self.gone:
            try:
                comments[number] = self._client.get(self._path(number), Comment)
            except (NotFound, Gone):
                self.gone.add(number)
        left = [comment for number, comment in comments.items() if number not in self.gone]
        found = [identity.ours(comment, written=comment.id in self.written) for comment in left]
        return [ours for ours in found if ours is not None]

    def check_pull(self) -> None:
        """Check right before a write that the pull request is still at the measured commit and takes a comment.

        Raises:
            Refusal: it is not, or does not.
        """
        now, is_open = read_pull(self._client, self._pull.number)
        if not is_open:
            raise Refusal(f"#{now.number} is closed; nothing is posted")
        if now.head_sha != self._pull.head_sha:
            raise Refusal(
                f"measured {self._pull.head_sha[:12]}, which is outdated: #{now.number} is at {now.head_sha[:12]}; "
                "its own run will comment"
            )
        if MUTE_LABEL in now.labels:
            raise Refusal(f"#{now.number} carries the label {MUTE_LABEL}; remove it for a comment")
        if now.draft and not self._drafts:
            raise Refusal(f"#{now.number} is a draft, which gets no comment here")

    def create(self, body: str) -> None:
        """Create a comment, without retries: after an error, the next look shows whether it was stored."""
        answer = self._client.write_once("POST", self._comments, {"body": body}, Comment)
        self.written.add(answer.id)

    def patch(self, comment: Ours, body: str) -> bool:
        """Edit a comment. False if it was deleted meanwhile; the second time, the error is raised."""
        try:
            self._client.write_once("PATCH", self._path(comment.id), {"body": body}, Comment)
        except (NotFound, Gone):
            self.gone.add(comment.id)
            self.vanished += 1
            if self.vanished > 1:
                raise
            return False
        self.written.add(comment.id)
        return True

    def drop(self, comment: Ours) -> None:
        """Delete a duplicate of our comment."""
        try:
            self._client.delete(self._path(comment.id))
        except (NotFound, Gone):
            pass
        except GitHubError as error:
            self.warnings.append(f"comment {comment.id}, a twin of ours, could not be deleted: {error}")
        self.gone.add(comment.id)

    @property
    def _comments(self) -> str:
        return f"/repos/{self._client.repository}/issues/{self._pull.number}/comments"

    def _path(self, number: int) -> str:
        return f"/repos/{self._client.repository}/issues/comments/{number}"
