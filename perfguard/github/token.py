"""The token: read once, shown to nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from perfguard.errors import UsageError
from perfguard.github.troubles import COMMENT_SETUP, NoToken

if TYPE_CHECKING:
    from requests import PreparedRequest

VARIABLE = "GITHUB_TOKEN"
_HIDDEN = "***"


class Token:
    """A secret that prints as `***`, also among the local variables of a failing test, and is never pickled."""

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
        """Whether it holds nothing but what tokens are made of."""
        return all("!" <= sign <= "~" for sign in self._value)

    def scrub(self, text: str) -> str:
        """`text`, with `***` wherever it holds the token."""
        return text.replace(self._value, _HIDDEN)

    def scrub_bytes(self, data: bytes) -> bytes:
        """The same of bytes."""
        return data.replace(self._value.encode("ascii"), _HIDDEN.encode("ascii"))

    def sign(self, request: PreparedRequest) -> PreparedRequest:
        """Put the token into a request: handed to requests as its `auth`, which alone keeps it from ~/.netrc."""
        request.headers["Authorization"] = f"Bearer {self._value}"
        return request


def unsigned(request: PreparedRequest) -> PreparedRequest:
    """An `auth` that adds nothing, for other hosts: without one, requests would look into ~/.netrc."""
    return request


def read_token(environ: Mapping[str, str]) -> Token:
    """The token of this job.

    Raises:
        NoToken: the variable is not set, or empty.
        UsageError: it holds what no token holds; requests would put the value into its own error.
    """
    token = Token(environ.get(VARIABLE, "").strip())  # in no variable of its own, which a traceback might show
    if token.is_empty:
        raise NoToken(f"no token in {VARIABLE}; {COMMENT_SETUP}, with the token in that step's env")
    if not token.is_plain:
        raise UsageError(f"{VARIABLE}: holds a character that no token has; set it to the bare token")
    return token


class Environ(dict[str, str]):
    """The job's variables, the token among them: prints none, also where a traceback shows local variables."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} variables)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("the variables of a job are not written anywhere")
