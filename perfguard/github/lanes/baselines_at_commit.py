"""The baselines of one commit (or of the working tree), parsed from their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from perfguard.judge.lane import Lane, folder_of_ranks, is_own
from perfguard.measure.binaries.targets import TARGETS
from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Hardware, Report, Toolchain
from perfguard.store.baseline_parser import parse

_TARGETS = "targets"


@dataclass(frozen=True)
class BaselineSet:
    """Folder (`nvidia-h200`, `targets/cpu`) -> suite -> baseline; `problems`: unreadable files -> the reason."""

    folders: Mapping[str, Mapping[str, Baseline]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def lane(
        self,
        hardware: Hardware,
        toolchain: Toolchain,
        *,
        targets: Collection[str] = tuple(TARGETS),
        exact_only: bool = False,
    ) -> Lane:
        """The lane of one hardware with all its baselines; with `exact_only`, only those of every machine of its
        target. `targets`: those of [tool.perfguard]; what is stored for others is not read any more."""
        own = [folder for folder in self.folders if is_own(hardware.slug, folder)]
        others = [folder for folder in self.folders if _is_slug(folder) and folder not in own]
        judging = [*([] if exact_only else own), *_targets(hardware, targets)]
        folders = [self.folders.get(folder, {}) for folder in (*judging, *others)]
        return Lane(hardware, toolchain, [file for suites in folders for file in suites.values()])

    def case(self, folder: str, suite: str, key: str) -> CaseBaseline | None:
        """The record of a case in a folder, with its full provenance: moving that to the head of the file changes
        nothing."""
        baseline = self.folders.get(folder, {}).get(suite)
        if baseline is None or key not in baseline.cases:
            return None
        return replace(baseline.cases[key], provenance=baseline.provenance_of(key))


def read_files(files: Mapping[str, bytes], root: str) -> BaselineSet:
    """Parse baselines from `<root>/<folder>/<suite>.yaml`, each file on its own, so that a broken one affects no other.

    Args:
        files: path relative to the repository -> bytes, possibly hostile: `parse` refuses aliases, tags, depth, size
            and invalid numbers.
    """
    folders: dict[str, dict[str, Baseline]] = {}
    problems: dict[str, str] = {}
    for path, data in sorted(files.items()):
        parts = PurePosixPath(path).relative_to(root).parts
        depth = 2 if parts[0] == _TARGETS else 1
        if len(parts) <= depth:
            problems[path] = f"{path}: no folder of a hardware or target; move it to {root}/<hardware>/"
            continue
        folder = "/".join(parts[:depth])
        suite = "/".join(parts[depth:]).removesuffix(".yaml")
        try:
            folders.setdefault(folder, {})[suite] = parse(data, Path(path), folder, suite)
        except BaselineError as error:
            problems[path] = str(error)
    return BaselineSet(folders, problems)


def folders_of(report: Report) -> list[str]:
    """The folders that judge a report: its hardware, its target, and the targets it compiled for."""
    ranks = {1, *(result.ranks for result in report.results)}
    own = set() if report.exact_only else {folder_of_ranks(report.hardware, each) for each in ranks}
    return [*sorted(own), *_targets(report.hardware, TARGETS)]


def _targets(hardware: Hardware, targets: Collection[str]) -> list[str]:
    # A run compiles for all targets without a GPU, for its own architecture on a GPU, and with none for none.
    own = {hardware.architecture} if targets else ()
    compiled = [name for name in TARGETS if name in (targets if hardware.target else own)]
    targets = [*([hardware.target] if hardware.target else []), *compiled]
    return [f"{_TARGETS}/{name}" for name in targets]


def _is_slug(folder: str) -> bool:
    return not folder.startswith(f"{_TARGETS}/")
