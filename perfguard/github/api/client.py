"""The client of one repository: one rule for requests, one for retries, one error.

It stands on urllib, which reads no credentials from files. The token goes to the API's own host and to no other: no
redirect is followed, but for the download of an artifact, which is asked for without the token.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from perfguard import __version__
from perfguard.model.errors import GitHubError, UsageError

T = TypeVar("T")
Method = Literal["GET", "POST", "PATCH", "DELETE"]

TOKEN = "GITHUB_TOKEN"
NO_TOKEN = (
    f"no token in {TOKEN}; post from a workflow_run job of the base repository (.github/workflows/comment.yml), "
    "with the token in that step's env"
)
FULL_NAME = r"[A-Za-z0-9_-]+/(?!\.{1,2}$)[A-Za-z0-9._-]+"  # of a repository
MOST_PAGES = 50
_MOST_BYTES = 32 * 2**20  # of a JSON answer: a hundred comments of the largest size seen
_TIMEOUT = 20.0  # seconds for a connection, and for the next bytes of an answer
_MOST_WAIT_SECONDS = 300.0  # before one more try; the job itself ends after 15 minutes
_SECONDS_BETWEEN_WRITES = 1.0  # GitHub's advice against secondary rate limits
_PAUSES = (1.0, 2.0, 4.0)  # seconds before another try
_LIMITED_SECONDS = 60.0  # GitHub's rule for a rate limit without a given time: at least a minute
_OUTAGES = (500, 502, 503, 504)
_MOST_WORDS = 300  # of a server's message
_NEXT = {
    401: "the token is wrong or has expired, run the job again with a fresh one",
    404: "check the number and that the token may see the repository",
    410: "it is gone for good",
    422: "GitHub takes the request for wrong, see its words",
}


class ApiError(GitHubError):
    """A request that GitHub did not answer as asked.

    Attributes:
        status: of the answer; 0 if there was none, or none of GitHub's API.
        retry_after: seconds after which the same request may work; None: it would fail again.
    """

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True)
class Clock:
    """The client's clock: seconds since the epoch, comparable with GitHub's reset times, and how to wait."""

    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class _Details(Struct, frozen=True):
    message: str = ""


class _Problem(Struct, frozen=True):
    """The body of GitHub's errors, as far as it is shown."""

    message: str = ""
    errors: list[_Details | str] | str = []


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


@dataclass
class Client:
    """Sends one request at a time. Create it with `open_client`.

    Every call raises an ApiError when it gives up. The message names the request, the answer and the next step.

    Attributes:
        repository: `owner/name`; `number` is its id, None if the environment does not give it.
        api, server: base URLs of the API and of web links, without a trailing slash.
        timeout: seconds for a connection, and for the next bytes of an answer.
    """

    repository: str
    number: int | None
    api: str
    server: str
    token: str = field(repr=False)
    clock: Clock = Clock()
    timeout: float = _TIMEOUT

    def __post_init__(self) -> None:
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._next_write = 0.0

    def is_home(self, number: int, name: str) -> bool:
        """Whether a repository is the client's own: by id, which survives a rename, else by name."""
        return number == self.number if self.number is not None else name.lower() == self.repository.lower()

    def get(self, path: str, kind: type[T], **params: str) -> T:
        """GET `path` of the repository (`/pulls/7`)."""
        return decoded(f"GET {path}", self.insist(partial(self._send, "GET", path, params)).body, kind)

    def pages(self, path: str, kind: type[T], **params: str) -> Iterator[T]:
        """Each page of a list: at most 50 pages of 100 entries; more is an error."""
        for page in range(1, MOST_PAGES + 1):
            asked = {**params, "per_page": "100", "page": str(page)}
            answer = self.insist(partial(self._send, "GET", path, asked))
            yield decoded(f"GET {path}", answer.body, kind)
            if 'rel="next"' not in answer.headers.get("Link", ""):
                return
        raise ApiError(f"GET {path}: more than {MOST_PAGES} pages; nothing is concluded from a part")

    def write(self, method: Method, path: str, body: Any = None, *, once: bool = False) -> None:
        """Send a write.

        Args:
            once: not again if it fails. An answer that got lost does not mean that nothing was stored: the caller looks
                before the next try.
        """
        self._space_writes()
        send = partial(self._send, method, path, {}, body)
        if once:
            send()
        else:
            self.insist(send)

    def download(self, path: str, limit: int) -> bytes:
        """The bytes that `path` redirects to, at most `limit`. The other host gets no token."""
        what = f"GET {path}"

        def fetch() -> bytes:
            answer = self._open(what, self._request("GET", path, {}, None), limit)
            if answer.status != 302:
                raise self._error(what, answer)
            target = answer.headers.get("Location", "")
            if urlsplit(target).scheme != urlsplit(self.api).scheme:
                raise ApiError(f"{what}: redirected to {target[:100]!r}; refused")
            found = self._open(f"GET {urlsplit(target).netloc}", urllib.request.Request(target), limit)
            if found.status != 200:
                raise self._error(f"GET {urlsplit(target).netloc}", found)
            return found.body

        return self.insist(fetch)

    def insist(self, attempt: Callable[[], T]) -> T:
        """Call `attempt()` until it succeeds, at most four times, while its error is temporary and time is left."""
        for pause in _PAUSES:
            try:
                return attempt()
            except ApiError as error:
                if error.retry_after is None:
                    raise
                self._wait(max(pause, error.retry_after), error)
        try:
            return attempt()
        except ApiError as error:
            tried = f" (tried {len(_PAUSES) + 1} times)" if error.retry_after is not None else ""
            raise ApiError(f"{error}{tried}", error.status) from None

    def _wait(self, seconds: float, error: ApiError) -> None:
        if seconds > _MOST_WAIT_SECONDS:
            then = _minute(self.clock.now() + seconds)
            raise ApiError(f"{error}; it asks for {seconds:.0f} s: run the job again after {then}", error.status)
        self.clock.sleep(seconds)

    def _space_writes(self) -> None:
        early = self._next_write - self.clock.now()
        if early > 0:
            self.clock.sleep(early)
        self._next_write = self.clock.now() + _SECONDS_BETWEEN_WRITES

    def _send(self, method: Method, path: str, params: Mapping[str, str], body: Any = None) -> _Answer:
        what = f"{method} {path}"
        answer = self._open(what, self._request(method, path, params, body), _MOST_BYTES)
        if not 200 <= answer.status < 300:
            raise self._error(what, answer)
        return answer

    def _request(self, method: Method, path: str, params: Mapping[str, str], body: Any) -> urllib.request.Request:
        query = f"?{urlencode(params)}" if params else ""
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self.token}",
            "User-Agent": f"perfguard/{__version__}",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = f"{self.api}/repos/{self.repository}{path}{query}"
        data = None if body is None else msgspec.json.encode(body)
        return urllib.request.Request(url, data, headers, method=method)

    def _open(self, what: str, request: urllib.request.Request, limit: int) -> _Answer:
        """The answer, of any status and at most `limit` bytes."""
        try:
            try:
                response = self._opener.open(request, timeout=self.timeout)
            except urllib.error.HTTPError as error:  # an answer all the same
                response = error
            with response:
                return _Answer(response.status, response.headers, _read(what, response, limit))
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = str(getattr(error, "reason", error) or type(error).__name__)[:200]
            if "CERTIFICATE_VERIFY_FAILED" in said:
                raise ApiError(f"{what}: {said}; name the host's own CA in SSL_CERT_FILE") from None
            raise ApiError(
                f"{what}: {said}; check that this machine reaches the host, or run the job again later", retry_after=0
            ) from None

    def _error(self, what: str, answer: _Answer) -> ApiError:
        """The error that an unsuccessful answer stands for, with the next step."""
        status, headers, said = answer.status, answer.headers, _said(answer.body)
        text = f"{what}: {status} {said}".rstrip()
        if 300 <= status < 400:
            return ApiError(f"{text}, a redirect; set GITHUB_REPOSITORY and GITHUB_API_URL to where it is now", status)
        if status in _OUTAGES:
            return ApiError(f"{text}; GitHub is unwell, run the job again later", status, 0)
        if status in (403, 429):
            after = self._limited(status, headers, said.lower())
            if after is not None:
                return ApiError(text, status, after)
            needed = headers.get("X-Accepted-GitHub-Permissions", "a permission")[:_MOST_WORDS]
            return ApiError(f"{text}; the token may lack {needed}: give it to the job in comment.yml", status)
        return ApiError(f"{text}; {_NEXT.get(status, 'report this as a bug of perfguard')}", status)

    def _limited(self, status: int, headers: http.client.HTTPMessage, said: str) -> float | None:
        """Seconds until a rate limit ends; None if the answer is about something else."""
        after, reset = headers.get("Retry-After", ""), headers.get("X-RateLimit-Reset", "")
        if re.fullmatch(r"\d{1,9}", after):  # goes before the reset time
            return float(after)
        if headers.get("X-RateLimit-Remaining") == "0" and re.fullmatch(r"\d{1,12}", reset):
            return max(float(reset) - self.clock.now(), 0) + 1
        return _LIMITED_SECONDS if status == 429 or "rate limit" in said else None


def decoded(what: str, data: bytes, kind: type[T]) -> T:
    """JSON of GitHub's API.

    Raises:
        ApiError: it is none, as the login page of a proxy would be.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        said = str(error)[:200]
        raise ApiError(
            f"{what}: not what GitHub's API answers ({said}); check GITHUB_API_URL and the network of this job"
        ) from None


def open_client(environ: Mapping[str, str], clock: Clock | None = None, timeout: float = _TIMEOUT) -> Client:
    """The client of the repository that this job runs for.

    Args:
        environ: GITHUB_TOKEN, GITHUB_REPOSITORY and GITHUB_REPOSITORY_ID; on GitHub Enterprise, GITHUB_API_URL and
            GITHUB_SERVER_URL.

    Raises:
        GitHubError: there is no token.
        UsageError: a variable whose value cannot be right.
    """
    repository, number = environ.get("GITHUB_REPOSITORY", ""), environ.get("GITHUB_REPOSITORY_ID", "")
    token = environ.get(TOKEN, "").strip()
    if not token:
        raise GitHubError(NO_TOKEN)
    if not re.fullmatch(r"[!-~]+", token):  # http.client would print the value in its own error
        raise UsageError(f"{TOKEN}: holds a character that no token has; set it to the bare token")
    if not re.fullmatch(FULL_NAME, repository):
        raise UsageError(
            f"GITHUB_REPOSITORY={repository[:100]!r}: no owner/name; GitHub Actions sets it, set it likewise"
        )
    return Client(
        repository=repository,
        number=int(number) if number.isdecimal() else None,
        api=_base(environ, "GITHUB_API_URL", "https://api.github.com"),
        server=_base(environ, "GITHUB_SERVER_URL", "https://github.com"),
        token=token,
        clock=clock or Clock(),
        timeout=timeout,
    )


def _base(environ: Mapping[str, str], variable: str, default: str) -> str:
    """A base URL without a trailing slash: GitHub answers 404 to a doubled one."""
    url = environ.get(variable, "").strip().rstrip("/") or default
    if not re.match(r"https://[^@/]+(/|$)|http://(localhost|127\.0\.0\.1)(:\d+)?(/|$)", url):
        raise UsageError(f"{variable}={url[:100]!r}: no https:// address; set it to {default}, or to your server's")
    return url


def _read(what: str, response: Any, limit: int) -> bytes:
    """The body of an answer."""
    body: bytes = response.read(limit + 1)
    if len(body) > limit:
        raise ApiError(f"{what}: an answer of more than {limit:,} bytes; refused")
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


def _said(body: bytes) -> str:
    """The message of an error in one line; empty if the body is not one of GitHub's."""
    try:
        read = msgspec.json.decode(body, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    details = [read.errors] if isinstance(read.errors, str) else read.errors
    words = [read.message, *(each if isinstance(each, str) else each.message for each in details)]
    line = " ".join(" ".join(words).split())
    return "".join(sign for sign in line if sign.isprintable())[:_MOST_WORDS]


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(min(seconds, 4e9), UTC):%Y-%m-%d %H:%M} UTC"
