"""The calls, answered from the world: status, headers and a value for JSON."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.github.api.fake.world import BOT, World, sha


@dataclass
class Reply:
    """An answer; `value` becomes JSON unless it is bytes or None."""

    status: int
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)


def problem(status: int, message: str, **fields: Any) -> Reply:
    return Reply(status, {"message": message, "documentation_url": "https://docs.github.com/rest", **fields})


NOT_FOUND = problem(404, "Not Found")


class Api:
    """Answers calls by the names in schema.py.

    Args:
        api, storage: base URLs of the API and of the host that artifacts lie on.
    """

    def __init__(self, world: World, api: str, storage: str) -> None:
        self.world = world
        self.api = api
        self.storage = storage

    def list_comments(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        if int(path["number"]) not in self.world.pulls:
            return NOT_FOUND
        listed = []
        for comment in self.world.on(int(path["number"])):
            if self.world.unlisted[comment["id"]] > 0:
                self.world.unlisted[comment["id"]] -= 1
            else:
                listed.append(_shown(comment))
        return self._page(listed, query, f"/repositories/1/issues/{path['number']}/comments")

    def create_comment(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        pull = self.world.pulls.get(int(path["number"]))
        if pull is None:
            return NOT_FOUND
        if pull["locked"]:
            return problem(403, "Unable to create comment because issue is locked.")
        refusal = self._unacceptable(body["body"])
        if refusal:
            return refusal
        number = self.world.add_comment(int(path["number"]), body["body"], self.world.viewers.get(token, BOT))
        return Reply(201, _shown(self.world.comments[number]))

    def get_comment(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        comment = self.world.comments.get(int(path["id"]))
        return Reply(200, _shown(comment)) if comment else NOT_FOUND

    def edit_comment(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        comment = self.world.comments.get(int(path["id"]))
        if comment is None:
            return NOT_FOUND
        refusal = self._unacceptable(body["body"])
        if refusal:
            return refusal
        comment["body"] = body["body"]
        return Reply(200, _shown(comment))

    def delete_comment(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        return Reply(204) if self.world.comments.pop(int(path["id"]), None) else NOT_FOUND

    def list_pulls(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        owner, _, branch = query.get("head", ":").partition(":")
        found = [
            pull
            for pull in self.world.pulls.values()
            if query.get("state", "open") in (pull["state"], "all")
            and (not branch or pull["head"]["ref"] == branch)
            and (not owner or (pull["head"]["repo"] or {"owner": {"login": ""}})["owner"]["login"] == owner)
        ]
        return self._page(found, query, "/repositories/1/pulls")

    def get_pull(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        pull = self.world.pulls.get(int(path["number"]))
        return Reply(200, pull) if pull else NOT_FOUND

    def pulls_of_commit(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        # The base repository knows nothing of a fork's commits.
        asked = path["full_name"]
        found = [
            pull
            for pull in self.world.pulls.values()
            if pull["head"]["sha"] == path["sha"] and (pull["head"]["repo"] or {}).get("full_name") == asked
        ]
        return self._page(found, query, "/repositories/2/commits")

    def get_run(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        run = self.world.runs.get(int(path["id"]))
        return Reply(200, run) if run else NOT_FOUND

    def list_artifacts(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        found = [
            artifact.as_json(self.api)
            for artifact in self.world.artifacts.values()
            if artifact.run == int(path["id"]) and query.get("name", artifact.name) == artifact.name
        ]
        reply = self._page(found, query, f"/repositories/1/actions/runs/{path['id']}/artifacts")
        reply.value = {"total_count": len(found), "artifacts": reply.value}
        return reply

    def download_artifact(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        artifact = self.world.artifacts.get(int(path["id"]))
        if artifact is None:
            return NOT_FOUND
        if artifact.expired:
            return problem(410, "Artifact has expired")
        return Reply(302, None, {"Location": f"{self.storage}/{artifact.id}.zip?sig=a%2Bb"})

    def compare(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        found = self.world.comparisons.get((path["base"], path["head"]))
        return Reply(200, found) if found else problem(404, "No common ancestor")

    def get_contents(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        files = self.world.files.get(query.get("ref", ""))
        name = path["path"].strip("/")
        if files is None:
            return problem(404, f"No commit found for the ref {query.get('ref')}")
        if name in files:
            data = files[name]
            large = len(data) > 2**20
            content = "" if large else base64.encodebytes(data).decode()
            encoding = "none" if large else "base64"
            return Reply(200, {**self._entry(name, "file", data), "encoding": encoding, "content": content})
        start = f"{name}/" if name else ""
        below = sorted(path.removeprefix(start) for path in [*files, *self.world.links] if path.startswith(start))
        if not below and name:
            return NOT_FOUND
        entries: dict[str, dict[str, Any]] = {}
        for rest in below:
            first, _, deeper = rest.partition("/")
            whole = f"{start}{first}"
            kind = "dir" if deeper else ("symlink" if whole in self.world.links else "file")
            entries[whole] = self._entry(whole, kind, files.get(whole, b""))
            if kind == "dir":
                entries[whole]["sha"] = tree = sha(f"tree {query.get('ref', '')} {whole}")
                self.world.trees[tree] = query.get("ref", ""), whole
        return Reply(200, list(entries.values())[:1000])

    def get_tree(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        if path["sha"] not in self.world.trees:
            return NOT_FOUND
        ref, folder = self.world.trees[path["sha"]]
        files, found = self.world.files[ref], []
        for name in sorted(each for each in [*files, *self.world.links] if each.startswith(f"{folder}/")):
            entry = self._entry(name, "file", files.get(name, b""))
            link = name in self.world.links
            mode = "120000" if link else "100644"
            found.append({"path": name.removeprefix(f"{folder}/"), "mode": mode, "type": "blob", "sha": entry["sha"],
                          "size": entry["size"]})  # fmt: skip
        most = self.world.most_leaves
        return Reply(200, {"sha": path["sha"], "tree": found[:most], "truncated": len(found) > most})

    def create_status(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        if len(body.get("description", "")) > 140:
            return problem(422, "Validation Failed", errors=["description is too long (maximum is 140 characters)"])
        status = {"context": "default", "description": None, "target_url": None, **body, "id": next(self.world.ids)}
        self.world.statuses.setdefault(path["sha"], []).append(status)
        return Reply(201, status)

    def combined_status(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        latest = {status["context"].lower(): status for status in self.world.statuses.get(path["sha"], [])}
        reply = self._page(list(latest.values()), query, f"/repositories/1/commits/{path['sha']}/status")
        reply.value = {"state": "pending", "sha": path["sha"], "total_count": len(latest), "statuses": reply.value}
        return reply

    def graphql(self, token: str, path: Mapping[str, str], query: Mapping[str, str], body: Any) -> Reply:
        text = " ".join(body["query"].split())
        if text == "query { viewer { login } }":
            return Reply(200, {"data": {"viewer": {"login": self.world.viewers.get(token, BOT)["login"]}}})
        return Reply(200, {"errors": [{"message": f"Parse error on {text[:40]!r}"}]})

    def _unacceptable(self, body: str) -> Reply | None:
        if not body.strip():
            return problem(422, "Validation Failed", errors=[{"resource": "IssueComment", "code": "missing_field"}])
        if len(body) > self.world.most_characters:
            said = f"body is too long (maximum is {self.world.most_characters} characters)"
            return problem(
                422, "Validation Failed", errors=[{"resource": "IssueComment", "field": "data", "message": said}]
            )
        return None

    def _page(self, values: list[Any], query: Mapping[str, str], path: str) -> Reply:
        size, number = int(query.get("per_page", "30")), int(query.get("page", "1"))
        headers = {}
        if number * size < len(values):
            rest = "&".join(f"{name}={value}" for name, value in query.items() if name != "page")
            last = -(-len(values) // size)
            headers["Link"] = (
                f'<{self.api}{path}?{rest}&page={number + 1}>; rel="next", '
                f'<{self.api}{path}?{rest}&page={last}>; rel="last"'
            )
        return Reply(200, values[(number - 1) * size : number * size], headers)

    def _entry(self, path: str, kind: str, data: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return {
            "type": kind,
            "name": path.rpartition("/")[2],
            "path": path,
            "sha": blob,
            "size": len(data) if kind == "file" else 0,
        }


def _shown(comment: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in comment.items() if not name.startswith("_")}
