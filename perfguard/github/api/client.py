"""The API client of one repository: typed answers, retries, pagination and token handling."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from perfguard import __version__
from perfguard.github.api.retries import BUDGET_SECONDS, Budget, Clock, Patience
from perfguard.github.api.token import Token, read_token
from perfguard.github.api.transport import Answer, Method, Timeouts, Transport, origin, place
from perfguard.github.api.troubles import Passing, Refused, Unexpected, trouble
from perfguard.model.errors import GitHubError, PerfguardError, UsageError

T = TypeVar("T")

API_VERSION = "2022-11-28"
PUBLIC_API = "https://api.github.com"
PUBLIC_SERVER = "https://github.com"
FULL_NAME = r"[A-Za-z0-9_-]+/(?!\.{1,2}$)[A-Za-z0-9._-]+"  # of a repository
MOST_PAGES = 50
_MOST_BYTES = 32 * 2**20  # of a JSON answer: a hundred comments of the largest size seen
_SECONDS_BETWEEN_WRITES = 1.0  # GitHub's advice against secondary rate limits
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Settings:
    """Address of the repository, and the token. URLs have no trailing slash.

    Attributes:
        number: id of the repository; None if the environment does not give it.
    """

    token: Token
    repository: str
    number: int | None
    api: str
    graphql: str
    server: str

    def check(self) -> None:
        """Raise UsageError for a malformed repository name or API hosts that differ."""
        if not re.fullmatch(FULL_NAME, self.repository):
            raise UsageError(
                f"GITHUB_REPOSITORY={self.repository[:100]!r}: no owner/name; GitHub Actions sets it, set it likewise"
            )
        if origin(self.graphql) != origin(self.api):
            raise UsageError(
                f"GITHUB_GRAPHQL_URL: {place(self.graphql)} is not the host of GITHUB_API_URL; set both to one"
            )


class _GraphError(Struct, frozen=True):
    message: str = ""


class _GraphAnswer(Struct, frozen=True):
    data: msgspec.Raw = msgspec.Raw(b"null")
    errors: list[_GraphError] = []


class Client:
    """Client of one repository for one post job; it sends one request at a time. Create it with `open_client`.

    Every call raises a GitHubError (`troubles.py`) when it gives up. The message names the request, the answer and the
    next step, never the token.

    Attributes:
        repository: `owner/name`.
        server: base URL of web links, `https://github.com`.
        clock: the clock for all waits.
    """

    def __init__(self, settings: Settings, transport: Transport, budget: Budget) -> None:
        self.repository = settings.repository
        self.server = settings.server
        self.clock = budget.clock
        self._number = settings.number
        self._api = settings.api
        self._graphql = settings.graphql
        self._transport = transport
        self._budget = budget
        self._last_write: float | None = None

    def is_home(self, number: int, name: str) -> bool:
        """Whether a repository is the client's own: by id, which survives a rename, else by name."""
        return number == self._number if self._number is not None else name.lower() == self.repository.lower()

    def patience(self) -> Patience:
        """A new retry policy, within the client's time budget, for a step that is decided anew at each try."""
        return Patience(self._budget)

    def get(self, path: str, kind: type[T], params: Mapping[str, str] | None = None) -> T:
        """GET `path` (`/repos/…`)."""
        return self._decoded(self._insist("GET", self._url(path, params), None), kind)

    def pages(self, path: str, kind: type[T], params: Mapping[str, str] | None = None) -> Iterator[T]:
        """Each page of a list: at most 50 pages of 100 entries.

        Raises:
            Unexpected: the next page's link leads to another host, or the list has more pages.
        """
        url: str | None = self._url(path, {**(params or {}), "per_page": "100"})
        for _ in range(MOST_PAGES):
            if url is None:
                return
            answer = self._insist("GET", url, None)
            yield self._decoded(answer, kind)
            url = _next_page(answer)
            if url is not None and origin(url) != origin(self._api):
                raise Unexpected(f"GET {path}: its next page is said to be on {place(url)}; refused")
        if url is not None:
            raise Unexpected(f"GET {path}: more than {MOST_PAGES} pages; nothing is concluded from a part")

    def download(self, path: str, limit: int) -> bytes:
        """The bytes at `path`, at most `limit`. A redirect to another host is followed without the token."""
        return self._insist("GET", self._url(path), None, limit=limit, abroad=True, json=False).body

    def write(self, method: Method, path: str, body: Any, kind: type[T]) -> T:
        """Send an idempotent write, with retries."""
        return self._decoded(self._insist(method, self._url(path), body), kind)

    def write_once(self, method: Method, path: str, body: Any, kind: type[T]) -> T:
        """Send a write once. The caller checks whether it was stored before the next try.

        Raises:
            Passing: wait with `patience()` before the next try; after an Outage the write may have been stored.
        """
        return self._decoded(self._exchange(method, self._url(path), body), kind)

    def delete(self, path: str) -> None:
        """DELETE `path`."""
        self._insist("DELETE", self._url(path), None, json=False)

    def graphql(self, query: str, kind: type[T]) -> T:
        """The `data` of a GraphQL query."""
        answer = self._decoded(self._insist("POST", self._graphql, {"query": query}), _GraphAnswer)
        what = f"POST {urlsplit(self._graphql).path}"
        if answer.errors:
            said = "; ".join(error.message for error in answer.errors)[:300]
            raise Refused(f"{what}: {said}; check the permissions of the token")
        return self._converted(what, answer.data, kind)

    def _url(self, path: str, params: Mapping[str, str] | None = None) -> str:
        return f"{self._api}{path}" + (f"?{urlencode(params)}" if params else "")

    def _insist(self, method: Method, url: str, body: Any, **options: Any) -> Answer:
        return insist(self.patience(), lambda: self._exchange(method, url, body, **options))

    def _exchange(
        self, method: Method, url: str, body: Any, *, limit: int = _MOST_BYTES, abroad: bool = False, json: bool = True
    ) -> Answer:
        what = f"{method} {urlsplit(url).path}"
        if self._budget.left <= 0:
            raise GitHubError(f"{what}: the {self._budget.seconds:g} s for GitHub are spent; run the job again later")
        headers = {
            "Accept": "application/vnd.github+json",
            "User-Agent": f"perfguard/{__version__}",
            "X-GitHub-Api-Version": API_VERSION,
        }
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        if method != "GET" and url != self._graphql:
            self._space_writes()
        answer = self._transport.exchange(method, url, headers, data, limit, abroad=abroad)
        if answer.status >= 400:
            raise trouble(what, answer.status, answer.headers, answer.body)
        if not 200 <= answer.status < 300:
            raise Unexpected(f"{what}: {answer.status}, which answers nothing; check GITHUB_API_URL")
        kind = answer.headers.get("content-type", "")
        if json and "json" not in kind.partition(";")[0]:
            raise Unexpected(
                f"{what}: {answer.status} with unexpected content type {kind[:80] or 'none'!r}; "
                "a proxy or login page answers in place of GitHub: check the network of this job"
            )
        return answer

    def _space_writes(self) -> None:
        now = self.clock.elapsed()
        if self._last_write is not None and now - self._last_write < _SECONDS_BETWEEN_WRITES:
            self.clock.sleep(_SECONDS_BETWEEN_WRITES - (now - self._last_write))
        self._last_write = self.clock.elapsed()

    def _decoded(self, answer: Answer, kind: type[T]) -> T:
        return self._converted(urlsplit(answer.url).path, answer.body, kind)

    def _converted(self, what: str, data: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            said = str(error)[:200]
            raise Unexpected(f"{what}: not what GitHub's API answers ({said}); check GITHUB_API_URL") from None


def _next_page(answer: Answer) -> str | None:
    from requests.utils import parse_header_links

    links = parse_header_links(answer.headers.get("link", ""))
    return next((link["url"] for link in links if link.get("rel") == "next"), None)


def insist(patience: Patience, attempt: Callable[[], T]) -> T:
    """Call `attempt()` until it succeeds or its error is not temporary."""
    while True:
        try:
            return attempt()
        except Passing as passing:
            patience.wait(passing)


def open_client(
    environ: Mapping[str, str],
    clock: Clock | None = None,
    timeouts: Timeouts | None = None,
    seconds: float = BUDGET_SECONDS,
) -> Client:
    """The client of the repository that this job runs for.

    Args:
        environ: GITHUB_TOKEN, GITHUB_REPOSITORY and GITHUB_REPOSITORY_ID, and, on GitHub Enterprise,
            GITHUB_API_URL, GITHUB_GRAPHQL_URL and GITHUB_SERVER_URL.
        seconds: budget for all requests, waits included.

    Raises:
        NoToken: a GitHubError: "no token in GITHUB_TOKEN …".
        GitHubError: requests is not installed.
        UsageError: a variable whose value cannot be right.
    """
    settings = _settings(environ)
    del environ  # holds the bare token, which pytest -l would print with the local variables of an error below
    if isinstance(settings, PerfguardError):
        raise settings
    try:
        import requests
    except ImportError:
        raise GitHubError("requests: not installed; pip install 'perfguard[github]'") from None
    transport = Transport(settings.api, settings.token, timeouts or Timeouts(), requests.Session())
    return Client(settings, transport, Budget(clock or Clock(), seconds))


def _settings(environ: Mapping[str, str]) -> Settings | PerfguardError:
    """The settings from the environment, or the error, which the caller raises where no variable holds the token."""
    try:
        api = _base(environ, "GITHUB_API_URL", PUBLIC_API)
        number = environ.get("GITHUB_REPOSITORY_ID", "")
        settings = Settings(
            token=read_token(environ),
            repository=environ.get("GITHUB_REPOSITORY", ""),
            number=int(number) if number.isdecimal() else None,
            api=api,
            graphql=_base(environ, "GITHUB_GRAPHQL_URL", f"{api.removesuffix('/v3')}/graphql"),
            server=_base(environ, "GITHUB_SERVER_URL", PUBLIC_SERVER),
        )
        settings.check()
    except PerfguardError as error:
        return error.with_traceback(None)
    return settings


def _base(environ: Mapping[str, str], variable: str, default: str) -> str:
    """A base URL without a trailing slash: GitHub answers 404 to a doubled one."""
    url = environ.get(variable, "").strip().rstrip("/") or default
    try:
        scheme, host, _ = origin(url)
    except Unexpected:
        raise UsageError(f"{variable}={url[:100]!r}: not a URL; set it to {default}, or to your server's") from None
    if scheme != "https" and host not in _LOOPBACK:
        raise UsageError(f"{variable}={url[:100]!r}: without TLS the token could be read on its way; write https://")
    return url
