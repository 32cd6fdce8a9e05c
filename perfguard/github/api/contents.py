"""Files of the repository at one commit, trusted or not, and the merge base of two commits."""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Mapping
from typing import Literal, TypeVar
from urllib.parse import quote

from msgspec import Struct

from perfguard.github.api.client import Client
from perfguard.github.api.troubles import NotFound, Refused, Unexpected
from perfguard.model.errors import GitHubError

T = TypeVar("T")

MOST_FILE_BYTES = 1_000_000
MOST_FILES = 500
MOST_ENTRIES = 1_000  # GitHub cuts a folder's listing here without notice
_DEPTH = 2
_FILE, _SYMLINK, _SUBMODULE = ("100644", "100755"), "120000", "160000"  # git's modes


class MergeBase(Struct, frozen=True):
    """The merge base of a head and its base.

    Attributes:
        sha: of the merge base.
        date: ISO date and time of the merge base.
        age_days: days since then.
        behind: commits of the base since then.
    """

    sha: str
    date: str
    age_days: int
    behind: int


class File(Struct, frozen=True):
    """A file at a commit: git's hash of its content, and its bytes."""

    sha: str
    data: bytes


class Tree(Struct, frozen=True):
    """A folder at a commit, with its subfolders.

    Attributes:
        files: path, relative to the repository -> file. At most 1 MB each, 500 in all.
        problems: path -> why it was not read: too large, a link, not in GitHub's listing …
    """

    files: dict[str, File] = {}
    problems: dict[str, str] = {}


class _Person(Struct, frozen=True):
    date: datetime.datetime


class _Commit(Struct, frozen=True):
    committer: _Person


class _Base(Struct, frozen=True):
    sha: str
    commit: _Commit


class _Comparison(Struct, frozen=True):
    merge_base_commit: _Base
    behind_by: int


class _Entry(Struct, frozen=True):
    type: Literal["file", "dir", "symlink", "submodule"]
    path: str
    sha: str
    size: int = 0


class _Leaf(Struct, frozen=True):
    path: str  # relative to the tree
    mode: str
    sha: str
    size: int = 0


class _Leaves(Struct, frozen=True):
    tree: list[_Leaf]
    truncated: bool = False


class _Content(Struct, frozen=True):
    type: str
    sha: str
    encoding: str
    content: str


def find_merge_base(client: Client, base_sha: str, head_sha: str) -> MergeBase:
    """The merge base of two commits; the head may be a fork's.

    Raises:
        GitHubError: no common commit, or GitHub cannot be asked.
    """
    path = f"/repos/{client.repository}/compare/{base_sha}...{head_sha}"
    found = client.get(path, _Comparison, {"per_page": "1"})  # the head's commits are not needed
    date = found.merge_base_commit.commit.committer.date
    if date.tzinfo is None:
        date = date.replace(tzinfo=datetime.UTC)
    seconds = client.clock.now() - date.timestamp()
    days = max(0, int(seconds // 86_400))
    return MergeBase(found.merge_base_commit.sha, date.isoformat(), days, found.behind_by)


def fetch_tree(client: Client, folder: str, ref: str, known: Mapping[str, File] | None = None) -> Tree:
    """The `*.yaml` files below `folder` at commit `ref`; an absent folder is an empty tree.

    The listing takes two calls for any number of folders: an untrusted head may hold thousands.

    Args:
        folder: relative to the repository, e.g. `baselines/nvidia-h200`; two levels of folders below it are read.
        known: files of another commit by any key. Files with the same content are not downloaded again, so the
            second of two trees costs little more than its difference.

    Raises:
        GitHubError: `ref` cannot be read at all, or GitHub cannot be asked.
    """
    tree = Tree({}, {})
    contents = {file.sha: file for file in (known or {}).values()}
    for entry in _listed(client, folder, ref, tree):
        if entry.size > MOST_FILE_BYTES:
            tree.problems[entry.path] = f"{entry.size:,} bytes, larger than {MOST_FILE_BYTES:,} bytes: not read"
        elif len(tree.files) >= MOST_FILES:
            tree.problems[folder] = f"more than {MOST_FILES} files: the rest is not read"
            break
        else:
            file = contents.get(entry.sha) or _file(client, entry.path, ref)
            tree.files[entry.path] = contents[entry.sha] = file
    return tree


def fetch_file(client: Client, path: str, ref: str) -> bytes | None:
    """The bytes of one file at commit `ref`, at most 1 MB; None if it does not exist.

    Raises:
        GitHubError: it is too large or no file, or GitHub cannot be asked.
    """
    try:
        return _file(client, path, ref).data
    except NotFound:
        return None


def _listed(client: Client, folder: str, ref: str, tree: Tree) -> list[_Leaf]:
    """The YAML files of a folder and of those below it, with their paths in the repository."""
    parent = folder.rpartition("/")[0]
    try:
        entries = _get(client, parent, list[_Entry], ref)
    except NotFound:
        return []
    found = next((entry for entry in entries if entry.path == folder), None)
    if found is None or found.type != "dir":
        if found is not None or len(entries) >= MOST_ENTRIES:
            why = f"a {found.type}" if found else f"not among the {MOST_ENTRIES:,} entries that GitHub lists"
            tree.problems[folder] = f"{why}: not read"
        return []
    listing = client.get(f"/repos/{client.repository}/git/trees/{found.sha}", _Leaves, {"recursive": "1"})
    if listing.truncated:
        tree.problems[folder] = "more entries than GitHub lists: not all are read"
    files = []
    for leaf in listing.tree:
        path = f"{folder}/{leaf.path}"
        if leaf.mode in (_SYMLINK, _SUBMODULE):
            tree.problems[path] = f"a {'symlink' if leaf.mode == _SYMLINK else 'submodule'}: not followed"
        elif leaf.mode in _FILE and path.endswith(".yaml") and leaf.path.count("/") <= _DEPTH:
            files.append(_Leaf(path, leaf.mode, leaf.sha, leaf.size))
    return files


def _file(client: Client, path: str, ref: str) -> File:
    content = _get(client, path, _Content, ref)
    if content.type != "file" or content.encoding != "base64":
        raise Unexpected(f"{path} at {ref[:12]}: came as {content.encoding!r}, not as base64; make the file smaller")
    try:
        data = base64.b64decode(content.content.replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        raise Unexpected(f"{path} at {ref[:12]}: not the base64 that GitHub sends; run the job again") from None
    if len(data) > MOST_FILE_BYTES:
        raise GitHubError(f"{path} at {ref[:12]}: larger than {MOST_FILE_BYTES:,} bytes; make the file smaller")
    return File(content.sha, data)


def _get(client: Client, path: str, kind: type[T], ref: str) -> T:
    """The API's answer for a path at a commit.

    Raises:
        NotFound: the commit holds no such path.
        Refused: the commit cannot be read. A token without permission to read contents gets 404 as well: read as "no
            such path", it would leave every case without a baseline.
    """
    start = f"/repos/{client.repository}/contents/"
    try:
        return client.get(f"{start}{quote(path)}", kind, {"ref": ref})
    except NotFound as absent:
        try:
            client.get(start, list[_Entry], {"ref": ref})
        except NotFound:
            raise Refused(
                f"{path} at {ref[:12]}: GitHub shows nothing of this commit; give the job contents: read"
            ) from None
        raise absent from None
