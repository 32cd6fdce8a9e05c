"""What stands on the fake GitHub: plain data that tests lay out and look at."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from typing import Any

BOT = {"login": "github-actions[bot]", "type": "Bot"}
TOKEN = "ghs_thisIsTheSecretOfThePostJob0123456789"
ALL_PERMISSIONS = frozenset(
    {"pull_requests=read", "pull_requests=write", "statuses=read", "statuses=write", "actions=read", "contents=read"}
)


def sha(name: str) -> str:
    """A commit's hash, the same for the same name."""
    return hashlib.sha1(name.encode()).hexdigest()


@dataclass
class Repository:
    """A repository; `gone` answers 404."""

    id: int
    full_name: str
    gone: bool = False

    @property
    def owner(self) -> str:
        return self.full_name.partition("/")[0]

    def as_json(self) -> dict[str, Any]:
        name = self.full_name.partition("/")[2]
        return {"id": self.id, "name": name, "full_name": self.full_name, "owner": {"login": self.owner}}


@dataclass
class Artifact:
    """An uploaded zip file. `size` and `digest` are what GitHub says of it, by default the truth."""

    id: int
    run: int
    name: str
    data: bytes
    expired: bool = False
    size: int | None = None
    digest: str | None = None

    def as_json(self, api: str) -> dict[str, Any]:
        url = f"{api}/repos/o/r/actions/artifacts/{self.id}"
        return {
            "id": self.id,
            "node_id": f"A_{self.id}",
            "name": self.name,
            "size_in_bytes": len(self.data) if self.size is None else self.size,
            "url": url,
            "archive_download_url": f"{url}/zip",
            "expired": self.expired,
            "created_at": "2026-11-21T10:00:00Z",
            "expires_at": "2027-02-19T10:00:00Z",
            "updated_at": "2026-11-21T10:00:00Z",
            "digest": self.digest or f"sha256:{hashlib.sha256(self.data).hexdigest()}",
            "workflow_run": {"id": self.run},
        }


@dataclass
class World:
    """Everything that the fake knows. Tests may change any of it at any time.

    Attributes:
        tokens: the permissions of each token.
        viewers: who a token is, where it is not the job's own bot.
        most_characters: of a comment; more are refused with 422.
        list_lag: in how many listings a new comment does not show.
        files: commit -> path -> content.
        links: path -> target of symbolic links, shown in listings.
        renamed: old full name -> repository; answers 301 or 307 to `/repositories/ID/…`.
    """

    home: Repository = field(default_factory=lambda: Repository(1, "o/r"))
    fork: Repository = field(default_factory=lambda: Repository(2, "stranger/r"))
    tokens: dict[str, frozenset[str]] = field(default_factory=lambda: {TOKEN: ALL_PERMISSIONS})
    viewers: dict[str, dict[str, str]] = field(default_factory=dict)
    renamed: dict[str, Repository] = field(default_factory=dict)
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    statuses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    trees: dict[str, tuple[str, str]] = field(default_factory=dict)  # hash -> commit and folder
    most_leaves: int = 100_000  # of a tree that GitHub lists
    artifacts: dict[int, Artifact] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    comparisons: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    most_characters: int = 65_536
    list_lag: int = 0
    unlisted: dict[int, int] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(101))

    @property
    def repositories(self) -> list[Repository]:
        return [self.home, self.fork]

    def add_pull(
        self,
        number: int = 7,
        *,
        head: str = "head",
        branch: str = "topic",
        base: str = "base",
        base_ref: str = "main",
        source: Repository | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """An open pull request of the fork, or of `source`. `head` and `base` name commits."""
        source = source or self.fork
        self.pulls[number] = {
            "number": number,
            "state": "open",
            "locked": False,
            "draft": False,
            "title": "${{ github.token }}",
            "labels": [],
            "head": {"sha": sha(head), "ref": branch, "repo": source.as_json()},
            "base": {"sha": sha(base), "ref": base_ref, "repo": self.home.as_json()},
            **fields,
        }
        return self.pulls[number]

    def add_comment(self, pull: int, body: str, user: dict[str, str] | None = None) -> int:
        number = next(self.ids)
        self.comments[number] = {
            "id": number,
            "body": body,
            "user": user or {"login": "somebody", "type": "User"},
            "html_url": f"https://github.com/o/r/pull/{pull}#issuecomment-{number}",
            "created_at": "2026-11-21T10:00:00Z",
            "updated_at": "2026-11-21T10:00:00Z",
            "_pull": pull,
        }
        self.unlisted[number] = self.list_lag
        return number

    def add_run(self, number: int = 5001, *, head: str = "head", attempt: int = 1, **fields: Any) -> dict[str, Any]:
        """A workflow run of the fork's branch `topic`, as the event and the API tell it."""
        self.runs[number] = {
            "id": number,
            "name": "measure",
            "event": "pull_request",
            "path": ".github/workflows/measure.yml",
            "head_sha": sha(head),
            "head_branch": "topic",
            "run_attempt": attempt,
            "status": "completed",
            "conclusion": "success",
            "display_title": "`rm -rf`",
            "repository": self.home.as_json(),
            "head_repository": self.fork.as_json(),
            "pull_requests": [],
            **fields,
        }
        return self.runs[number]

    def add_artifact(self, run: int, name: str, data: bytes, **fields: Any) -> Artifact:
        artifact = Artifact(next(self.ids), run, name, data, **fields)
        self.artifacts[artifact.id] = artifact
        return artifact

    def add_comparison(self, base: str, head: str, merge_base: str, *, date: str, behind: int = 0) -> None:
        """The commits `base` and `head`, which part at `merge_base`; `date` as GitHub writes it."""
        commit = {"committer": {"name": "a", "email": "a@b", "date": date}, "message": "m"}
        self.comparisons[sha(base), sha(head)] = {
            "status": "diverged" if behind else "ahead",
            "ahead_by": 1,
            "behind_by": behind,
            "total_commits": 1,
            "commits": [],
            "files": [],
            "base_commit": {"sha": sha(base), "commit": commit},
            "merge_base_commit": {"sha": sha(merge_base), "commit": commit},
        }

    def on(self, pull: int) -> list[dict[str, Any]]:
        """The comments of a pull request, by id."""
        return [comment for _, comment in sorted(self.comments.items()) if comment["_pull"] == pull]
