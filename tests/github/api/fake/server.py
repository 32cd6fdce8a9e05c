"""The fake on its sockets: the API and, on another port, the host that artifacts are downloaded from."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any, Self

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.github.api.fake.api import Api, Reply, problem
from tests.github.api.fake.faults import Fault
from tests.github.api.fake.schema import CALLS, GRAPHQL, VERSIONS, Call
from tests.github.api.fake.world import TOKEN, World


class FakeGitHub:
    """A GitHub with one world.

    Args:
        base: path in front of the API, `/api/v3` on GitHub Enterprise; GraphQL lies beside its `/v3` then.
        tls: makes it speak TLS.

    Attributes:
        requests: method and path of each request, in order of arrival, those to storage as `STORAGE`.
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
        self.api = f"{self._server.url_for('')}".rstrip("/") + self._base
        self.storage = self._storage.url_for("").rstrip("/")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop()
        self._storage.stop()

    def reset(self) -> None:
        """As if it had just been opened: a socket takes its time to close."""
        self.world = World()
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.violations: list[str] = []

    def environ(self, token: str = TOKEN) -> dict[str, str]:
        """What a job's environment says of this GitHub."""
        return {
            "GITHUB_TOKEN": token,
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_REPOSITORY_ID": "1",
            "GITHUB_API_URL": self.api,
            "GITHUB_GRAPHQL_URL": f"{self.api.removesuffix('/v3')}/graphql",
            "GITHUB_SERVER_URL": self.api.removesuffix("/api/v3"),
        }

    def fail(self, **fields: Any) -> Fault:
        """Plan a fault; the first that takes a request is used."""
        fault = Fault(**fields)
        self.faults.append(fault)
        return fault

    @property
    def writes(self) -> list[tuple[str, str]]:
        """Requests that are to change something, but for GraphQL's."""
        return [request for request in self.requests if request[0] in ("POST", "PATCH", "DELETE", "PUT")]

    def _handle(self, request: Request) -> Response:
        path = request.path.removeprefix(self._base).replace("/api/graphql", "/graphql")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        with self._lock:
            if path != "/graphql":
                self.requests.append((request.method, path))
            fault = next((fault for fault in self.faults if fault.takes(request.method, path, token)), None)
        if fault and fault.before:
            fault.before()
        if fault is None or not fault.answers or fault.stored:
            with self._lock:
                reply = self._answer(request, path, token)
        if fault and fault.after:
            fault.after()
        if fault and fault.hangs:
            time.sleep(fault.hangs)
        if fault and fault.drops:
            return _dropped(request)
        if fault and fault.status:
            reply = Reply(fault.status, fault.body, {})
        if fault:
            reply.headers = {**reply.headers, **fault.headers}
        return _response(reply)

    def _answer(self, request: Request, path: str, token: str) -> Reply:
        complaint = self._bad_headers(request)
        if complaint:
            self.violations.append(f"{request.method} {path}: {complaint}")
            return problem(400, complaint)
        if token not in self.world.tokens:
            return problem(401, "Bad credentials")
        found = _call(request.method, path)
        if found is None:
            self.violations.append(f"{request.method} {path}: no such call")
            return problem(404, "Not Found")
        call, parts = found
        moved = self._moved(request, parts)
        if moved:
            return moved
        body = request.get_json(silent=True)
        complaints = call.complaints(request.args.to_dict(), body, bool(request.get_data()))
        if complaints:
            self.violations.append(f"{request.method} {path}: {'; '.join(complaints)}")
            return problem(422, "Invalid request.", errors=complaints)
        if not self._may_see(parts):
            return problem(404, "Not Found")
        if call.permission and call.permission not in self.world.tokens[token]:
            headers = {"X-Accepted-GitHub-Permissions": call.permission}
            return Reply(403, {"message": "Resource not accessible by integration"}, headers)
        method = getattr(Api(self.world, self.api, self.storage), call.name)
        reply: Reply = method(token, parts, request.args.to_dict(), body)
        return reply

    def _bad_headers(self, request: Request) -> str:
        if request.headers.get("X-GitHub-Api-Version") not in VERSIONS:
            return f"unknown API version {request.headers.get('X-GitHub-Api-Version')}"
        if "application/vnd.github+json" not in request.headers.get("Accept", ""):
            return "no Accept header for GitHub's JSON"
        if not request.headers.get("User-Agent", "").startswith("perfguard/"):
            return "no User-Agent of perfguard"
        authorization = request.headers.get("Authorization", "")
        if authorization and not authorization.startswith("Bearer "):
            return f"authorization by {authorization.partition(' ')[0]}"
        if request.get_data() and request.mimetype != "application/json":
            return f"a body of type {request.mimetype!r}"
        return ""

    def _moved(self, request: Request, parts: Mapping[str, str | None]) -> Reply | None:
        new = self.world.renamed.get(parts.get("full_name") or "")
        if new is None:
            return None
        rest = request.path.removeprefix(self._base).split("/", 4)[4]
        query = f"?{request.query_string.decode()}" if request.query_string else ""
        status = 301 if request.method == "GET" else 307
        return Reply(
            status, {"message": "Moved Permanently"}, {"Location": f"{self.api}/repositories/{new.id}/{rest}{query}"}
        )

    def _may_see(self, parts: Mapping[str, str | None]) -> bool:
        if "full_name" not in parts:
            return True
        named = [
            repository
            for repository in self.world.repositories
            if parts["full_name"] == repository.full_name or parts["repository_id"] == str(repository.id)
        ]
        return bool(named) and not named[0].gone

    def _store(self, request: Request) -> Response:
        with self._lock:
            self.requests.append(("STORAGE", request.path))
            if "Authorization" in request.headers:
                self.violations.append(f"storage {request.path}: got an Authorization header")
                return Response("InvalidAuthenticationInfo", 401)
            artifact = self.world.artifacts.get(int(request.path.strip("/").removesuffix(".zip")))
        return Response(artifact.data if artifact else b"", 200 if artifact else 404, mimetype="application/zip")


def _call(method: str, path: str) -> tuple[Call, dict[str, str]] | None:
    for call in [GRAPHQL, *CALLS]:
        parts = call.match(method, path)
        if parts is not None:
            return call, parts
    return None


def _response(reply: Reply) -> Response:
    if isinstance(reply.value, str | bytes):
        return Response(reply.value, reply.status, reply.headers)
    if reply.value is None:
        return Response(b"", reply.status, reply.headers)
    headers = {"Content-Type": "application/json; charset=utf-8", **reply.headers}
    return Response(json.dumps(reply.value), reply.status, headers)


def _dropped(request: Request) -> Response:
    """Close the connection without an answer."""
    connection: socket.socket = request.environ["werkzeug.socket"]
    connection.shutdown(socket.SHUT_RDWR)
    return Response(b"", 200)
