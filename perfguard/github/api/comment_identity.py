"""Recognition of our comments, and the state stored in them.

The first line is a marker, the second the state, then comes the text. Anyone can write a marker, so the author must
match as well. Anyone with write access can edit our comments, so the state is parsed as hostile input.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from perfguard.model.errors import UsageError

ACTIONS_LOGIN = "github-actions[bot]"  # who a job is whose token is the job's own
_KEY = re.compile(r"[a-z0-9-]{1,32}")
_STATE = re.compile(r"<!-- perfguard:state ([A-Za-z0-9_-]{1,2800}={0,2}) -->")
_MOST_STATE_BYTES = 2_048

Count = Annotated[int, Meta(ge=0, le=2**62)]
Short = Annotated[str, Meta(max_length=200)]


class State(Struct, frozen=True):
    """The state in the second line of a comment. Anyone with write access can edit it: hostile input.

    The caller gives run, attempt, head and lanes; the rest is filled in on writing.

    Attributes:
        run, attempt: the workflow run that measured; a newer pair is never overwritten.
        head: commit that was measured.
        lanes: lanes shown in the comment.
        tier: size of the body that was written, 1 the largest.
        hash: of the written text, which shows later edits.
        whole: hash of the largest text, which identifies the result: small texts can be alike.
        nonce: a new one for each write, which identifies our own write on reading it back.
    """

    run: Count
    attempt: Count
    head: Short
    lanes: list[Short] = []
    tier: Count = 0
    hash: Short = ""
    whole: Short = ""
    nonce: Short = ""

    @property
    def order(self) -> tuple[int, int]:
        """Greater for a newer run."""
        return self.run, self.attempt


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
    """A comment of ours, taken apart.

    Attributes:
        state: None where it is missing or broken.
        text: all behind marker and state.
        body: the whole.
    """

    id: int
    state: State | None
    text: str
    body: str

    @property
    def order(self) -> tuple[int, int]:
        """Greater for a newer run; the smallest without a state."""
        return self.state.order if self.state else (-1, -1)

    @property
    def intact(self) -> bool:
        """Whether the text is unedited."""
        return self.state is not None and self.state.hash == digest(self.text)


@dataclass(frozen=True)
class Identity:
    """Identity of our comments: a key, and a login.

    Attributes:
        login: None where GitHub does not tell; then we are taken for the job's own token.
    """

    key: str
    login: str | None = None

    def ours(self, comment: Comment, *, written: bool = False) -> Ours | None:
        """`comment`, parsed, if it is ours; else None.

        Args:
            written: this job has written it, so its author is not checked.
        """
        body = (comment.body or "").replace("\r\n", "\n")  # edits in the browser insert CRLF
        first, _, rest = body.partition("\n")
        if first != marker(self.key) or not (written or (comment.user and self._is_author(comment.user))):
            return None
        second, _, text = rest.partition("\n")
        found = _STATE.fullmatch(second)
        state = _decoded(found[1]) if found else None
        return Ours(comment.id, state, (text if found else rest).strip("\n"), body)

    def _is_author(self, user: User) -> bool:
        if self.login is not None:
            # GraphQL omits "[bot]" from a login, REST does not.
            return user.login == self.login or (user.type == "Bot" and user.login == f"{self.login}[bot]")
        return user.login == ACTIONS_LOGIN and user.type == "Bot"


def marker(key: str) -> str:
    """The first line of a comment of ours."""
    return f"<!-- perfguard:v1 key={key} -->"


def check_key(key: str) -> str:
    """`key`, if it is valid in a marker.

    Raises:
        UsageError: it is not.
    """
    if not _KEY.fullmatch(key):
        raise UsageError(f"key {key[:100]!r}: not of a-z, 0-9 and '-', 32 at most; choose another")
    return key


def digest(text: str) -> str:
    """A hash of a comment's text that survives GitHub's changes of whitespace."""
    return hashlib.sha256(text.replace("\r\n", "\n").strip().encode("utf-8", "surrogatepass")).hexdigest()


def compose(key: str, state: State, text: str) -> str:
    """The body of a comment: marker, state, a blank line, text."""
    return f"{marker(key)}\n<!-- perfguard:state {_encoded(state)} -->\n\n{text}"


def _encoded(state: State) -> str:
    data = msgspec.json.encode(state)
    if len(data) > _MOST_STATE_BYTES:
        data = msgspec.json.encode(msgspec.structs.replace(state, lanes=[]))
    return base64.urlsafe_b64encode(data).decode()


def _decoded(text: str) -> State | None:
    try:
        data = base64.b64decode(text, altchars=b"-_", validate=True)
        return msgspec.json.decode(data, type=State) if len(data) <= _MOST_STATE_BYTES else None
    except (binascii.Error, UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return None
