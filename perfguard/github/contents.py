from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from perfguard.github.client import Client


class MergeBase(Struct, frozen=True):
    """Where a head left its base.

    Attributes:
        sha: of that commit.
        date: ISO date and time of that commit.
        age_days: since then.
        behind: how many commits the base has had since then.
    """

    sha: str
    date: str
    age_days: int
    behind: int


class File(Struct, frozen=True):
    """A file at a commit: the hash of its content as git knows it, and its bytes."""

    sha: str
    data: bytes


class Tree(Struct, frozen=True):
    """A folder at a commit, with all below it.

    Attributes:
        files: path, relative to the repository -> file. At most 1 MB each, 500 in all.
        problems: path -> why it was not read: too large, a link, a folder of more than 1,000 entries …
    """

    files: dict[str, File] = {}
    problems: dict[str, str] = {}


def find_merge_base(client: Client, base_sha: str, head_sha: str) -> MergeBase:
    """The merge base of two commits; the head may be a fork's.

    Raises:
        GitHubError: no common commit, or GitHub cannot be asked.
    """
    raise NotImplementedError


def fetch_tree(client: Client, folder: str, ref: str, known: Mapping[str, File] | None = None) -> Tree:
    """The `*.yaml` files below `folder` at commit `ref`; an absent folder is an empty tree.

    Args:
        folder: relative to the repository, e.g. `baselines/nvidia-h200`; one level of folders below it is read.
        known: files of another commit by any key: those with the same content are not downloaded again, so that
            the second of two trees costs little more than its difference.

    Raises:
        GitHubError: `ref` cannot be read at all, or GitHub cannot be asked.
    """
    raise NotImplementedError
