"""Errors of GitHub, classified by their remedy.

::

    GitHubError
    ├── NoToken               nothing was asked
    ├── Passing               the same request may work later
    │   ├── Outage            no answer, or 500, 502, 503, 504; a write may have been stored
    │   └── RateLimited       nothing was stored
    └── Refused               the same request would fail again
        ├── BadCredentials    401
        ├── NotPermitted      403, a permission is missing
        ├── ReadOnly          403, locked, archived or blocked
        ├── NotFound          404
        ├── Gone              410
        ├── Unprocessable     422
        └── Unexpected        an answer that is not from GitHub
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from perfguard.model.errors import GitHubError

COMMENT_SETUP = "post from a workflow_run job of the base repository (.github/workflows/comment.yml)"
_OUTAGES = (500, 502, 503, 504)
_READ_ONLY = ("locked", "archived", "blocked")
_LIMITS = ("rate limit", "abuse detection")  # the second on older servers
_MOST_WORDS = 300  # of an untrusted server's message


class NoToken(GitHubError):
    """No token in the environment."""


class Passing(GitHubError):
    """The same request may work later."""


class Outage(Passing):
    """No answer, or a server error of GitHub. A write may have been stored nevertheless."""


class RateLimited(Passing):
    """Too many requests.

    Attributes:
        seconds: wait given in the answer; None if missing.
        until: reset time of the primary limit, since the epoch; None for a secondary limit.
    """

    def __init__(self, message: str, seconds: float | None = None, until: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.until = until


class Refused(GitHubError):
    """The same request would fail again."""


class BadCredentials(Refused):
    """The token is wrong or has expired."""


class NotPermitted(Refused):
    """The token lacks a permission."""


class ReadOnly(Refused):
    """The conversation is locked, the repository archived, or the author blocked."""


class NotFound(Refused):
    """The resource does not exist, or the token may not read it."""


class Gone(Refused):
    """The resource was deleted."""


class Unprocessable(Refused):
    """A well-formed request that GitHub rejects: too long, empty, spam."""


class Unexpected(Refused):
    """An answer that is not from GitHub's API: a proxy's page, another host, another shape."""


class _Detail(Struct, frozen=True):
    resource: str | None = None
    field: str | None = None
    code: str | None = None
    message: str | None = None

    def __str__(self) -> str:
        return self.message or " ".join(part for part in (self.resource, self.field, self.code) if part)


class _Body(Struct, frozen=True):
    """The body of a GitHub error, as far as it can be parsed."""

    message: str = ""
    errors: list[_Detail | str] | str = []


def trouble(what: str, status: int, headers: Mapping[str, str], body: bytes) -> GitHubError:
    """The error for an unsuccessful answer.

    Args:
        what: the request, for the message: `POST /repos/o/r/statuses/…`.
        status: 400 or more.
        headers: with case-insensitive keys, as requests keeps them.
    """
    said = _said(body)
    text = f"{what}: {status}" + (f" {said}" if said else "")
    if status in (403, 429):
        return _forbidden(text, said.lower(), status, headers)
    if status in _OUTAGES:
        return Outage(f"{text}; GitHub is unwell, run the job again later")
    if status == 401:
        return BadCredentials(f"{text}; the token is wrong or has expired, run the job again with a fresh one")
    if status == 404:
        return NotFound(f"{text}; check the number and that the token may see the repository")
    if status == 410:
        return Gone(f"{text}; it is gone for good")
    if status == 422:
        return Unprocessable(f"{text}; GitHub takes the request for wrong, see its words")
    return Refused(f"{text}; report this as a bug of perfguard")


def _forbidden(text: str, said: str, status: int, headers: Mapping[str, str]) -> GitHubError:
    seconds = _number(headers.get("retry-after"))
    exhausted = headers.get("x-ratelimit-remaining", "").strip() == "0"
    if seconds is not None or exhausted or status == 429 or any(words in said for words in _LIMITS):
        # GitHub's rule: retry-after takes precedence over the reset time.
        reset = _number(headers.get("x-ratelimit-reset")) if exhausted and seconds is None else None
        return RateLimited(text, seconds, reset)
    if any(word in said for word in _READ_ONLY):
        return ReadOnly(f"{text}; the report is in the job's summary")
    needed = headers.get("x-accepted-github-permissions", "").strip()[:_MOST_WORDS]
    named = f"the token lacks {needed}" if needed else "the token lacks a permission"
    return NotPermitted(f"{text}; {named}: {COMMENT_SETUP} with that permission")


def _said(body: bytes) -> str:
    """The body's message in one line; empty if it is not a GitHub error."""
    try:
        read = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    details = [read.errors] if isinstance(read.errors, str) else [str(detail) for detail in read.errors]
    words = " ".join(f"{read.message} {'; '.join(details)}".split())
    return "".join(sign for sign in words if sign.isprintable())[:_MOST_WORDS]


def _number(text: str | None) -> float | None:
    """A count of seconds; None if missing or not a number (GitHub sends no dates)."""
    return float(text) if text is not None and text.strip().isdecimal() and len(text) < 20 else None
