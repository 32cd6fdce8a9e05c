"""The repository side of process pairs: the base of a working tree, a snapshot of it, detached worktrees."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from perfguard.model.errors import UsageError
from perfguard.model.records import NO_COMMIT_YET
from perfguard.session.child import environment

_IDENTITY = {
    f"GIT_{role}_{part}": value
    for role in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "perfguard"), ("EMAIL", "perfguard@localhost"))
}


# Suffixes of files that no test reads: documents, and Python's compiled files, even if somebody has committed them.
# Text files are not among them, since requirements are often one.
NO_CODE = {".md", ".rst", ".adoc", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".pyc"}
# Outputs that tools write beside the code; git may not ignore them.
_OUTPUTS = {".xml", ".html", ".log", ".out", ".prof", ".nsys-rep", ".ncu-rep"}
_PACKAGES = ("requirements", "constraints")  # Other texts hold what a command printed.
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
        commits = self.git("log", "--format=%H", "--reverse", f"-S{text}", "HEAD", "--", *paths).split()
        is_cut = bool(commits) and self.is_shallow and self.commit(f"{commits[0]}^") is None
        return None if not commits or is_cut else commits[0]

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
        branch = next((name for name in names if self.commit(name) is not None), None)
        if branch is None:
            raise UsageError(f"{self.root}: has none of {', '.join(names)}; name a branch: perfguard compare BASE")
        return branch

    def merge_base(self, base: str) -> str:
        """The hash of the best common ancestor of HEAD and `base`.

        Raises:
            UnknownCommit: no such `base`, in a clone with all of its history.
            UsageError: no commit yet, no such `base` in a shallow clone, or no common ancestor.
        """
        if self.commit("HEAD") is None:
            raise UsageError(f"{self.root}: {NO_COMMIT_YET}")
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

    def untracked(self) -> list[str]:
        """Paths of files that git neither tracks nor ignores."""
        paths = self.git("ls-files", "--others", "--exclude-standard", "--full-name", "-z")
        return [path for path in paths.split("\0") if path]

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
            # With the copy git need not read every file again. The copy keeps the index's time, since git rereads
            # younger files: otherwise an edit within the same tick that keeps the size would not show.
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
        mounted, so it only runs if git still lists a worktree of perfguard without its folder.
        """
        for folder in self._worktrees_in(parent):
            _git(self.root, ("worktree", "remove", "--force", "--force", str(folder)))
        shutil.rmtree(parent, ignore_errors=True)
        left = self._worktrees_in(parent)
        for folder in left:
            _git(self.root, ("worktree", "unlock", str(folder)))
        if left:
            _git(self.root, ("worktree", "prune"))

    def remove_abandoned(self, prefix: str) -> None:
        """Remove the worktrees that killed processes have left, in folders whose name begins with `prefix`. A live
        process holds the lock in its own folder (`lock_in`)."""
        for parent in {folder.parent for folder in self._worktrees()}:
            if parent.name.startswith(prefix) and parent.is_dir():
                with contextlib.suppress(Timeout, OSError), lock_in(parent):  # OSError: the folder is another user's.
                    self.remove_worktrees(parent)

    def _worktrees_in(self, parent: Path) -> list[Path]:
        folders = self._worktrees()
        return [folder for folder in folders if parent.resolve() in folder.parents or parent in folder.parents]

    def _worktrees(self) -> list[Path]:
        listed = _git(self.root, ("worktree", "list", "--porcelain")).stdout.splitlines()
        return [Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")]


def lock_in(parent: Path) -> FileLock:
    """The lock that a process holds while it uses the worktrees in `parent`. The system releases it with the process;
    process numbers would not do, since they differ between containers."""
    return FileLock(parent / "lock", timeout=0)


def find_repository(folder: Path) -> Repository:
    """The checkout that contains `folder`.

    Raises:
        UsageError: git is missing, there is no repository, or git refuses to read it, such as that of another user.
    """
    done = _git(folder, ("rev-parse", "--show-toplevel"))
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines()] or ["git ended without a word"]
        if "not a git repository" in said[0]:
            said = ["not in a git repository, which holds base and baselines", "git init && perfguard init"]
        raise UsageError(f"{folder}: {said[0]}; {said[-1]}")
    return Repository(Path(done.stdout.strip()))


def _git(
    folder: Path, arguments: tuple[str, ...], variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=folder, env=environment() | {"GIT_OPTIONAL_LOCKS": "0", **(variables or {})},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="surrogateescape", check=False,
            start_new_session=True,  # perfguard alone handles Ctrl-C; git finishes its command.
        )  # fmt: skip
    except FileNotFoundError as error:
        raise UsageError("git: not found; install git, which holds base and baselines") from error


def uncommitted_code(folder: Path, data: Sequence[Path]) -> list[str]:
    """Code files of the working tree around `folder` that differ from HEAD or are not tracked; empty without a commit.

    Args:
        data: as for `find_base`.
    """
    try:
        repository = find_repository(folder)
        return [] if repository.commit("HEAD") is None else all_code(repository, "HEAD", data)
    except UsageError:
        return []


def commit_of(folder: Path, data: Sequence[Path]) -> str | None:
    """The checkout's short commit hash, with `+` if there is uncommitted code; None outside git.

    Args:
        data: as for `find_base`.
    """
    try:
        commit = find_repository(folder).commit("HEAD")
    except UsageError:
        return None
    return None if commit is None else commit[:12] + "+" * bool(uncommitted_code(folder, data))


def all_code(repository: Repository, commit: str, data: Sequence[Path]) -> list[str]:
    new = [path for path in repository.untracked() if not _is_output(PurePosixPath(path))]
    return [*changed_code(repository, commit, data), *_code(repository, new, data)]


def changed_code(repository: Repository, commit: str, data: Sequence[Path]) -> list[str]:
    """Tracked files, documents and those in `data` left out, in which the working tree differs from `commit`.

    Raises:
        UsageError: git fails.
    """
    paths = repository.git("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", commit, "--")
    return _code(repository, [path for path in paths.split("\0") if path], data)


def _code(repository: Repository, paths: Sequence[str], data: Sequence[Path]) -> list[str]:
    top = repository.root.resolve()
    return [
        path
        for path in paths
        if is_code(path) and not any(Path(top, path).is_relative_to(folder.resolve()) for folder in data)
    ]


def is_code(path: str) -> bool:
    """Whether a test may read a file, by its name."""
    return PurePosixPath(path).suffix.lower() not in NO_CODE


def _is_output(path: PurePosixPath) -> bool:
    tools = any(part in _TOOLS or part.endswith(".egg-info") for part in path.parts)
    printed = path.suffix.lower() == ".txt" and not path.name.startswith(_PACKAGES)
    return tools or printed or path.suffix.lower() in _OUTPUTS or path.name.startswith(".coverage")
