"""The history of recorded cases: what the commits of the baselines' files recorded, from git, for the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from perfguard.judge.lane import folder_of_ranks
from perfguard.model.errors import BaselineError, UsageError
from perfguard.model.records import Baseline, Recorded, Report, TimedEntry
from perfguard.render.overview import Overview
from perfguard.session.pairing.worktrees import Repository, find_repository
from perfguard.store.baseline_form import parse

MOST_COMMITS = 13  # The most commits of one file that are read: a quarter of weekly refreshes.


def with_history(overview: Overview, baselines: Path, commit: str = "HEAD") -> Overview:
    """The overview, whose lanes have the history of their cases up to `commit`; unchanged without git or that commit.

    Args:
        baselines: the folder of baselines in the working tree of a clone.
    """
    try:
        repository = find_repository(baselines.parent)
        root = baselines.resolve().relative_to(repository.root.resolve()).as_posix()
        if repository.commit(commit) is None:
            return overview
        known = {*repository.git("ls-tree", "-r", "--name-only", "-z", commit, "--", f"{root}/").split("\0")}
        lanes = []
        for lane in overview.lanes:
            history: dict[str, dict[str, list[Recorded]]] = {}
            for folder, suite in sorted(_files(lane.report)) if lane.report else ():
                if f"{root}/{folder}/{suite}.yaml" in known:  # Names in a report may be untrusted.
                    versions = [*_versions(repository, commit, root, folder, suite)]
                    _add(history.setdefault(suite, {}), versions[::-1])
            lanes.append(replace(lane, history=history))
    except (UsageError, ValueError, OSError):  # The folder is absent, or outside of the clone.
        return overview
    return replace(overview, lanes=lanes)


def _files(report: Report) -> set[tuple[str, str]]:
    """Folder and suite of each file that could hold a case of the report."""
    return {
        (report.lane if report.exact_only else folder_of_ranks(report.hardware, each.ranks), each.case.suite)
        for each in report.results
    }


def _add(cases: dict[str, list[Recorded]], versions: Sequence[tuple[str, Baseline]]) -> None:
    """Add what each version of a file recorded, oldest first, to its cases."""
    last: dict[str, Recorded] = {}
    for brought, baseline in versions:
        for key in baseline.cases:
            record, before = baseline.recorded(key), last.get(key)
            last[key] = record
            known = {} if before is None else before.entries
            new = {metric: entry for metric, entry in record.entries.items() if known.get(metric) != entry}
            if new:
                origin = replace(record.provenance, commit=record.provenance.commit or brought[:12])
                cases.setdefault(key, []).append(replace(record, entries=new, provenance=origin))
    for key, (first, *later) in cases.items():
        kept = {metric for each in later for metric in each.entries}
        entries = {name: each for name, each in first.entries.items() if name in kept or isinstance(each, TimedEntry)}
        cases[key] = [replace(first, entries=entries), *later]


def _versions(
    repository: Repository, commit: str, root: str, folder: str, suite: str
) -> Iterator[tuple[str, Baseline]]:
    """The commits that changed a file, with its content, newest first, up to the first that another version wrote."""
    path = f"{root}/{folder}/{suite}.yaml"
    for each in repository.git("log", "--format=%H", f"--max-count={MOST_COMMITS}", commit, "--", path).split():
        if not repository.holds(each, path):
            return
        try:
            data = repository.git("show", f"{each}:{path}").encode("utf-8", "surrogateescape")
            yield each, parse(data, Path(path), folder, suite)
        except BaselineError:
            return
