"""The commits that a run compares its cases with: one that is named, a merge base, HEAD, or that of each record."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

import perfguard
from perfguard.model.errors import UsageError
from perfguard.model.records import BaseTree
from perfguard.session.pairing.worktrees import Repository, UnknownCommit, all_code, changed_code, find_repository

_DATA = {".cfg", ".csv", ".ini", ".json", ".toml", ".txt", ".yaml", ".yml"}


class TreesOfRecords:
    """The trees of the commits that records name, looked up when they are needed.

    The history lacks commits that were squashed or rebased away, and uncommitted changes that were recorded with a
    commit (`1a2b3c+`). The commit that added the record has their code.
    """

    def __init__(self, repository: Repository, data: Sequence[Path]) -> None:
        self._repository = repository
        self._data = data
        self._found: dict[str, tuple[BaseTree, list[str]]] = {}  # With the code that changed since then.
        # Each case asks several times, and few load a module.
        self._is_used = functools.cache(lambda name, _modules: _is_used(repository.root, self._found[name][1]))

    def at(self, name: str) -> BaseTree:
        """The tree of a commit as a record names it. It counts as equal to the working tree if all that changed since
        then are modules that this process has not loaded, and data that belongs to such modules."""
        if name not in self._found:
            self._found[name] = self._look_up(name)
        tree = self._found[name][0]
        return replace(tree, equal=tree.commit is not None and not self._is_used(name, len(sys.modules)))

    def looked_up(self) -> dict[str, BaseTree]:
        """Commit as a record names it -> its tree, for the commits looked up so far."""
        return {name: self.at(name) for name in self._found}

    def _look_up(self, name: str) -> tuple[BaseTree, list[str]]:
        repository = self._repository
        try:
            commit = None if name.endswith("+") else repository.commit(name)
            if commit is None:
                commit = repository.brought(f"commit: {name}", self._data)
            if commit is None:
                name = name.removesuffix("+")
                step = "git fetch --unshallow" if repository.is_shallow else f"git fetch origin {name}"
                return BaseTree(problem=f"{name[:12]}, the commit of the record, is not in this clone: {step}"), []
            changed = changed_code(repository, commit, self._data)
            return BaseTree(commit), [path for path in changed if not _is_of_service(PurePosixPath(path))]
        except UsageError as error:
            return BaseTree(problem=str(error)), []


def _is_used(root: Path, changed: Sequence[str]) -> bool:
    """Whether this process may have used one of these files, relative to `root`: a module that it has loaded, data that
    belongs to one, or anything else, such as C++. perfguard's own files do not count: both sides run them."""
    own = _real(os.path.dirname(perfguard.__file__)) + os.sep
    files = {path for each in changed if not (path := _real(str(root / each))).startswith(own)}
    if not files:
        return False
    loaded = {_real(file) for module in [*sys.modules.values()] if (file := getattr(module, "__file__", None))}
    owners = {_owner(path, _real(str(root))) for path in files if not path.endswith(".py")}
    return not loaded.isdisjoint(files) or any(file.startswith(owner) for owner in owners for file in loaded)


@functools.cache
def _owner(path: str, top: str) -> str:
    """The folder of the modules that a data file belongs to, with a separator: the nearest below `top` that holds
    Python files or is called docs. "" if any code may use the file."""
    if Path(path).suffix.lower() not in _DATA:
        return ""
    below = [folder for folder in Path(path).parents if folder.is_relative_to(top) and str(folder) != top]
    own = (folder for folder in below if folder.name == "docs" or next(folder.glob("*.py"), None) is not None)
    return next((f"{folder}{os.sep}" for folder in own), "")


@functools.cache  # A run asks for thousands of modules in each case that it judges.
def _real(path: str) -> str:
    return os.path.realpath(path)


def _is_of_service(path: PurePosixPath) -> bool:
    """Whether a file is in a hidden folder, such as those of CI services and editors."""
    return any(part.startswith(".") for part in path.parts[:-1])


def find_bases(folder: Path, wanted: str, data: Sequence[Path]) -> BaseTree | TreesOfRecords:
    """The base of the working tree around `folder`: one commit for every case, or that of each case's record.

    It is the named commit; in the job of a pull request the merge base; with uncommitted changes HEAD. In a clean tree
    each record's own commit shows whether the code has become slower since then.

    Args:
        wanted: a branch, tag or commit; "": none is named.
        data: perfguard's own folders (baselines, reports), which hold no code.

    Raises:
        UnknownCommit: `wanted` is no commit, by the user's mistake. A base that this clone lacks does not raise.
    """
    if wanted:
        return find_base(folder, wanted, data)
    try:
        repository = find_repository(folder)
    except UsageError as error:
        return BaseTree(problem=str(error))
    target = pull_request_target(os.environ, repository.root)
    if target is not None:
        return _base_of_pull_request(repository, target, data)
    head = find_base(folder, "", data)
    return TreesOfRecords(repository, data) if head.equal else head


#: Variables of a pull request's job by service: the folder of its checkout, and the branch or commit that it goes into.
_PULL_REQUESTS = (
    ("GITHUB_WORKSPACE", "GITHUB_BASE_REF"),
    ("BUILDKITE_BUILD_CHECKOUT_PATH", "BUILDKITE_PULL_REQUEST_BASE_BRANCH"),
    ("CI_PROJECT_DIR", "CI_MERGE_REQUEST_DIFF_BASE_SHA"),
    ("CI_PROJECT_DIR", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME"),
)


def pull_request_target(variables: Mapping[str, str], root: Path) -> str | None:
    """The branch or commit that the pull request of this job goes into, by GitHub's, Buildkite's or GitLab's variables;
    None in any other job, and in other repositories than the job's own."""
    for folder, target in _PULL_REQUESTS:
        name, checkout = variables.get(target, ""), variables.get(folder, "")
        if name and checkout and Path(checkout).resolve() == root.resolve():
            return name
    return None


def _base_of_pull_request(repository: Repository, target: str, data: Sequence[Path]) -> BaseTree:
    """The merge base with a pull request's target. A clone that lacks it is not the user's mistake."""
    name = next((each for each in (f"origin/{target}", target) if repository.commit(each) is not None), target)
    try:
        return find_base(repository.root, name, data)
    except UnknownCommit:
        step = f"git fetch origin {target} (actions/checkout: fetch-depth: 0)"
        return BaseTree(problem=f"{target}, the target of this pull request, is not in this clone: {step}")


def find_base(folder: Path, wanted: str, data: Sequence[Path]) -> BaseTree:
    """The one commit with which the working tree around `folder` is compared.

    Args:
        wanted: a branch, tag or commit: its merge base with HEAD; "": HEAD itself.
        data: perfguard's own folders (baselines, reports), which hold no code.

    Raises:
        UnknownCommit: `wanted` is no commit, by the user's mistake. A base that this clone lacks does not raise.
    """
    try:
        repository = find_repository(folder)
        commit = repository.merge_base(wanted or "HEAD")
        return BaseTree(commit, equal=not all_code(repository, commit, data))
    except UnknownCommit:
        raise
    except UsageError as error:
        return BaseTree(problem=str(error))
