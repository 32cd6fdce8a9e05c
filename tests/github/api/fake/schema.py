"""The calls that perfguard makes, as GitHub's public description has them: what it would reject is rejected here.

Written from the OpenAPI description that the npm package @octokit/openapi 23.0.2 holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSIONS = ("2022-11-28",)
_SHA = r"[0-9a-f]{40}"
_PARTS = {
    "{repo}": r"(?:repos/(?P<full_name>[^/]+/[^/]+)|repositories/(?P<repository_id>\d+))",
    "{number}": r"(?P<number>\d+)",
    "{id}": r"(?P<id>\d+)",
    "{sha}": rf"(?P<sha>{_SHA})",
    "{base}...{head}": rf"(?P<base>{_SHA})\.\.\.(?P<head>{_SHA})",
    "{path}": r"(?P<path>.*)",
}
_PAGE = {"per_page": r"[1-9]\d?|100", "page": r"[1-9]\d*"}


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        name: of the method of `Api` that answers it.
        query: parameter -> pattern of its value.
        body: field -> its type, or its choices; `required` are those that must be there.
        permission: that the token needs.
    """

    name: str
    method: str
    path: str
    permission: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, type | tuple[str, ...]] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    def match(self, method: str, path: str) -> dict[str, str] | None:
        pattern = re.escape(self.path).replace(r"\{", "{").replace(r"\}", "}").replace(r"\.\.\.", "...")
        for part, expression in _PARTS.items():
            pattern = pattern.replace(part, expression)
        found = re.fullmatch(pattern, path)
        return found.groupdict() if found and method == self.method else None

    def complaints(self, query: Mapping[str, str], body: Any, has_body: bool) -> list[str]:
        """What is wrong with a request of this call."""
        found = [f"unknown query parameter {name}" for name in query if name not in self.query]
        found += [
            f"query parameter {name}={value}"
            for name, value in query.items()
            if name in self.query and not re.fullmatch(self.query[name], value)
        ]
        if not self.body:
            return [*found, "a body where none belongs"] if has_body else found
        if not isinstance(body, dict):
            return [*found, "no JSON object as body"]
        found += [f"missing field {name}" for name in self.required if name not in body]
        found += [f"unknown field {name}" for name in body if name not in self.body]
        return found + [
            f"field {name} is {value!r:.60}"
            for name, value in body.items()
            if name in self.body and not _fits(value, self.body[name])
        ]


def _fits(value: Any, kind: type | tuple[str, ...]) -> bool:
    return value in kind if isinstance(kind, tuple) else type(value) is kind


COMMENT = {"body": str}
STATUS: dict[str, type | tuple[str, ...]] = {
    "state": ("error", "failure", "pending", "success"),
    "target_url": str,
    "description": str,
    "context": str,
}
PULLS = {"state": "open|closed|all", "head": r"[^:]+:.+", "base": ".+", **_PAGE}
CALLS = [
    Call("list_comments", "GET", "/{repo}/issues/{number}/comments", "pull_requests=read", _PAGE),
    Call("create_comment", "POST", "/{repo}/issues/{number}/comments", "pull_requests=write", {}, COMMENT, ("body",)),
    Call("get_comment", "GET", "/{repo}/issues/comments/{id}", "pull_requests=read"),
    Call("edit_comment", "PATCH", "/{repo}/issues/comments/{id}", "pull_requests=write", {}, COMMENT, ("body",)),
    Call("delete_comment", "DELETE", "/{repo}/issues/comments/{id}", "pull_requests=write"),
    Call("list_pulls", "GET", "/{repo}/pulls", "pull_requests=read", PULLS),
    Call("get_pull", "GET", "/{repo}/pulls/{number}", "pull_requests=read"),
    Call("pulls_of_commit", "GET", "/{repo}/commits/{sha}/pulls", "pull_requests=read", _PAGE),
    Call("get_run", "GET", "/{repo}/actions/runs/{id}", "actions=read"),
    Call("list_artifacts", "GET", "/{repo}/actions/runs/{id}/artifacts", "actions=read", {**_PAGE, "name": ".+"}),
    Call("download_artifact", "GET", "/{repo}/actions/artifacts/{id}/zip", "actions=read"),
    Call("compare", "GET", "/{repo}/compare/{base}...{head}", "contents=read", _PAGE),
    Call("get_contents", "GET", "/{repo}/contents/{path}", "contents=read", {"ref": ".+"}),
    Call("get_tree", "GET", "/{repo}/git/trees/{sha}", "contents=read", {"recursive": "1"}),
    Call("create_status", "POST", "/{repo}/statuses/{sha}", "statuses=write", {}, STATUS, ("state",)),
    Call("combined_status", "GET", "/{repo}/commits/{sha}/status", "statuses=read", _PAGE),
]
GRAPHQL = Call("graphql", "POST", "/graphql", "", {}, {"query": str}, ("query",))
