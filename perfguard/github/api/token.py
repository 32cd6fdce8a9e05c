"""The token: read once, never printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from perfguard.github.api.troubles import COMMENT_SETUP, NoToken
from perfguard.model.errors import UsageError

if TYPE_CHECKING:
    from requests import PreparedRequest

VARIABLE = "GITHUB_TOKEN"
_HIDDEN = "***"


class Token:
    """A secret that prints as `***`, also in pytest's list of local variables, and cannot be pickled."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return _HIDDEN

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a token is not written anywhere")

    @property
    def is_empty(self) -> bool:
        return not self._value

    @property
    def is_plain(self) -> bool:
        """Whether it holds printable ASCII without spaces only."""
        return all("!" <= sign <= "~" for sign in self._value)

    def scrub(self, text: str) -> str:
        """`text` with the token replaced by `***`."""
        return text.replace(self._value, _HIDDEN)

    def scrub_bytes(self, data: bytes) -> bytes:
        """The same for bytes."""
        return data.replace(self._value.encode("ascii"), _HIDDEN.encode("ascii"))

    def sign(self, request: PreparedRequest) -> PreparedRequest:
        """Add the token to a request. Passed to requests as `auth`, the only way to keep it from reading ~/.netrc."""
        request.headers["Authorization"] = f"Bearer {self._value}"
        return request


def unsigned(request: PreparedRequest) -> PreparedRequest:
    """An `auth` that adds nothing, for other hosts: without one, requests would read ~/.netrc."""
    return request


def read_token(environ: Mapping[str, str]) -> Token:
    """The token of this job.

    Raises:
        NoToken: the variable is not set, or empty.
        UsageError: it holds an invalid character; requests would print the value in its own error.
    """
    token = Token(environ.get(VARIABLE, "").strip())  # no variable for the bare value: a traceback might show it
    if token.is_empty:
        raise NoToken(f"no token in {VARIABLE}; {COMMENT_SETUP}, with the token in that step's env")
    if not token.is_plain:
        raise UsageError(f"{VARIABLE}: holds a character that no token has; set it to the bare token")
    return token


class Environ(dict[str, str]):
    """The job's environment with the token. Its repr shows no values, because tracebacks print local variables."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} variables)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the variables of a job are not written anywhere")
