"""`perfguard report`: shows saved reports, of one lane or of all lanes of a commit, in the requested form."""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from perfguard.judge.lane import folder_of_ranks, is_own, joined
from perfguard.model.atomic_files import check_file, write_atomically
from perfguard.model.config import find_project, read_settings
from perfguard.model.errors import BaselineError, ExitStatus, UsageError
from perfguard.model.records import Baseline, Recorded, Report, TimedEntry
from perfguard.model.records.report import commits_beside
from perfguard.render.outputs import ALONE, OUTPUTS
from perfguard.render.overview import LaneView, Overview
from perfguard.session.pairing.worktrees import Repository, find_repository
from perfguard.store.baseline_files import Store
from perfguard.store.baseline_form import parse
from perfguard.store.report_file import read_report

MOST_COMMITS = 13  # The most commits of one file that are read for the page: a quarter of weekly refreshes.
_HASH = re.compile(r"[0-9a-f]{7,64}")
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
NO_REPORT = "no report was given for this lane"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `perfguard report`."""
    parser.add_argument(
        "reports",
        nargs="+",
        metavar="[LANE=]REPORT.json",
        help="reports that pytest --perfguard saved; a lane is named by its hardware (one that was not timed by its "
        "target) unless a name is given. `lanes` of [tool.perfguard] without one are shown as no result, where several "
        "reports or a form for several lanes are asked for",
    )
    parser.add_argument("--as", dest="form", choices=list(OUTPUTS), default="terminal", help="default: terminal")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of standard output")


def run(options: argparse.Namespace) -> int:
    """Print saved reports in the requested form."""
    if options.output is not None:
        check_file(options.output)
    reports = read_lanes(options.reports)
    project = find_project(Path.cwd())
    settings = read_settings(project)
    expected = [] if len(reports) == 1 and options.form in ALONE else settings.lanes
    overview = merge(reports, expected, Store(project / settings.baselines))
    if options.form == "github-annotations":
        overview = replace(overview, changed_places=_changed_places(overview))
    if options.form == "html":
        overview = with_history(overview, project / settings.baselines)
    text = OUTPUTS[options.form](overview)
    if options.output is None:
        print(text)
    else:
        write_atomically(options.output, f"{text.rstrip()}\n".encode())
    return int(ExitStatus.PASSED)


def _changed_places(overview: Overview) -> dict[str, str]:
    """Place of a cause -> its line if that differs from the base commit's, or else the first line of the same function
    that does. Empty without git, without the base, and for functions that the change leaves alone."""
    named = [commit for lane in overview.lanes if lane.report for commit in commits_beside(lane.report)]
    commits = {commit for commit in named if _HASH.fullmatch(commit)}  # Git must not take a name for an option.
    try:
        repository = find_repository(Path.cwd())
        diff = "".join(repository.git("diff", "--unified=0", "--no-color", commit, "--", "*.py") for commit in commits)
    except UsageError:
        return {}
    changed: dict[str, list[int]] = {}
    path = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif found := _HUNK.match(line):
            first, count = int(found[1]), int(found[2] or 1)
            changed.setdefault(path, []).extend(range(first, first + count))
    places: dict[str, str] = {}
    for cause in overview.causes:
        path, _, number = cause.place.partition(":")
        if number and path in changed:
            inside = [line for line in changed[path] if line in _function_at(repository.root / path, int(number))]
            best = int(number) if int(number) in inside else next(iter(inside), None)
            places |= {cause.place: f"{path}:{best}"} if best is not None else {}
    return places


def _function_at(path: Path, line: int) -> range:
    """The lines of the innermost function around a line, including its decorators; only the line if there is none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return range(line, line + 1)
    functions = [
        range(min([node.lineno, *(each.lineno for each in node.decorator_list)]), (node.end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return min((each for each in functions if line in each), key=len, default=range(line, line + 1))


def split_lane(argument: str) -> tuple[str, str]:
    """The lane, "" if none is named, and the path of `REPORT.json` or `LANE=REPORT.json`."""
    name, given, path = argument.partition("=")
    if not given or os.path.isfile(argument):  # isfile is False if the name is too long.
        return "", argument
    return name, path


def read_lanes(arguments: Sequence[str]) -> dict[str, Report]:
    """Lane -> its report, from `REPORT.json` or `LANE=REPORT.json`.

    Raises:
        UsageError: a file that is no report, or two reports of one lane.
    """
    reports: dict[str, Report] = {}
    paths: dict[str, str] = {}
    for argument in arguments:
        name, path = split_lane(argument)
        report = read_report(Path(path))
        lane = name or report.lane
        if lane in reports:
            raise UsageError(
                f"{path}: a second report of lane {lane}, beside {paths[lane]}; name them apart: LANE={path}"
            )
        reports[lane], paths[lane] = report, path
    return reports


def merge(reports: dict[str, Report], expected: Sequence[str], store: Store) -> Overview:
    """The overview of these lanes, the expected ones first; lanes without a report are marked.

    Args:
        store: the present baselines, for recorded values; the verdicts are the reports' own.
    """
    warnings: list[str] = []
    lanes = []
    for name in dict.fromkeys([*expected, *reports]):
        report = reports.get(name)
        if report is None:
            lanes.append(LaneView(name, problem=NO_REPORT))
        else:
            lanes.append(LaneView(name, report, baselines=_remembered(report, store, warnings)))
    head, several = measured_commit(reports.values())
    return Overview(lanes, head=head, warnings=[*warnings, *several])


def measured_commit(reports: Iterable[Report]) -> tuple[str, list[str]]:
    """The commit that all lanes measured; "" and a warning if there are several."""
    commits = sorted({report.commit for report in reports if report.commit})
    if len(commits) > 1:
        return "", [f"the lanes measured different commits: {', '.join(commits)}"]
    return "".join(commits), []


def _remembered(report: Report, store: Store, warnings: list[str]) -> dict[str, Baseline]:
    baselines: dict[str, Baseline] = {}
    own = [folder for folder in store.folders() if is_own(report.hardware.slug, folder)]
    folders = [report.lane] if report.exact_only else own
    for suite in sorted({result.case.suite for result in report.results}):
        try:
            baselines |= joined(file for folder in folders if (file := store.load(folder, suite)) is not None)
        except BaselineError as error:
            warnings.append(f"shown without its baseline: {error}")
    return baselines


# -- the history of recorded cases -------------------------------------------------------------------------------------


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
