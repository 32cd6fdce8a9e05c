"""The launches of a child's cases on the targets, in a file beside its report."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from perfguard.measure.binaries.call_binaries import OnTarget
from perfguard.model.atomic_files import write_atomically
from perfguard.model.records import CaseId
from perfguard.session.child import Following
from perfguard.session.pairing.worker import foreign_module

FOLLOWED = "followed.json"


class Followed(Struct, frozen=True):
    """Launches of a child's cases.

    Attributes:
        launches: suite -> case key -> its launches on each target.
        path: the child's sys.path, by which its kernels can be imported again.
        foreign: `name (file)` of a module that was loaded from the user's checkout; should be empty.
        uncollected: node id of a test file -> the reason why it could not be collected.
    """

    launches: dict[str, dict[str, list[OnTarget]]] = {}
    path: list[str] = []
    foreign: str = ""
    uncollected: dict[str, str] = {}

    def of(self, case: CaseId) -> list[OnTarget]:
        """The launches of a case; empty if it was not followed."""
        return self.launches.get(case[0], {}).get(case[1], [])

    def joined(self, later: Followed) -> Followed:
        """These launches with those of a later process of the same side."""
        suites = {*self.launches, *later.launches}
        launches = {suite: self.launches.get(suite, {}) | later.launches.get(suite, {}) for suite in suites}
        return Followed(launches, later.path or self.path, uncollected=self.uncollected | later.uncollected)


def write_followed(
    folder: Path, following: Following, launches: Mapping[CaseId, list[OnTarget]], uncollected: Mapping[str, str]
) -> None:
    """In the child: write the launches that it followed, and the files that it could not collect."""
    by_suite: dict[str, dict[str, list[OnTarget]]] = {}
    for (suite, key), on_targets in launches.items():
        by_suite.setdefault(suite, {})[key] = on_targets
    foreign = foreign_module(dict(sys.modules), Path(following.original), Path(following.worktree))
    write_atomically(
        folder / FOLLOWED, msgspec.json.encode(Followed(by_suite, list(sys.path), foreign, dict(uncollected)))
    )


def read_followed(folder: Path) -> Followed:
    """The launches that a child followed; empty if it ended early."""
    try:
        return msgspec.json.decode((folder / FOLLOWED).read_bytes(), type=Followed)
    except (OSError, msgspec.MsgspecError):
        return Followed()
