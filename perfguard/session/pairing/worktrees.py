"""The repository side of process pairs: the base of a working tree, a snapshot of it, detached worktrees."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

import perfguard
from perfguard.model.errors import UsageError
from perfguard.model.records import BaseTree
from perfguard.session.child import environment

_IDENTITY = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "perfguard"), ("EMAIL", "perfguard@localhost"))
}


# Files that no test runs. Text files are not among them, since requirements are often one.
_DOCUMENTS = {".md", ".rst", ".adoc", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf"}
# Outputs of tools beside the code, which git may not ignore.
_OUTPUTS = {".xml", ".html", ".log", ".prof", ".nsys-rep", ".ncu-rep"}
_TOOLS = {"__pycache__", ".pytest_cache", ".hypothesis", ".benchmarks", ".venv", "venv"}


class UnknownCommit(UsageError):
    """A branch, tag or commit that a repository does not have."""


@dataclass(frozen=True)
class Repository:
    """A checkout. Create it with `find_repository`.

    Attributes:
        root: its top folder.
    """

    root: Path

    def git(self, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
        """The output of one git command, run in `root`.

        Raises:
            UsageError: git is missing, or the command failed.
        """
        done = _git(self.root, arguments, variables)
        if done.returncode != 0:
            raise UsageError(
                f"git {' '.join(arguments[:2])}: {done.stderr.strip() or f'status {done.returncode}'}; "
                "mend this in the repository, then run again"
            )
        return done.stdout.strip()

    def brought(self, text: str, folders: Sequence[Path]) -> str | None:
        """The first commit of HEAD's history with `text` in a file of `folders`; None if there is none, or if the
        clone's history begins later."""
        paths = [str(folder) for folder in folders if folder.resolve().is_relative_to(self.root.resolve())]
        found = self.git("log", "--format=%H", "--reverse", f"-S{text}", "HEAD", "--", *paths).split()
        is_cut = bool(found) and self.is_shallow and self.commit(f"{found[0]}^") is None
        return None if not found or is_cut else found[0]

    def holds(self, commit: str, path: str) -> bool:
        """Whether a commit has the file at this path, which begins in `root`."""
        return _git(self.root, ("cat-file", "-e", f"{commit}:{path}")).returncode == 0

    def commit(self, name: str) -> str | None:
        """The full hash of the commit called `name`; None if there is none."""
        done = _git(self.root, ("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"))
        return done.stdout.strip() if done.returncode == 0 else None

    def main_branch(self) -> str:
        """The branch that work is merged into: the remote's default, otherwise one of the usual names.

        Raises:
            UsageError: none of them exists.
        """
        names = ["origin/HEAD", "origin/main", "origin/master", "main", "master"]
        found = next((name for name in names if self.commit(name) is not None), None)
        if found is None:
            raise UsageError(f"{self.root}: none of {', '.join(names)} is there; name one: perfguard compare BASE")
        return found

    def merge_base(self, base: str) -> str:
        """The hash of the best common ancestor of HEAD and `base`.

        Raises:
            UnknownCommit: no such `base`, in a clone with all of its history.
            UsageError: no commit yet, no such `base` in a shallow clone, or no common ancestor.
        """
        if self.commit("HEAD") is None:
            raise UsageError(f"{self.root}: the repository has no commit yet; commit first")
        if self.commit(base) is None:
            if self.is_shallow:
                raise UsageError(f"{base}: not in this clone, which is shallow: git fetch --unshallow")
            remote = self.commit(f"origin/{base}") is not None
            step = f"name origin/{base}" if remote else "fetch it, or name another (git branch --all)"
            raise UnknownCommit(f"{base}: no branch, tag or commit of {self.root}; {step}")
        done = _git(self.root, ("merge-base", "HEAD", base))
        if done.returncode != 0:
            shallow = "this clone is shallow: git fetch --unshallow"
            step = shallow if self.is_shallow else "name a branch that HEAD comes from"
            raise UsageError(f"{base}: has no common ancestor with HEAD; {step}")
        return done.stdout.split()[0]

    @property
    def is_shallow(self) -> bool:
        """Whether the clone lacks history."""
        return self.git("rev-parse", "--is-shallow-repository") == "true"

    def changed_since(self, commit: str) -> list[str]:
        """Paths of tracked files, from the top folder, in which the working tree differs from `commit`."""
        told = self.git("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", commit, "--")
        return [path for path in told.split("\0") if path]

    def copy_folder(self, commit: str, folder: str, to: Path, index: Path) -> None:
        """Copy what `folder` (a path from the top folder) held at a commit, if there was one, to the folder `to`.

        Args:
            index: path for a temporary index.
        """
        if self.git("ls-tree", commit, "--", folder):
            variables = {"GIT_INDEX_FILE": str(index)}
            self.git("read-tree", f"{commit}:{folder}", variables=variables)
            self.git("checkout-index", "--all", f"--prefix={to}/", variables=variables)

    def untracked(self) -> list[str]:
        """Paths of files that git neither tracks nor ignores."""
        told = self.git("ls-files", "--others", "--exclude-standard", "--full-name", "-z")
        return [path for path in told.split("\0") if path]

    def snapshot(self, index: Path) -> str:
        """The hash of a commit that holds the working tree: changes, staged or not, and untracked files that are not
        ignored. HEAD itself if there are none. The user's index, branches and stash stay as they are.

        Args:
            index: path for a temporary index.

        Raises:
            UsageError: a submodule with changes of its own, which no commit of this repository can hold.
        """
        self._refuse_dirty_submodules()
        original = Path(self.root, self.git("rev-parse", "--git-path", "index"))
        if original.is_file():
            # The copy keeps git from reading every file again. It keeps its time, because git reads files again that
            # are younger than the index: an edit within the same tick that keeps the size would not show otherwise.
            shutil.copy2(original, index)
        variables = {"GIT_INDEX_FILE": str(index)}
        self.git("-c", "advice.addEmbeddedRepo=false", "add", "--all", variables=variables)
        tree = self.git("write-tree", variables=variables)
        if tree == self.git("rev-parse", "HEAD^{tree}"):
            return self.git("rev-parse", "HEAD")
        message = "perfguard compare: the working tree"
        return self.git("commit-tree", tree, "-p", "HEAD", "-m", message, variables=_IDENTITY)

    def _refuse_dirty_submodules(self) -> None:
        status = self.git("status", "--porcelain=v2", "--ignore-submodules=none", "--untracked-files=no")
        for line in status.splitlines():
            kind, _, rest = line.partition(" ")
            fields = rest.split(" ")
            if kind in ("1", "2") and fields[1].startswith("S") and (fields[1][2] == "M" or fields[1][3] == "U"):
                path = rest.split(" ", 7 if kind == "1" else 8)[-1].partition("\t")[0]
                raise UsageError(
                    f"submodule {path}: has uncommitted changes, which a snapshot cannot hold; "
                    "commit or stash them inside the submodule"
                )

    @property
    def has_submodules(self) -> bool:
        return (self.root / ".gitmodules").is_file()

    def add_worktree(self, folder: Path, commit: str) -> None:
        """Check `commit` out into `folder`, detached; no hook runs."""
        self.git("-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach", str(folder), commit)

    def remove_worktrees(self, parent: Path) -> None:
        """Remove every worktree inside `parent`, also half-made ones, and git's entries for them.

        Others are left alone. `git worktree prune` would also forget the user's worktrees on disks that are not
        mounted, so it only runs if git still lists one of ours without its folder.
        """
        for folder in self._worktrees(parent):
            _git(self.root, ("worktree", "remove", "--force", "--force", str(folder)))
        shutil.rmtree(parent, ignore_errors=True)
        left = self._worktrees(parent)
        for folder in left:
            _git(self.root, ("worktree", "unlock", str(folder)))
        if left:
            _git(self.root, ("worktree", "prune"))

    def _worktrees(self, parent: Path) -> list[Path]:
        listed = _git(self.root, ("worktree", "list", "--porcelain")).stdout.splitlines()
        folders = [Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")]
        return [folder for folder in folders if parent.resolve() in folder.parents or parent in folder.parents]


def find_repository(folder: Path) -> Repository:
    """The checkout that contains `folder`.

    Raises:
        UsageError: git is missing, or there is no checkout.
    """
    done = _git(folder, ("rev-parse", "--show-toplevel"))
    if done.returncode != 0:
        raise UsageError(f"{folder}: not in a git checkout, so there is no base to compare with; git init, and commit")
    return Repository(Path(done.stdout.strip()))


def _git(
    folder: Path, arguments: tuple[str, ...], variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=folder, env=environment() | {"GIT_OPTIONAL_LOCKS": "0", **(variables or {})},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape", check=False,
            start_new_session=True,  # only perfguard handles Ctrl-C; git finishes its command
        )  # fmt: skip
    except FileNotFoundError as error:
        raise UsageError("git: not found; install it: base and working tree are two of its checkouts") from error


class TreesOfRecords:
    """The trees of the commits that records name, looked up when they are asked for.

    A commit that was squashed or rebased away, and uncommitted changes that were recorded with one (`1a2b3c+`), are in
    no history. The commit that brought the record has their code.
    """

    def __init__(self, repository: Repository, data: Sequence[Path]) -> None:
        self._repository = repository
        self._data = data
        self._found: dict[str, tuple[BaseTree, list[str]]] = {}  # with the code that changed since then

    def at(self, name: str) -> BaseTree:
        """The tree of a commit as a record names it. It equals the working tree if no code has changed since then that
        this process has loaded by now, or that is not Python's."""
        if name not in self._found:
            self._found[name] = self._look_up(name)
        tree, changed = self._found[name]
        is_python = all(path.endswith(".py") for path in changed)
        equal = tree.commit is not None and is_python and not _is_loaded([self._repository.root / p for p in changed])
        return replace(tree, equal=equal)

    def asked(self) -> dict[str, BaseTree]:
        """Commit as a record names it -> its tree, of those that were asked for."""
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


def _is_loaded(files: Sequence[Path]) -> bool:
    """Whether this process has imported one of these modules. Those of perfguard run on both sides."""
    own = _real(os.path.dirname(perfguard.__file__)) + os.sep
    wanted = {path for file in files if not (path := _real(str(file))).startswith(own)}
    loaded = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    return bool(wanted) and any(_real(file) in wanted for file in loaded if file)


@functools.cache  # it is asked of thousands of modules, for each case that a run judges
def _real(path: str) -> str:
    return os.path.realpath(path)


def _is_of_service(path: PurePosixPath) -> bool:
    """Whether a file lies in a hidden folder, as those of CI services and editors do."""
    return any(part.startswith(".") for part in path.parts[:-1])


def find_bases(folder: Path, wanted: str, data: Sequence[Path]) -> BaseTree | TreesOfRecords:
    """What the working tree around `folder` is compared with: one commit for every case, or that of each case's record.

    It is the commit that is named; in the job of a pull request, the merge base; under uncommitted changes, HEAD. In a
    clean tree each record's own commit tells whether the code got slower since it was made.

    Args:
        wanted: a branch, tag or commit; "": none is named.
        data: folders of perfguard's own (baselines, reports), whose contents are no code.

    Raises:
        UnknownCommit: `wanted` is no commit: a mistake, which must not pass for a base that this clone lacks.
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
        found, checkout = variables.get(target, ""), variables.get(folder, "")
        if found and checkout and Path(checkout).resolve() == root.resolve():
            return found
    return None


def _base_of_pull_request(repository: Repository, target: str, data: Sequence[Path]) -> BaseTree:
    """The merge base with a pull request's target. A clone that lacks it is no mistake of whoever started the run."""
    name = next((each for each in (f"origin/{target}", target) if repository.commit(each) is not None), target)
    try:
        return find_base(repository.root, name, data)
    except UnknownCommit:
        step = f"git fetch origin {target} (actions/checkout: fetch-depth: 0)"
        return BaseTree(problem=f"{target}, the target of this pull request, is not in this clone: {step}")


def find_base(folder: Path, wanted: str, data: Sequence[Path]) -> BaseTree:
    """The commit that the working tree around `folder` is compared with.

    Args:
        wanted: a branch, tag or commit: its merge base with HEAD; "": HEAD itself.
        data: folders of perfguard's own (baselines, reports), whose contents are no code.

    Raises:
        UnknownCommit: `wanted` is no commit: a mistake, which must not pass for a base that this clone lacks.
    """
    try:
        repository = find_repository(folder)
        commit = repository.merge_base(wanted or "HEAD")
        return BaseTree(commit, equal=not _all_code(repository, commit, data))
    except UnknownCommit:
        raise
    except UsageError as error:
        return BaseTree(problem=str(error))


def uncommitted_code(folder: Path, data: Sequence[Path]) -> list[str]:
    """Files of the working tree around `folder` that are no documents, and differ from HEAD or are not tracked; none
    where there is no commit.

    Args:
        data: as of `find_base`.
    """
    try:
        repository = find_repository(folder)
        return [] if repository.commit("HEAD") is None else _all_code(repository, "HEAD", data)
    except UsageError:
        return []


def commit_of(folder: Path, data: Sequence[Path]) -> str | None:
    """The checkout's short commit hash, with `+` if there is uncommitted code; None outside git.

    Args:
        data: as of `find_base`.
    """
    try:
        commit = find_repository(folder).commit("HEAD")
    except UsageError:
        return None
    return None if commit is None else commit[:12] + "+" * bool(uncommitted_code(folder, data))


def _all_code(repository: Repository, commit: str, data: Sequence[Path]) -> list[str]:
    new = [path for path in repository.untracked() if not _is_output(PurePosixPath(path))]
    return [*changed_code(repository, commit, data), *_code(repository, new, data)]


def changed_code(repository: Repository, commit: str, data: Sequence[Path]) -> list[str]:
    """Tracked files, documents and those in `data` left out, in which the working tree differs from `commit`.

    Raises:
        UsageError: git fails.
    """
    return _code(repository, repository.changed_since(commit), data)


def _code(repository: Repository, paths: Sequence[str], data: Sequence[Path]) -> list[str]:
    top = repository.root.resolve()
    return [
        path
        for path in paths
        if PurePosixPath(path).suffix.lower() not in _DOCUMENTS
        and not any(Path(top, path).is_relative_to(folder.resolve()) for folder in data)
    ]


def _is_output(path: PurePosixPath) -> bool:
    tools = any(part in _TOOLS or part.endswith(".egg-info") for part in path.parts)
    return tools or path.suffix.lower() in _OUTPUTS or path.name.startswith(".coverage")
