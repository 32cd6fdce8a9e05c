"""The base of a working tree's times: one commit, and whether the tree differs from it in code at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from perfguard.model.errors import UsageError
from perfguard.model.records import BaseTree
from perfguard.session.pairing.worktrees import Repository, find_repository

# Files that no test runs. Text files are not among them, since requirements are often one.
_DOCUMENTS = {".md", ".rst", ".adoc", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf"}
# Outputs of tools beside the code, which git may not ignore.
_OUTPUTS = {".xml", ".html", ".log", ".prof", ".nsys-rep", ".ncu-rep"}
_TOOLS = {"__pycache__", ".pytest_cache", ".hypothesis", ".benchmarks", ".venv", "venv"}


def find_base(folder: Path, wanted: str, data: Sequence[Path]) -> BaseTree:
    """The commit that the working tree around `folder` is compared with.

    Args:
        wanted: a branch, tag or commit: its merge base with HEAD; "": HEAD itself.
        data: folders of perfguard's own (baselines, reports), whose contents are no code.
    """
    try:
        repository = find_repository(folder)
        commit = repository.merge_base(wanted or "HEAD")
        code = changed_code(repository, commit, data)
        new = repository.untracked()
    except UsageError as error:
        return BaseTree(problem=str(error))
    own = _own(repository, data)
    code += [path for path in new if _is_code(path, own) and not _is_output(path)]
    return BaseTree(commit, equal=not code)


def changed_code(repository: Repository, commit: str, data: Sequence[Path]) -> list[str]:
    """Tracked files, documents and those in `data` left out, in which the working tree differs from `commit`.

    Raises:
        UsageError: git fails.
    """
    own = _own(repository, data)
    return [path for path in repository.changed_since(commit) if _is_code(path, own)]


def _own(repository: Repository, data: Sequence[Path]) -> list[Path]:
    top = repository.root.resolve()
    return [path.resolve().relative_to(top) for path in data if _below(path, top)]


def _below(path: Path, top: Path) -> bool:
    return path.resolve().is_relative_to(top)


def _is_code(path: str, own: Sequence[Path]) -> bool:
    pure = PurePosixPath(path)
    return pure.suffix.lower() not in _DOCUMENTS and not any(pure.is_relative_to(folder.as_posix()) for folder in own)


def _is_output(path: str) -> bool:
    pure = PurePosixPath(path)
    tools = any(part in _TOOLS or part.endswith(".egg-info") for part in pure.parts)
    return tools or pure.suffix.lower() in _OUTPUTS or pure.name.startswith(".coverage")
