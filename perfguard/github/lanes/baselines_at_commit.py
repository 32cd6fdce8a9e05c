"""The baselines of one commit (or of the working tree), parsed from their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from perfguard.judge.lane import Lane, folder_of_ranks, is_own
from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, Hardware, Recorded, Report, Toolchain
from perfguard.store.baseline_form import parse


@dataclass(frozen=True)
class BaselineSet:
    """Folder (`nvidia-h200`, `cpu`) -> suite -> baseline; `problems` maps unreadable files to the reason."""

    folders: Mapping[str, Mapping[str, Baseline]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def lane(self, hardware: Hardware, toolchain: Toolchain, *, exact_only: bool = False) -> Lane:
        """The lane of one hardware with all baselines; with `exact_only`, without those of this hardware alone."""
        files = [
            file
            for folder, suites in self.folders.items()
            if not (exact_only and is_own(hardware.slug, folder))
            for file in suites.values()
        ]
        return Lane(hardware, toolchain, files)

    def case(self, folder: str, suite: str, key: str) -> Recorded | None:
        """The record of a case in a folder."""
        baseline = self.folders.get(folder, {}).get(suite)
        return None if baseline is None or key not in baseline.cases else baseline.recorded(key)

    def problem_in(self, folders: Collection[str]) -> str:
        """The reason why a file in one of `folders` is missing; empty if none is."""
        for path, problem in self.problems.items():
            if any(f"/{folder}/" in f"/{path}/" for folder in folders):
                return problem
        return ""


def read_files(files: Mapping[str, bytes], root: str) -> BaselineSet:
    """Parse baselines from `<root>/<folder>/<suite>.yaml`. A broken file affects no other file.

    Args:
        files: path relative to the repository -> untrusted bytes, of which `parse` refuses aliases, tags, depth and
            invalid numbers.
    """
    folders: dict[str, dict[str, Baseline]] = {}
    problems: dict[str, str] = {}
    for path, data in sorted(files.items()):
        parts = PurePosixPath(path).relative_to(root).parts
        if len(parts) <= 1:
            problems[path] = f"{path}: no folder of a hardware; move it to {root}/<hardware>/"
            continue
        folder, suite = parts[0], "/".join(parts[1:]).removesuffix(".yaml")
        try:
            folders.setdefault(folder, {})[suite] = parse(data, Path(path), folder, suite)
        except BaselineError as error:
            problems[path] = str(error)
    return BaselineSet(folders, problems)


def folders_of(report: Report) -> list[str]:
    """The folders that judge a report: those of its hardware and of its target."""
    ranks = {1, *(result.ranks for result in report.results)}
    own = set() if report.exact_only else {folder_of_ranks(report.hardware, each) for each in ranks}
    return [*sorted(own), *([report.hardware.target] if report.hardware.target else [])]
