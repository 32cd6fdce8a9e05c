"""The history of recorded cases: what the commits of the baselines' files recorded, from git, for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
            for suite, folders in _files(lane.report).items() if lane.report else ():
                paths = {folder: f"{root}/{folder}/{suite}.yaml" for folder in sorted(folders)}
                if known.intersection(paths.values()):  # Names in a report may be untrusted.
                    versions = [*_versions(repository, commit, paths, suite)]
                    history[suite] = _records(versions[::-1])
            lanes.append(replace(lane, history=history))
    except (UsageError, ValueError, OSError):  # The folder is absent, or outside of the clone.
        return overview
    return replace(overview, lanes=lanes)


def _files(report: Report) -> dict[str, set[str]]:
    """Suite -> the folders that could hold cases of the report: its hardware's, and those of every machine."""
    folders: dict[str, set[str]] = {}
    for result in report.results:
        own = report.lane if report.exact_only else folder_of_ranks(report.hardware, result.ranks)
        folders.setdefault(result.case.suite, set()).update({own, report.hardware.target or own})
    return folders


def _records(versions: Sequence[tuple[str, Sequence[Baseline]]]) -> dict[str, list[Recorded]]:
    """Case -> what each version of its files recorded otherwise, oldest first; versions come in that order."""
    records: dict[str, dict[str, Recorded]] = {}  # By the commit that brought them.
    last: dict[tuple[str, str], Recorded] = {}
    for brought, baselines in versions:
        for baseline, key in ((file, key) for file in baselines for key in file.cases):
            record, before = baseline.recorded(key), last.get((baseline.hardware, key))
            last[baseline.hardware, key] = record
            known = {} if before is None else before.entries
            new = {metric: entry for metric, entry in record.entries.items() if known.get(metric) != entry}
            if new:
                same = records.setdefault(key, {}).get(brought, record)
                entries = new if same is record else {**same.entries, **new}
                origin = replace(record.provenance, commit=record.provenance.commit or brought[:12])
                records[key][brought] = replace(record, entries=entries, provenance=origin)
    return {key: _begun(*by_commit.values()) for key, by_commit in records.items()}


def _begun(first: Recorded, *later: Recorded) -> list[Recorded]:
    """The records; of the first one its times and what changed later."""
    kept = {metric for each in later for metric in each.entries}
    entries = {name: each for name, each in first.entries.items() if name in kept or isinstance(each, TimedEntry)}
    return [replace(first, entries=entries), *later]


def _versions(
    repository: Repository, commit: str, paths: Mapping[str, str], suite: str
) -> Iterator[tuple[str, list[Baseline]]]:
    """The commits that changed a suite's files (folder -> path), with their contents, newest first, up to the first one
    without any, or that another version wrote."""
    line = ("log", "--format=%H", f"--max-count={MOST_COMMITS}", commit, "--", *paths.values())
    for each in repository.git(*line).split():
        held = {folder: path for folder, path in paths.items() if repository.holds(each, path)}
        if not held:
            return
        try:
            yield each, [_parsed(repository, each, folder, path, suite) for folder, path in held.items()]
        except BaselineError:
            return


def _parsed(repository: Repository, commit: str, folder: str, path: str, suite: str) -> Baseline:
    data = repository.git("show", f"{commit}:{path}").encode("utf-8", "surrogateescape")
    return parse(data, Path(path), folder, suite)
