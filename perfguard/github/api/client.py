"""The client of one repository: one session, one rule for retries, one deadline, one error.

Only the host of the API gets the token. Redirects are followed only to download artifacts, without the token.
Credentials in ~/.netrc are not used; proxies and certificates are those of the environment.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
import requests
from msgspec import Struct
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse
from urllib3.util.retry import Retry

from perfguard import __version__
from perfguard.model.errors import GitHubError, UsageError

T = TypeVar("T")
Method = Literal["GET", "POST", "PATCH", "DELETE"]

TOKEN = "GITHUB_TOKEN"
NO_TOKEN = (
    f"no token in {TOKEN}; post from a workflow_run job of the base repository (.github/workflows/comment.yml), "
    "with the token in that step's env"
)
FULL_NAME = r"[A-Za-z0-9_-]+/(?!\.{1,2}$)[A-Za-z0-9._-]+"  # The owner and name of a repository.
MOST_PAGES = 50
OUTAGES = (500, 502, 503, 504)
_MOST_BYTES = 32 * 2**20  # A JSON answer can hold a hundred comments of the largest size seen.
TIMEOUT = 20.0  # Seconds to connect, and to wait for the next bytes of an answer.
_CALL_SECONDS = 120.0  # One call with its retries may take twice the minute that GitHub's rate limits require.
_JOB_SECONDS = 480.0  # Limit for all calls: comment.yml ends its job after 15 minutes, with installation and posting.
_RETRIES = 3
_LIMITED_SECONDS = 60.0  # GitHub requires at least a minute for a rate limit without a given time.
_MOST_CHARACTERS = 300  # The most characters of a server's message.
_HEADERS = {
    "Accept": "application/vnd.github+json",
    "Content-Type": "application/json",
    "User-Agent": f"perfguard/{__version__}",
    "X-GitHub-Api-Version": "2022-11-28",
}
_NO_API = "check GITHUB_API_URL and the network of this job"
_NEXT = {
    **dict.fromkeys((200, 201), f"not what GitHub's API answers; {_NO_API}"),
    401: "the token is wrong or has expired, run the job again with a fresh one",
    404: "check the number and that the token may see the repository",
    410: "it no longer exists",
    422: "GitHub rejected the request for this reason",
    **dict.fromkeys((301, 302, 307, 308), "a redirect; set GITHUB_REPOSITORY and GITHUB_API_URL to the new address"),
    **dict.fromkeys(OUTAGES, "GitHub has an outage, run the job again later"),
}


class ApiError(GitHubError):
    """A failed request. `status` is that of the answer; 0 if there was no answer of GitHub's API."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class _Retry(Retry):
    """Retries after outages, lost connections, and rate limits with a given time. The client waits."""

    wait: Callable[[float], None]

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
        limited = status_code in (403, 429) and has_retry_after  # Nothing was stored then.
        return limited or super().is_retry(method, status_code, has_retry_after)

    def new(self, **changes: Any) -> Self:
        made = super().new(**changes)
        made.wait = self.wait
        return made

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        named = None if response is None else self.get_retry_after(response)
        self.wait(self.get_backoff_time() if named is None else named)


class _Details(Struct, frozen=True):
    message: str = ""


class _Problem(Struct, frozen=True):
    """The parts of the body of GitHub's errors that are shown."""

    message: str = ""
    errors: list[_Details | str] | str = []


class _User(Struct, frozen=True):
    login: str


class _Viewer(Struct, frozen=True):
    viewer: _User


class _Identity(Struct, frozen=True):
    """GraphQL's answer on the owner of the token. REST has it for tokens of users alone."""

    data: _Viewer


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Client:
    """Sends one request at a time. `open_client` creates it.

    Every call raises an ApiError when it gives up. The message names the request, the answer and the next step. Failed
    requests are repeated three times, except the creation of a comment, which may be stored although the answer was
    lost. No request starts or lasts beyond the deadline of its call or of the job.

    Attributes:
        repository: `owner/name`; `number` is its id, None if the environment does not give it.
        api, server: the base URLs of the API and of web links, without a trailing slash.
    """

    repository: str
    number: int | None
    api: str
    server: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        self._url = f"{self.api}/repos/{self.repository}"
        self._local = threading.local()  # A request that is left behind keeps the deadline of its own call.
        self._session = requests.Session()
        self._session.headers["Accept-Encoding"] = "identity"  # Size limits count received bytes.
        self._session.auth = self._authorize
        for prefix in ("https://", "http://"):
            self._session.mount(prefix, self._adapter(None))
        self._session.mount(f"{self._url}/issues/", self._adapter({"GET", "PATCH", "DELETE"}))
        self.allow(_JOB_SECONDS)

    def allow(self, seconds: float) -> None:
        """Set the deadline of all further calls."""
        self._job_ends = time.time() + seconds

    def is_home(self, number: int, name: str) -> bool:
        """Whether a repository is the client's own: by id, which survives a rename, else by name."""
        return number == self.number if self.number is not None else name.lower() == self.repository.lower()

    def get(self, path: str, kind: type[T], **params: str) -> T:
        """GET `path` of the repository (`/pulls/7`)."""
        return decoded(f"GET {path}", self._send("GET", path, params).body, kind)

    def pages(self, path: str, kind: type[T], **params: str) -> Iterator[T]:
        """The pages of a list, at most 50 with 100 entries each; more pages are an error."""
        for page in range(1, MOST_PAGES + 1):
            answer = self._send("GET", path, {**params, "per_page": "100", "page": str(page)})
            yield decoded(f"GET {path}", answer.body, kind)
            if 'rel="next"' not in answer.headers.get("Link", ""):
                return
        raise ApiError(f"GET {path}: more than {MOST_PAGES} pages; an incomplete list is not used")

    def write(self, method: Literal["POST", "PATCH"], path: str, body: Any) -> None:
        """Send `body` as JSON. GitHub answers with what it stored, in which every text of the body must be the same."""
        what, sent = f"{method} {path}", msgspec.to_builtins(body)
        stored = decoded(what, self._send(method, path, {}, body).body, dict[str, Any])
        other = [name for name, text in sent.items() if _plain(stored.get(name)) != _plain(text)]
        if other:
            raise ApiError(f"{what}: the answer holds another {', '.join(other)} than was sent; {_NO_API}")

    def delete(self, path: str) -> None:
        """DELETE `path`, which somebody else may have done before."""
        answer = self._open(f"DELETE {path}", "DELETE", f"{self._url}{path}", _MOST_BYTES)
        if answer.status not in (204, 404, 410):
            raise self._error(f"DELETE {path}", answer)

    def login(self) -> str:
        """The login of the token's owner: a person, the bot of an App, or `github-actions[bot]`."""
        what, url = "POST /graphql", f"{self.api.removesuffix('/v3')}/graphql"  # Enterprise: /api/v3 and /api/graphql.
        answer = self._open(what, "POST", url, _MOST_BYTES, data=b'{"query": "{viewer{login}}"}')
        if answer.status != 200:
            raise self._error(what, answer)
        return decoded(what, answer.body, _Identity).data.viewer.login

    def download(self, path: str, limit: int) -> bytes:
        """The bytes to which `path` redirects, at most `limit`. The other host gets no token."""
        what = f"GET {path}"
        answer = self._open(what, "GET", f"{self._url}{path}", limit)
        if answer.status != 302:
            raise self._error(what, answer)
        target = answer.headers.get("Location", "")
        if urlsplit(target).scheme != urlsplit(self.api).scheme:
            raise ApiError(f"{what}: redirected to {target[:100]!r}; refused")
        what = f"GET {urlsplit(target).netloc}"
        artifact = self._open(what, "GET", target, limit, auth=lambda request: request)
        if artifact.status != 200:
            raise self._error(what, artifact)
        return artifact.body

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(_HEADERS, Authorization=f"Bearer {self.token}")
        return request

    def _adapter(self, methods: set[str] | None) -> HTTPAdapter:
        """The adapter that repeats failed requests of these methods; None: of all."""
        retry = _Retry(
            _RETRIES, allowed_methods=methods, status_forcelist=OUTAGES, backoff_factor=1, raise_on_status=False
        )
        retry.wait = self._wait
        return HTTPAdapter(max_retries=retry)

    def _wait(self, seconds: float) -> None:
        then = time.time() + seconds
        if then > self._local.ends:
            raise _too_late(then)
        if seconds:
            time.sleep(seconds)

    def _send(self, method: Method, path: str, params: Mapping[str, str], body: Any = None) -> _Answer:
        what = f"{method} {path}"
        data = None if body is None else msgspec.json.encode(body)
        answer = self._open(what, method, f"{self._url}{path}", _MOST_BYTES, params=params, data=data)
        if not 200 <= answer.status < 300:
            raise self._error(what, answer)
        return answer

    def _open(self, what: str, method: Method, url: str, limit: int, **given: Any) -> _Answer:
        """The answer, of any status and at most `limit` bytes."""
        self._local.ends = ends = min(time.time() + _CALL_SECONDS, self._job_ends)
        answers: queue.SimpleQueue[_Answer | Exception] = queue.SimpleQueue()

        def ask() -> None:
            self._local.ends = ends
            try:
                with self._session.request(
                    method, url, timeout=TIMEOUT, allow_redirects=False, stream=True, **given
                ) as response:
                    answer = _Answer(response.status_code, response.headers, self._body(response, limit))
                answers.put(answer)
            except Exception as error:
                answers.put(error)

        try:
            self._wait(0)
            # Timeouts of sockets end a silent answer only, neither one that trickles in nor the search for a host.
            threading.Thread(target=ask, daemon=True).start()
            answer = answers.get(timeout=max(0.0, ends - time.time()))
            if isinstance(answer, Exception):
                raise answer
            return answer
        except queue.Empty:
            raise ApiError(f"{what}: {_too_late(ends)}") from None
        except ApiError as error:
            raise ApiError(f"{what}: {error}") from None
        except (OSError, HTTPError) as error:  # Errors of requests are OSErrors.
            text, host = str(_innermost(error)), urlsplit(url).netloc
            step = f"check that this machine reaches {host}, or run the job again later"
            if "CERTIFICATE_VERIFY_FAILED" in text:
                step = "name the host's own CA in REQUESTS_CA_BUNDLE"
            raise ApiError(f"{what}: {text[:_MOST_CHARACTERS]}; {step}") from None

    def _body(self, response: requests.Response, limit: int) -> bytes:
        body = bytearray()
        while data := response.raw.read1(2**16):
            body += data
            if len(body) > limit:
                raise ApiError(f"an answer of more than {limit:,} bytes; refused")
            self._wait(0)
        return bytes(body)

    def _error(self, what: str, answer: _Answer) -> ApiError:
        """The error of an unsuccessful answer, with the next step."""
        status, headers, message = answer.status, answer.headers, _message(answer.body)
        step = _NEXT.get(status, "report this as a bug of perfguard")
        if status in (403, 429):
            reset = headers.get("X-RateLimit-Reset", "")
            known = headers.get("X-RateLimit-Remaining") == "0" and re.fullmatch(r"\d{1,12}", reset)
            limited = known or status == 429 or "rate limit" in message.lower()
            needed = headers.get("X-Accepted-GitHub-Permissions", "a permission")[:_MOST_CHARACTERS]
            step = f"the token may lack {needed}: give it to the job in comment.yml"
            if limited:
                step = f"run the job again after {_minute(float(reset) if known else time.time() + _LIMITED_SECONDS)}"
        return ApiError(f"{what}: {status} {message}".rstrip() + f"; {step}", status)


def decoded(what: str, data: bytes, kind: type[T]) -> T:
    """The JSON of an answer of GitHub's API as `kind`.

    Raises:
        ApiError: the data is no such JSON, for example the login page of a proxy.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"{what}: not an answer of GitHub's API ({str(error)[:200]}); {_NO_API}") from None


def open_client(environ: Mapping[str, str]) -> Client:
    """The client of GITHUB_REPOSITORY at GITHUB_API_URL, with the token of GITHUB_TOKEN.

    Raises:
        GitHubError: there is no token.
        UsageError: a variable has an invalid value.
    """
    repository, number = environ.get("GITHUB_REPOSITORY", ""), environ.get("GITHUB_REPOSITORY_ID", "")
    token = environ.get(TOKEN, "").strip()
    if not token:
        raise GitHubError(NO_TOKEN)
    if not re.fullmatch(r"[!-~]+", token):  # Errors of requests would print the value.
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
    )


def _base(environ: Mapping[str, str], variable: str, default: str) -> str:
    """A base URL without a trailing slash: GitHub answers 404 to doubled slashes."""
    url = environ.get(variable, "").strip().rstrip("/") or default
    if not re.match(r"https://[\w.-]+(:\d{1,5})?(/|$)|http://(localhost|127\.0\.0\.1)(:\d+)?(/|$)", url):
        raise UsageError(f"{variable}={url[:100]!r}: no https:// address; set it to {default}, or to your server's")
    return url


def _innermost(error: BaseException) -> BaseException:
    """The innermost error that requests and urllib3 have wrapped."""
    wrapped = [getattr(error, "reason", None), error.__cause__, *error.args]
    return next((_innermost(each) for each in wrapped if isinstance(each, BaseException)), error)


def _message(body: bytes) -> str:
    """The message of GitHub's error in one line; empty if the body is of another kind."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    details = [problem.errors] if isinstance(problem.errors, str) else problem.errors
    parts = [problem.message, *(each if isinstance(each, str) else each.message for each in details)]
    line = " ".join(" ".join(parts).split())
    return "".join(sign for sign in line if sign.isprintable())[:_MOST_CHARACTERS]


def _too_late(then: float) -> ApiError:
    return ApiError(f"no answer before the deadline; run the job again after {_minute(then)}")


def _plain(value: Any) -> Any:
    """A text as GitHub may store it: with other line ends, and without spaces at its ends."""
    return value.replace("\r\n", "\n").strip() if isinstance(value, str) else value


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(min(seconds, 4e9), UTC):%Y-%m-%d %H:%M} UTC"
