"""`perfguard judge REPORT… [--baselines DIR] [--base-baselines DIR] -o DIR`: the verdict of `perfguard comment`, from
files alone, for CI services other than GitHub."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from perfguard.github.lanes.baselines_at_commit import BaselineSet, read_files
from perfguard.github.lanes.lane_views import Reference, judge_lanes, of_lane
from perfguard.github.lanes.untrusted_report import Received, read_untrusted_file
from perfguard.github.outcome import exit_status, files_of
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import find_project, read_settings
from perfguard.model.errors import LaneError, UsageError
from perfguard.render.escaping import clean
from perfguard.render.overview import Overview
from perfguard.render.title import title_of
from perfguard.session.report_command import NO_REPORT, measured_commit, split_lane, with_history
from perfguard.store.comment_limits import most_recorded

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_WIDEST = 1000  # The most characters of a printed line.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard judge`."""
    parser.description = (
        "Judges the lanes' reports as `perfguard comment` does, from files and without any network: comment.md, "
        "report.md, report.html, report.json, codequality.json, and the exit status. Needs no GPU and no torch. "
        "See docs/ci.md, which shows it in Buildkite and GitLab."
    )
    add = parser.add_argument
    named = "a lane has the name of its hardware unless LANE= names it; `lanes` of [tool.perfguard] are expected"
    add("reports", nargs="+", metavar="[LANE=]REPORT.json", help=f"reports that the lanes saved; {named}")
    stored = "the change's baselines (default: those of [tool.perfguard])"
    add("--baselines", type=Path, metavar="DIR", help=stored)
    base = "the baselines at the merge base, which judge; edits of them in the change are listed (default: --baselines)"
    add("--base-baselines", type=Path, metavar="DIR", help=base)
    commit = "the merge base, as a full hash: times that a lane compared with another commit are not judged"
    add("--base", metavar="COMMIT", default="", help=commit)
    add("-o", "--output", type=Path, metavar="DIR", default=Path(".perfguard"), help="folder of the files")


def run(options: argparse.Namespace) -> int:
    """Judge, write the files, print the headline; returns one of `perfguard.ExitStatus`.

    Raises:
        UsageError: a report or folder that cannot be read, two reports of one lane, or an abbreviated commit.
    """
    root = find_project(Path.cwd())
    settings = read_settings(root)
    if options.base and not _COMMIT.fullmatch(options.base):
        raise UsageError(f"--base {options.base[:100]}: no full hash; give that of: git merge-base HEAD origin/main")
    for folder in filter(None, (options.baselines, options.base_baselines)):
        if not folder.is_dir():  # Without records nothing fails, so a mistyped name must not pass for an empty folder.
            raise UsageError(f"{folder}: no folder; name that of the baselines")
    head = _baselines(options.baselines or root / settings.baselines)
    base = _baselines(options.base_baselines) if options.base_baselines else None
    received = _received(options.reports, most_recorded((base or head).folders))
    expected: dict[str, Received | str] = dict.fromkeys(settings.lanes, NO_REPORT)
    reference = Reference(base or head, head if base else None, options.base or None)
    overview = _described(judge_lanes(expected | received, reference), options.base, os.environ)
    overview = with_history(overview, root / settings.baselines, options.base or "HEAD")
    for name, content in files_of(overview, settings.strict).items():
        write_atomically(options.output / name, content)
    print(clean(f"perfguard: {title_of(overview)}", _WIDEST))
    print(f"perfguard: report: {options.output}")
    return int(exit_status(overview, settings.strict))


def _received(arguments: Sequence[str], recorded: int) -> dict[str, Received | str]:
    """Lane -> its report, or why there is none. A missing file is an error unless its lane is named. `recorded` bounds
    the reports' size (`comment_limits`)."""
    by_lane: dict[str, Received | str] = {}
    for argument in arguments:
        lane, path = split_lane(argument)
        received = _read(Path(path), recorded, named=bool(lane))
        if isinstance(received, Received):
            lane = lane or received.report.lane
            with contextlib.suppress(LaneError):  # Another name says nothing about times.
                received = of_lane(lane, received)
        lane = lane or Path(path).stem.removeprefix("report-")
        if lane in by_lane:
            raise UsageError(f"{path}: a second report of lane {lane}; name them apart: LANE={path}")
        by_lane[lane] = received
    return by_lane


def _read(path: Path, recorded: int, *, named: bool) -> Received | str:
    try:
        return read_untrusted_file(path, recorded)
    except LaneError as error:
        return str(error)
    except OSError as error:
        if named:
            return f"{path}: cannot be read ({error.strerror}); look at the lane's job"
        raise UsageError(f"{path}: cannot be read ({error.strerror}); make one with: pytest --perfguard") from error


def _baselines(folder: Path) -> BaselineSet:
    """The baselines below a folder; empty if there is no such folder, as before the first recording.

    Raises:
        UsageError: a file cannot be read.
    """
    try:
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.yaml"))}
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read ({error.strerror}); mend its permissions") from error
    return read_files({f"baselines/{name}": data for name, data in files.items()}, "baselines")


def _described(overview: Overview, base: str, environ: Mapping[str, str]) -> Overview:
    """The overview with the commit that its reports measured, and the links that the CI service's variables give."""
    head, several = measured_commit(lane.report for lane in overview.lanes if lane.report)
    run_url, files = _links(environ)
    return replace(
        overview,
        head=head,
        base=base,
        run_url=run_url,
        source_url=f"{files}/{head.removesuffix('+')}/" if files and head else "",
        warnings=[*several, *overview.warnings],
    )


def _links(environ: Mapping[str, str]) -> tuple[str, str]:
    """The URL of the run, and the URL below which a commit's files are; "" if unknown."""
    repository = "/".join(environ.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY"))
    if environ.get("GITHUB_RUN_ID"):
        return f"{repository}/actions/runs/{environ['GITHUB_RUN_ID']}", f"{repository}/blob"
    if environ.get("CI_PROJECT_URL"):
        return environ.get("CI_PIPELINE_URL", ""), f"{environ['CI_PROJECT_URL']}/-/blob"
    source = re.fullmatch(r"(?:https://|git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?", environ.get("BUILDKITE_REPO", ""))
    return environ.get("BUILDKITE_BUILD_URL", ""), f"https://{source[1]}/{source[2]}/blob" if source else ""
