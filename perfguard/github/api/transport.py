"""One request and its answer through requests, with our own redirects, time limits and size limits.

requests turns a redirected POST into a GET, and reads an authorization from ~/.netrc on every redirect. So it follows
no redirects here and always gets an `auth` of ours.
"""

from __future__ import annotations

import queue
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urljoin, urlsplit

from perfguard.github.api.token import Token, unsigned
from perfguard.github.api.troubles import Outage, Unexpected
from perfguard.model.errors import GitHubError

if TYPE_CHECKING:
    import requests

Method = Literal["GET", "POST", "PATCH", "DELETE"]
_MOST_HOPS = 5
_CHUNK = 64 * 1024
_REDIRECTS = (301, 302, 303, 307, 308)
_KEEPING = (307, 308)  # method and body stay what they are


@dataclass(frozen=True)
class Timeouts:
    """Limits in seconds for a connection, for the next bytes of an answer, and for a whole answer."""

    connect: float = 5.0
    read: float = 20.0
    whole: float = 60.0


@dataclass(frozen=True)
class Answer:
    """An answer of any status. Keys of `headers` are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


Origin = tuple[str, str, int | None]


def origin(url: str) -> Origin:
    """Scheme, host and port of a URL.

    Raises:
        Unexpected: it is no URL of a web server.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise Unexpected(f"{url[:200]!r}: not an address that is followed")
    return parts.scheme, parts.hostname, port or {"http": 80, "https": 443}[parts.scheme]


def place(url: str) -> str:
    """Host of a URL, with its port if given, for messages."""
    return urlsplit(url).netloc


class Transport:
    """Sends requests: with the token to one origin, without it to any other.

    Args:
        home: a URL of the origin that gets the token.
    """

    def __init__(self, home: str, token: Token, timeouts: Timeouts, session: requests.Session) -> None:
        self._home = origin(home)
        self._token = token
        self._timeouts = timeouts
        self._session = session

    def exchange(
        self, method: Method, url: str, headers: Mapping[str, str], body: bytes | None, limit: int, *, abroad: bool
    ) -> Answer:
        """Send one request and follow its redirects.

        Args:
            limit: most bytes of an answer.
            abroad: a GET may be redirected to another host, which gets no token.

        Raises:
            Outage: no connection, no answer in time.
            Unexpected: a forbidden redirect, more than 5 redirects, or more than `limit` bytes.
            GitHubError: the certificate is not trusted.
        """
        for _ in range(_MOST_HOPS + 1):
            answer = self._once(method, url, headers, body, limit)
            if answer.status not in _REDIRECTS:
                return answer
            url = self._next(method, url, answer, abroad=abroad)
        raise Unexpected(f"{method} {place(url)}: redirected more than {_MOST_HOPS} times; check GITHUB_API_URL")

    def _next(self, method: Method, url: str, answer: Answer, *, abroad: bool) -> str:
        target = urljoin(url, answer.headers.get("location", ""))
        found = origin(target)
        if answer.status == 303 or (method != "GET" and answer.status not in _KEEPING):
            raise Unexpected(
                f"{method} {urlsplit(url).path}: redirected with {answer.status}, on which the body would be lost; "
                "set GITHUB_REPOSITORY and GITHUB_API_URL to where it is now"
            )
        if found != self._home and (method != "GET" or not abroad):
            raise Unexpected(f"{method} {urlsplit(url).path}: redirected to another host, {place(target)}; refused")
        if origin(url)[0] == "https" and found[0] == "http":
            raise Unexpected(f"{method} {urlsplit(url).path}: redirected to {place(target)} without TLS; refused")
        return target

    def _once(self, method: Method, url: str, headers: Mapping[str, str], body: bytes | None, limit: int) -> Answer:
        # `from None` everywhere: the frames of requests and http.client hold the token among their variables,
        # and pytest -l would show them.
        at_home = origin(url) == self._home
        auth: Callable[[requests.PreparedRequest], requests.PreparedRequest] = self._token.sign if at_home else unsigned
        what = f"{method} {place(url)}{urlsplit(url).path}"

        def ask() -> Answer:
            response = self._session.request(
                method,
                url,
                headers=dict(headers),
                data=body,
                auth=auth,
                timeout=(self._timeouts.connect, self._timeouts.read),
                allow_redirects=False,
                stream=True,
            )
            with response:
                return self._answer(response, self._read(response, what, limit))

        try:
            return self._in_time(what, ask)
        except ValueError as error:  # a URL or redirect target that requests or urllib3 cannot parse
            raise Unexpected(f"{what}: {type(error).__name__}; check GITHUB_API_URL") from None
        except OSError as error:  # of requests, or a missing CA bundle
            raise self._translated(what, error) from None

    def _answer(self, response: requests.Response, body: bytes) -> Answer:
        """The answer, scrubbed of the token, which a server could echo."""
        from requests.structures import CaseInsensitiveDict

        headers = CaseInsensitiveDict({name: self._token.scrub(value) for name, value in response.headers.items()})
        return Answer(response.status_code, headers, self._token.scrub_bytes(body), response.url)

    def _in_time(self, what: str, ask: Callable[[], Answer]) -> Answer:
        """The answer, within the time limit for a whole one. requests limits only the wait for the next bytes: a server
        that sends one byte a second would hold us forever. A thread that still waits ends with the process."""
        results: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()

        def run() -> None:
            try:
                results.put(ask())
            except BaseException as error:
                results.put(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            result = results.get(timeout=self._timeouts.whole)
        except queue.Empty:
            raise Outage(f"{what}: no whole answer in {self._timeouts.whole:g} s; run the job again later") from None
        if isinstance(result, BaseException):
            raise result
        return result

    def _read(self, response: requests.Response, what: str, limit: int) -> bytes:
        body = bytearray()
        for chunk in response.iter_content(_CHUNK):
            body += chunk
            if len(body) > limit:
                raise Unexpected(f"{what}: an answer of more than {limit:,} bytes; refused")
        return bytes(body)

    def _translated(self, what: str, error: OSError) -> GitHubError:
        import requests

        first: BaseException = error
        while (inner := first.__cause__ or first.__context__) and not isinstance(inner, GitHubError):
            first = inner
        words = self._token.scrub(str(getattr(first, "strerror", None) or first or type(first).__name__))[:200]
        if isinstance(first, ssl.SSLCertVerificationError):
            return GitHubError(
                f"{what}: TLS: {words}; where the host has a CA of its own, name its file in REQUESTS_CA_BUNDLE"
            )
        if not isinstance(error, requests.RequestException):
            return GitHubError(f"{what}: {words}; mend REQUESTS_CA_BUNDLE")
        if isinstance(error, requests.ConnectTimeout):
            words = f"no connection in {self._timeouts.connect:g} s"
        elif isinstance(first, TimeoutError):
            words = f"no answer in {self._timeouts.read:g} s"
        return Outage(f"{what}: {words}; check that this machine reaches the host, or run the job again later")
