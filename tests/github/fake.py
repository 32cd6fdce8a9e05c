"""A GitHub on a loopback socket: keeps what is written, refuses what the real one would refuse, fails on command.

The calls are those that perfguard makes, as GitHub's public OpenAPI description has them (npm package
@octokit/openapi 23.0.2).
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

BOT = {"login": "github-actions[bot]", "type": "Bot"}
TOKEN = "ghs_thisIsTheSecretOfThePostJob0123456789"
ALL_PERMISSIONS = frozenset(
    {"pull_requests=read", "pull_requests=write", "statuses=read", "statuses=write", "actions=read", "contents=read"}
)


def sha(name: str) -> str:
    """A commit's hash, the same for the same name."""
    return hashlib.sha1(name.encode()).hexdigest()


def blob(data: bytes) -> str:
    """Git's hash of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def repository(number: int, full_name: str) -> dict[str, Any]:
    owner, _, name = full_name.partition("/")
    return {"id": number, "name": name, "full_name": full_name, "owner": {"login": owner}}


HOME, FORK = repository(1, "o/r"), repository(2, "stranger/r")


# -- what it holds -----------------------------------------------------------------------------------------------------


@dataclass
class Artifact:
    """An uploaded zip file. `size` and `digest` are what GitHub says of it, by default the true ones."""

    id: int
    run: int
    name: str
    data: bytes
    expired: bool = False
    size: int | None = None
    digest: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "size_in_bytes": len(self.data) if self.size is None else self.size,
            "expired": self.expired,
            "digest": self.digest or f"sha256:{hashlib.sha256(self.data).hexdigest()}",
            "workflow_run": {"id": self.run},
        }


@dataclass
class Data:
    """Everything that the fake holds: tests fill, change and read it.

    Attributes:
        tokens: the permissions of each token.
        owner: who the tokens belong to.
        files: commit -> path -> content.
        links: paths of symbolic links, in every commit.
        most_entries: of a tree that GitHub lists.
    """

    tokens: dict[str, frozenset[str]] = field(default_factory=lambda: {TOKEN: ALL_PERMISSIONS})
    owner: dict[str, str] = field(default_factory=lambda: BOT)
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    statuses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    artifacts: dict[int, Artifact] = field(default_factory=dict)
    jobs: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # Run and attempt -> the names of its jobs.
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    links: set[str] = field(default_factory=set)
    trees: dict[str, tuple[str, str]] = field(default_factory=dict)  # hash -> commit and folder
    most_entries: int = 100_000
    comparisons: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(101))

    def add_pull(
        self,
        number: int = 7,
        *,
        head: str = "head",
        branch: str = "topic",
        base_ref: str = "main",
        source: dict[str, Any] = FORK,
        **fields: Any,
    ) -> dict[str, Any]:
        """An open pull request of the fork, or of `source`; `head` names a commit."""
        self.pulls[number] = {
            "number": number,
            "state": "open",
            "locked": False,
            "title": "${{ github.token }}",
            "head": {"sha": sha(head), "ref": branch, "repo": source},
            "base": {"sha": sha("base"), "ref": base_ref, "repo": HOME},
            **fields,
        }
        return self.pulls[number]

    def add_comment(self, pull: int, body: str, user: dict[str, str] | None = None) -> int:
        number = next(self.ids)
        user = user or {"login": "somebody", "type": "User"}
        self.comments[number] = {"id": number, "body": body, "user": user, "_pull": pull}
        return number

    def add_run(self, number: int = 5001, *, head: str = "head", attempt: int = 1, **fields: Any) -> dict[str, Any]:
        """A workflow run of the fork's branch `topic`, as the event and the API report it."""
        self.runs[number] = {
            "id": number,
            "event": "pull_request",
            "path": ".github/workflows/measure.yml",
            "head_sha": sha(head),
            "head_branch": "topic",
            "run_attempt": attempt,
            "status": "completed",
            "conclusion": "success",
            "display_title": "`rm -rf`",
            "repository": HOME,
            "head_repository": FORK,
            "pull_requests": [],
            **fields,
        }
        return self.runs[number]

    def add_artifact(self, run: int, name: str, data: bytes, **fields: Any) -> Artifact:
        artifact = Artifact(next(self.ids), run, name, data, **fields)
        self.artifacts[artifact.id] = artifact
        return artifact

    def add_comparison(self, base: str, head: str, merge_base: str) -> None:
        """The commits `base` and `head`, which part at `merge_base`."""
        commit = {"sha": sha(merge_base), "commit": {"message": "m"}}
        self.comparisons[sha(base), sha(head)] = {"behind_by": 3, "commits": [], "merge_base_commit": commit}

    def on(self, pull: int) -> list[dict[str, Any]]:
        """The comments of a pull request, by id."""
        return [comment for _, comment in sorted(self.comments.items()) if comment["_pull"] == pull]


@dataclass
class Fault:
    """Something that happens to requests that match, instead of an answer or beside it.

    Attributes:
        method, path: which requests: `path` is searched for, without the base and the repository.
        times: how often.
        status, headers, body: the answer; status 0 leaves the real one, with `headers` over its own.
        stored: the request takes effect before the answer is spoilt.
        hangs: seconds that the answer takes longer.
        drops: the connection is closed in place of an answer.
    """

    method: str = ".*"
    path: str = ""
    times: int = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    stored: bool = False
    hangs: float = 0.0
    drops: bool = False

    def takes(self, method: str, path: str) -> bool:
        """Whether this request is one of those; counts it."""
        if not self.times or not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        self.times -= 1
        return True


# -- calls -------------------------------------------------------------------------------------------------------------


@dataclass
class Reply:
    """An answer; `value` becomes JSON unless it is text, bytes or None."""

    status: int
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)


def problem(status: int, message: str, **fields: Any) -> Reply:
    return Reply(status, {"message": message, "documentation_url": "https://docs.github.com/rest", **fields})


NOT_FOUND = problem(404, "Not Found")
PAGE = {"per_page": r"[1-9]\d?|100", "page": r"[1-9]\d*"}
STATUS = {"state": "error|failure|pending|success", "target_url": ".*", "description": ".{0,140}", "context": ".+"}
SHA = r"([0-9a-f]{40})"
#: Call -> method, path, permission, query parameters, fields of the body; with the pattern of each value.
CALLS: dict[str, tuple[str, str, str, Mapping[str, str], Mapping[str, str]]] = {
    "list_comments": ("GET", r"/issues/(\d+)/comments", "pull_requests=read", PAGE, {}),
    "create_comment": ("POST", r"/issues/(\d+)/comments", "pull_requests=write", {}, {"body": r".*\S.*"}),
    "edit_comment": ("PATCH", r"/issues/comments/(\d+)", "pull_requests=write", {}, {"body": r".*\S.*"}),
    "delete_comment": ("DELETE", r"/issues/comments/(\d+)", "pull_requests=write", {}, {}),
    "list_pulls": ("GET", "/pulls", "pull_requests=read", {"state": "open|closed|all", **PAGE}, {}),
    "get_pull": ("GET", r"/pulls/(\d+)", "pull_requests=read", {}, {}),
    "get_run": ("GET", r"/actions/runs/(\d+)", "actions=read", {}, {}),
    "list_artifacts": ("GET", r"/actions/runs/(\d+)/artifacts", "actions=read", {**PAGE, "name": ".+"}, {}),
    "all_artifacts": ("GET", "/actions/artifacts", "actions=read", {**PAGE, "name": ".+"}, {}),
    "download_artifact": ("GET", r"/actions/artifacts/(\d+)/zip", "actions=read", {}, {}),
    "compare": ("GET", rf"/compare/{SHA}\.\.\.{SHA}", "contents=read", PAGE, {}),
    "list_jobs": (
        "GET",
        r"/actions/runs/(\d+)/attempts/(\d+)/jobs",
        "actions=read",
        {"per_page": r"\d+"},
        {},
    ),
    "get_tree": ("GET", f"/git/trees/{SHA}", "contents=read", {"recursive": "1"}, {}),
    "get_blob": ("GET", f"/git/blobs/{SHA}", "contents=read", {}, {}),
    "list_statuses": ("GET", f"/commits/{SHA}/statuses", "statuses=read", PAGE, {}),
    "viewer": ("POST", "(?:/api)?/graphql", "", {}, {"query": r"\{viewer\{login\}\}"}),
    "create_status": ("POST", f"/statuses/{SHA}", "statuses=write", {}, STATUS),
}
REQUIRED = {"create_comment": {"body"}, "edit_comment": {"body"}, "create_status": {"state"}}


class FakeGitHub:
    """A GitHub that holds `data`, and on another port the host that artifacts are downloaded from.

    Args:
        base: path in front of the API, `/api/v3` on GitHub Enterprise.
        tls: makes it speak TLS.

    Attributes:
        requests: method and path (without the repository) of each request, those to storage as `STORAGE`.
        before: method -> what happens before the next request of that method is answered.
        violations: what the real GitHub would have rejected as malformed; a test that leaves one fails.
    """

    def __init__(self, base: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.reset()
        self._base = base
        self._lock = threading.Lock()
        self._server = HTTPServer(host="127.0.0.1", port=0, ssl_context=tls, threaded=True)
        self._storage = HTTPServer(host="127.0.0.1", port=0, ssl_context=tls, threaded=True)
        self._server.expect_request(re.compile(".*")).respond_with_handler(self._handle)
        self._storage.expect_request(re.compile(".*")).respond_with_handler(self._store)

    def __enter__(self) -> Self:
        self._server.start()
        self._storage.start()
        self.api = self._server.url_for("").rstrip("/") + self._base
        self.storage = self._storage.url_for("").rstrip("/")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop()
        self._storage.stop()

    def reset(self) -> None:
        """As if it had just been opened: a socket takes its time to close."""
        self.data = Data()
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.before: dict[str, Callable[[], Any]] = {}
        self.violations: list[str] = []

    def environ(self, token: str = TOKEN) -> dict[str, str]:
        """What a job's environment says of this GitHub."""
        return {
            "GITHUB_TOKEN": token,
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_REPOSITORY_ID": "1",
            "GITHUB_API_URL": self.api,
            "GITHUB_SERVER_URL": self.server,
        }

    @property
    def server(self) -> str:
        """The URL of the pages that people read."""
        return self.api.removesuffix("/api/v3")

    def fail(self, **fields: Any) -> None:
        """Plan a fault; the first that takes a request is used."""
        self.faults.append(Fault(**fields))

    @property
    def writes(self) -> list[tuple[str, str]]:
        """Requests that are to change something."""
        changing = ("POST", "PATCH", "DELETE", "PUT")
        return [request for request in self.requests if request[0] in changing and "graphql" not in request[1]]

    def _handle(self, request: Request) -> Response:
        path = request.path.removeprefix(f"{self._base}/repos/o/r")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        with self._lock:
            self.requests.append((request.method, path))
            self.before.pop(request.method, lambda: None)()
            fault = next((fault for fault in self.faults if fault.takes(request.method, path)), Fault())
        reply = Reply(0)
        if fault.stored or not (fault.status or fault.drops):
            with self._lock:
                reply = self._answer(request, path, token)
        time.sleep(fault.hangs)
        if fault.drops:
            connection: socket.socket = request.environ["werkzeug.socket"]
            connection.shutdown(socket.SHUT_RDWR)
            return Response(b"")
        if fault.status:
            reply = Reply(fault.status, fault.body)
        headers = {**reply.headers, **fault.headers}
        if reply.value is None or isinstance(reply.value, str | bytes):
            return Response(reply.value or b"", reply.status, headers)
        return Response(json.dumps(reply.value), reply.status, {"Content-Type": "application/json", **headers})

    def _answer(self, request: Request, path: str, token: str) -> Reply:
        if token not in self.data.tokens:
            return problem(401, "Bad credentials")
        if path.startswith("/repos/"):  # It has one repository.
            return NOT_FOUND
        found = [
            (name, match, permission, query, fields)
            for name, (method, pattern, permission, query, fields) in CALLS.items()
            if method == request.method and (match := re.fullmatch(pattern, path))
        ]
        complaints = [] if found else ["no such call"]
        if request.headers.get("X-GitHub-Api-Version") != "2022-11-28":
            complaints.append("unknown API version")
        if request.headers.get("Accept") != "application/vnd.github+json":
            complaints.append("no Accept header for GitHub's JSON")
        if not request.headers.get("User-Agent", "").startswith("perfguard/"):
            complaints.append("no User-Agent of perfguard")
        asked, body = request.args.to_dict(), request.get_json(silent=True)
        for name, _, _, query, fields in found:
            complaints += _misfits("query parameter", asked, query)
            complaints += _misfits("field", body or {}, fields)
            complaints += [f"missing field {each}" for each in REQUIRED.get(name, set()) - set(body or {})]
            if request.get_data() and (not fields or not isinstance(body, dict)):
                complaints.append("a body where none belongs, or no JSON")
        if complaints:
            self.violations.append(f"{request.method} {path}: {'; '.join(complaints)}")
            return problem(422, "Invalid request.", errors=complaints)
        name, match, permission, _, _ = found[0]
        if permission and permission not in self.data.tokens[token]:
            headers = {"X-Accepted-GitHub-Permissions": permission}
            return Reply(403, {"message": "Resource not accessible by integration"}, headers)
        reply: Reply = getattr(Api(self.data, self.server, self.storage, token, asked), name)(
            *match.groups(), **(body or {})
        )
        if name.startswith("list_") and "page" in asked and reply.status == 200:
            _cut(reply, asked)
        return reply

    def _store(self, request: Request) -> Response:
        with self._lock:
            self.requests.append(("STORAGE", request.path))
            if "Authorization" in request.headers:
                self.violations.append(f"storage {request.path}: got an Authorization header")
            artifact = self.data.artifacts.get(int(request.path.strip("/").removesuffix(".zip")))
        return Response(artifact.data if artifact else b"", 200 if artifact else 404, mimetype="application/zip")


def _misfits(what: str, given: Mapping[str, Any], known: Mapping[str, str]) -> list[str]:
    return [
        f"{what} {name}={value!r:.60}"
        for name, value in given.items()
        if name not in known or not isinstance(value, str) or not re.fullmatch(known[name], value, re.DOTALL)
    ]


def _cut(reply: Reply, asked: Mapping[str, str]) -> None:
    """Cut a list to the page that was asked for; `Link` says whether there are more."""
    size, number = int(asked["per_page"]), int(asked["page"])
    listed = reply.value if isinstance(reply.value, list) else next(iter(reply.value.values()))
    if number * size < len(listed):
        reply.headers["Link"] = '<https://example.org/x?page=9>; rel="next", <https://example.org/x?page=9>; rel="last"'
    page = listed[(number - 1) * size : number * size]
    reply.value = page if isinstance(reply.value, list) else {next(iter(reply.value)): page}


@dataclass
class Api:
    """Answers the calls of CALLS by their names."""

    data: Data
    server: str
    storage: str
    token: str
    query: Mapping[str, str]

    def list_comments(self, pull: str) -> Reply:
        return Reply(200, self.data.on(int(pull))) if int(pull) in self.data.pulls else NOT_FOUND

    def create_comment(self, pull: str, body: str) -> Reply:
        if self.data.pulls[int(pull)]["locked"]:
            return problem(403, "Unable to create comment because issue is locked.")
        if len(body) > 65_536:
            return problem(422, "Validation Failed", errors=[{"message": "body is too long"}])
        number = self.data.add_comment(int(pull), body, self.data.owner)
        return Reply(201, self.data.comments[number])

    def edit_comment(self, number: str, body: str) -> Reply:
        comment = self.data.comments.get(int(number))
        if comment is None:
            return NOT_FOUND
        comment["body"] = body
        return Reply(200, comment)

    def delete_comment(self, number: str) -> Reply:
        return Reply(204) if self.data.comments.pop(int(number), None) else NOT_FOUND

    def list_pulls(self) -> Reply:
        return Reply(200, [pull for pull in self.data.pulls.values() if pull["state"] == self.query["state"]])

    def get_pull(self, number: str) -> Reply:
        pull = self.data.pulls.get(int(number))
        return Reply(200, pull) if pull else NOT_FOUND

    def get_run(self, number: str) -> Reply:
        run = self.data.runs.get(int(number))
        return Reply(200, run) if run else NOT_FOUND

    def list_artifacts(self, run: str) -> Reply:
        found = [each for each in self.data.artifacts.values() if each.run == int(run)]
        named = [each.as_json() for each in found if self.query.get("name", each.name) == each.name]
        return Reply(200, {"artifacts": named, "total_count": len(named)})

    def all_artifacts(self) -> Reply:
        """The newest first, each with the branch of its run."""
        found = []
        for _, each in sorted(self.data.artifacts.items(), reverse=True):
            if each.name == self.query["name"]:
                run = self.data.runs[each.run]
                source = {"head_branch": run["head_branch"], "head_repository_id": run["head_repository"]["id"]}
                found.append(each.as_json() | {"workflow_run": {"id": each.run, **source}})
        return Reply(200, {"artifacts": found[: int(self.query["per_page"])], "total_count": len(found)})

    def list_jobs(self, run: str, attempt: str) -> Reply:
        named = self.data.jobs.get((int(run), int(attempt)), [])
        at = f"{self.server}/o/r/actions/runs/{run}/job"
        jobs = [{"name": name, "html_url": f"{at}/{number}"} for number, name in enumerate(named, 1)]
        return Reply(200, {"jobs": jobs, "total_count": len(jobs)})

    def download_artifact(self, number: str) -> Reply:
        if self.data.artifacts[int(number)].expired:
            return problem(410, "Artifact has expired")
        return Reply(302, None, {"Location": f"{self.storage}/{number}.zip?sig=a%2Bb"})

    def compare(self, base: str, head: str) -> Reply:
        found = self.data.comparisons.get((base, head))
        if not found:
            return problem(404, "No common ancestor")
        before, after = (self.data.files.get(each, {}) for each in (found["merge_base_commit"]["sha"], head))
        names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        return Reply(200, {**found, "files": [{"filename": name} for name in names[:300]]})

    def get_tree(self, tree: str) -> Reply:
        commit, folder = self.data.trees.get(tree, (tree, ""))
        if commit not in self.data.files:
            return NOT_FOUND
        files = self.data.files[commit]
        entries: dict[str, dict[str, Any]] = {}
        for path in sorted({*files, *self.data.links}):
            if path.startswith(folder):
                rest = path.removeprefix(folder)
                first = rest if "recursive" in self.query else rest.partition("/")[0]
                if first == rest:
                    data = files.get(path, b"")
                    mode = "120000" if path in self.data.links else "100644"
                    entries[first] = {"path": first, "mode": mode, "sha": blob(data), "size": len(data)}
                elif first not in entries:
                    below = f"{folder}{first}/"
                    held = [(each, blob(data)) for each, data in sorted(files.items()) if each.startswith(below)]
                    hashed = sha(f"tree {held}")
                    self.data.trees[hashed] = commit, below
                    entries[first] = {"path": first, "mode": "040000", "sha": hashed}
        listed = list(entries.values())
        most = self.data.most_entries
        return Reply(200, {"sha": tree, "tree": listed[:most], "truncated": len(listed) > most})

    def get_blob(self, hashed: str) -> Reply:
        contents = [data for files in self.data.files.values() for data in files.values()]
        data = next((data for data in contents if blob(data) == hashed), None)
        if data is None:
            return NOT_FOUND
        return Reply(200, {"content": base64.encodebytes(data).decode(), "encoding": "base64", "sha": hashed})

    def list_statuses(self, commit: str) -> Reply:
        return Reply(200, self.data.statuses.get(commit, [])[::-1])

    def viewer(self, query: str) -> Reply:
        return Reply(200, {"data": {"viewer": {"login": self.data.owner["login"]}}})

    def create_status(self, commit: str, **fields: Any) -> Reply:
        status = {"context": "default", "description": None, "target_url": None, **fields}
        self.data.statuses.setdefault(commit, []).append(status)
        return Reply(201, status)


class Gh:
    """A `gh` on PATH that downloads what a run has, by the name of its artifact."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.artifacts = folder / "artifacts"
        self._program = folder / "bin" / "gh"
        self._program.parent.mkdir(parents=True)
        monkeypatch.setenv("PATH", f"{self._program.parent}:{os.environ['PATH']}")
        self.says(f'[ "$1 $2 $4" = "run download --dir" ] && cp -r {self.artifacts}/. "$5"')

    def says(self, script: str) -> None:
        self._program.write_text(f"#!/bin/sh\n{script}\n")
        self._program.chmod(0o755)

    def has(self, name: str, data: bytes, file: str) -> None:
        (self.artifacts / name).mkdir(parents=True, exist_ok=True)
        (self.artifacts / name / file).write_bytes(data)
