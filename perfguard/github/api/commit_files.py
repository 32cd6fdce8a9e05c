"""Reads files of the repository at one commit, and finds the merge base of two commits."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from perfguard.github.api.client import ApiError, Client

LEAST_CHANGES = 100  # A tenth of the requests that GitHub allows the token of a repository in an hour.
MOST_LISTED = 300  # Files that GitHub lists of a comparison.
_DEPTH = 2
_FOLDER, _FILE, _SYMLINK = "040000", ("100644", "100755"), "120000"  # These are git's modes.


@dataclass(frozen=True)
class Folder:
    """The `*.yaml` files of a folder at a commit.

    Attributes:
        files: path relative to the repository -> bytes.
        problems: path -> why it was not read (too large, a link, not in GitHub's listing …).
        sha: git's hash of the folder; empty if there is none.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    sha: str = ""


class _Commit(Struct, frozen=True):
    sha: str


class _Changed(Struct, frozen=True):
    filename: str
    previous_filename: str = ""


class _Comparison(Struct, frozen=True):
    merge_base_commit: _Commit
    files: list[_Changed] = []


class _Entry(Struct, frozen=True):
    path: str  # The path is relative to the tree.
    mode: str
    sha: str
    size: int = 0


class _Tree(Struct, frozen=True):
    tree: list[_Entry]
    truncated: bool = False


class _Blob(Struct, frozen=True):
    content: str
    encoding: str


def find_merge_base(client: Client, base_sha: str, head_sha: str) -> tuple[str, list[str]]:
    """The hash of the merge base of two commits, and the files that the head has changed since, at most
    `MOST_LISTED` of them. The head may be that of a fork.

    Raises:
        GitHubError: there is no common commit, or the request fails.
    """
    # GitHub sends at least one commit of the head, although none is needed.
    comparison = client.get(f"/compare/{base_sha}...{head_sha}", _Comparison, per_page="1")
    names = [name for each in comparison.files for name in (each.filename, each.previous_filename) if name]
    return comparison.merge_base_commit.sha, names


class CommitFiles:
    """Reads files of any commit, and downloads each content once.

    Args:
        most_files: the most files to download of a trusted commit.
        most_bytes: the most bytes of one file.
    """

    def __init__(self, client: Client, most_files: int, most_bytes: int) -> None:
        self._client = client
        self._most_files, self._most_bytes = most_files, most_bytes
        self._contents: dict[str, bytes] = {}  # Git's hash of a content -> the content.
        self._trees: dict[str, _Tree] = {}  # Git's hash of a commit or folder on a path -> its entries.

    def folder(
        self, folder: str, commit: str, *, base: Folder | None = None, wanted: Callable[[str], bool] = lambda name: True
    ) -> Folder:
        """The YAML files in `folder` and in two levels of folders below it; empty if there is no such folder.

        The listing takes one request per part of the path and one for all folders below, which may be thousands.

        Args:
            base: the same folder at the merge base. An untrusted commit may add or change as many files as this has,
                or 100, and may double its bytes. None: the commit is trusted.
            wanted: whether a folder directly below is read, by its name.

        Raises:
            GitHubError: the commit cannot be read.
        """
        top = self._entry(folder, commit)
        if top is not None and base is not None and top.sha == base.sha:
            return base
        read = Folder(sha="" if top is None else top.sha)
        most, room, limit = self._most_files, math.inf, f"{self._most_files} files"
        if base is not None:
            most = max(LEAST_CHANGES, len(base.files))
            room = max(self._most_bytes, 2 * sum(map(len, base.files.values())))
            limit = f"{most} changed files, or {room:,} bytes of them"
        others = set()
        for path, entry in self._listed(folder, top, read.problems):
            name = path.removeprefix(f"{folder}/").partition("/")[0]
            if not wanted(name):
                others.add(name)
                continue
            if entry.size > self._most_bytes:
                read.problems[path] = f"{entry.size:,} bytes, more than {self._most_bytes:,}: not read; split it"
                continue
            if entry.sha not in self._contents:
                most, room = most - 1, room - entry.size
            if most < 0 or room < 0:
                read.problems[folder] = f"more than {limit}: the rest is not read"
                break
            read.files[path] = self._content(path, entry)
        if others:
            more = f", nor {len(others) - 1} others" if len(others) > 1 else ""
            read.problems[f"{folder}/{min(others)}"] = f"no lane has this folder{more}, nor the base: not read"
        return read

    def changed(self, path: str, commits: Sequence[str], limit: int) -> list[bytes | None]:
        """The contents of a file at two commits, empty where there is no such plain file, None where it has more than
        `limit` bytes; an empty list if they are equal.

        Raises:
            GitHubError: a commit or content cannot be read.
        """
        entries = [self._entry(path, commit) for commit in commits]
        plain = [entry if entry is not None and entry.mode in _FILE else None for entry in entries]
        if plain[0] == plain[1]:
            return []
        return [b"" if entry is None else None if entry.size > limit else self._content(path, entry) for entry in plain]

    def _listed(self, folder: str, top: _Entry | None, problems: dict[str, str]) -> Iterator[tuple[str, _Entry]]:
        if top is None or top.mode != _FOLDER:
            if top is not None:
                problems[folder] = "no folder: not read"
            return
        tree = self._client.get(f"/git/trees/{top.sha}", _Tree, recursive="1")
        if tree.truncated:
            problems[folder] = "more entries than GitHub lists: not all are read"
        for entry in tree.tree:
            path = f"{folder}/{entry.path}"
            if entry.mode == _SYMLINK:
                problems[path] = "a symlink: not followed"
            elif entry.mode in _FILE and path.endswith(".yaml") and entry.path.count("/") <= _DEPTH:
                yield path, entry

    def _entry(self, path: str, commit: str) -> _Entry | None:
        """The entry of a path in the commit's trees; None if there is none."""
        node: _Entry | None = None
        sha = commit
        for part in path.split("/"):
            if node is not None and node.mode != _FOLDER:
                return None
            # An unreadable commit is an error: without files, no case would have a baseline.
            if sha not in self._trees:
                self._trees[sha] = self._client.get(f"/git/trees/{sha}", _Tree)
            node = next((entry for entry in self._trees[sha].tree if entry.path == part), None)
            if node is None:
                return None
            sha = node.sha
        return node

    def _content(self, path: str, entry: _Entry) -> bytes:
        if entry.sha not in self._contents:
            blob = self._client.get(f"/git/blobs/{entry.sha}", _Blob)
            try:
                data = base64.b64decode(blob.content.replace("\n", ""), validate=True)
            except (binascii.Error, ValueError):
                raise ApiError(f"{path}: not the base64 that GitHub sends; run the job again") from None
            self._contents[entry.sha] = data
        return self._contents[entry.sha]
