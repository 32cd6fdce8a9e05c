"""The baselines of one commit (or of the working tree), parsed from their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from perfguard.judge.lane import Lane
from perfguard.measure.binaries.targets import TARGETS
from perfguard.model.errors import BaselineError
from perfguard.model.records import Baseline, CaseBaseline, Hardware, Report, Toolchain
from perfguard.store.baseline_parser import parse

_TARGETS = "targets"


@dataclass(frozen=True)
class Remembered:
    """Folder (`nvidia-h200`, `targets/cpu`) -> suite -> baseline; `problems`: unreadable files -> the reason."""

    folders: Mapping[str, Mapping[str, Baseline]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    def lane(self, hardware: Hardware, toolchain: Toolchain, *, exact_only: bool = False) -> Lane:
        """The lane of one hardware with all its baselines; with `exact_only`, only those of every machine of its
        target."""
        own = {} if exact_only else self.folders.get(hardware.slug, {})
        elsewhere: dict[tuple[str, str], list[str]] = {}
        for slug in sorted(self.folders):
            for suite, baseline in self.folders[slug].items() if _is_slug(slug) and slug != hardware.slug else ():
                for key in baseline.cases:
                    elsewhere.setdefault((suite, key), []).append(slug)
        target = target_folder(hardware)
        portable = self.folders.get(target, {}) if target else {}
        compiled = {name: f"{_TARGETS}/{name}" for name in _compiled_for(hardware)}
        targets = {name: self.folders[folder] for name, folder in compiled.items() if folder in self.folders}
        return Lane(hardware, toolchain, own, portable, elsewhere=elsewhere, targets=targets)

    def case(self, folder: str, suite: str, key: str) -> CaseBaseline | None:
        """The record of a case in a folder, with its full provenance: moving that to the head of the file changes
        nothing."""
        baseline = self.folders.get(folder, {}).get(suite)
        if baseline is None or key not in baseline.cases:
            return None
        return replace(baseline.cases[key], provenance=baseline.provenance_of(key))


def read_files(files: Mapping[str, bytes], root: str) -> Remembered:
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
    return Remembered(folders, problems)


def folders_of(report: Report) -> list[str]:
    """The folders that judge a report: its hardware, its target, and the targets it compiled for."""
    target = target_folder(report.hardware)
    own = [] if report.exact_only else [report.hardware.slug]
    return [*own, *([target] if target else []), *(f"{_TARGETS}/{name}" for name in _compiled_for(report.hardware))]


def _compiled_for(hardware: Hardware) -> list[str]:
    """The targets that a run reads: all without a GPU, its own architecture on a GPU."""
    return [name for name in TARGETS if hardware.target or name == hardware.architecture]


def target_folder(hardware: Hardware) -> str | None:
    """The folder of the hardware's target: entries that hold on every machine of it."""
    return f"{_TARGETS}/{hardware.target}" if hardware.target else None


def _is_slug(folder: str) -> bool:
    return not folder.startswith(f"{_TARGETS}/")
