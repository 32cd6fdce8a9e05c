"""Reads files of the repository at one commit, and finds the merge base of two commits."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from perfguard.github.api.client import ApiError, Client

MOST_FILE_BYTES = 1_000_000
MOST_FILES = 500
_DEPTH = 2
_FOLDER, _FILE, _SYMLINK = "040000", ("100644", "100755"), "120000"  # These are git's modes.


@dataclass(frozen=True)
class Folder:
    """The `*.yaml` files of a folder at a commit, at most 500.

    Attributes:
        files: path relative to the repository -> bytes.
        problems: path -> why it was not read (too large, a link, not in GitHub's listing …).
    """

    files: dict[str, bytes] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


class _Commit(Struct, frozen=True):
    sha: str


class _Comparison(Struct, frozen=True):
    merge_base_commit: _Commit


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


def find_merge_base(client: Client, base_sha: str, head_sha: str) -> str:
    """The hash of the merge base of two commits; the head may be that of a fork.

    Raises:
        GitHubError: there is no common commit, or the request fails.
    """
    # GitHub sends at least one commit of the head, although none is needed.
    return client.get(f"/compare/{base_sha}...{head_sha}", _Comparison, per_page="1").merge_base_commit.sha


class CommitFiles:
    """Reads files of any commit, and downloads each content once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._contents: dict[str, bytes] = {}  # Git's hash of a content -> the content.
        self._trees: dict[str, _Tree] = {}  # Git's hash of a commit or folder on a path -> its entries.

    def folder(self, folder: str, commit: str) -> Folder:
        """The YAML files in `folder` and in two levels of folders below it; empty if there is no such folder.

        The listing takes one request per part of the path and one for all folders below, which may be thousands.

        Raises:
            GitHubError: the commit cannot be read.
        """
        read = Folder()
        for path, entry in self._listed(folder, commit, read.problems):
            if entry.size > MOST_FILE_BYTES:
                read.problems[path] = f"{entry.size:,} bytes, larger than {MOST_FILE_BYTES:,} bytes: not read"
            elif len(read.files) >= MOST_FILES:
                read.problems[folder] = f"more than {MOST_FILES} files: the rest is not read"
                break
            else:
                read.files[path] = self._content(path, entry)
        return read

    def changed(self, path: str, commits: Sequence[str], limit: int) -> list[bytes | None]:
        """The contents of a file at two commits, empty where there is no such plain file, None where it has more than
        `limit` bytes; an empty list if they are equal.

        Raises:
            GitHubError: a commit or content cannot be read.
        """
        found = [self._entry(path, commit) for commit in commits]
        plain = [entry if entry is not None and entry.mode in _FILE else None for entry in found]
        if plain[0] == plain[1]:
            return []
        return [b"" if entry is None else None if entry.size > limit else self._content(path, entry) for entry in plain]

    def _listed(self, folder: str, commit: str, problems: dict[str, str]) -> Iterator[tuple[str, _Entry]]:
        top = self._entry(folder, commit)
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
