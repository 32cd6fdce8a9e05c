"""`perfguard report`: shows saved reports, of one lane or of all lanes of a commit, in the requested form."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfguard.judge.lane import is_own, joined
from perfguard.model.atomic_files import check_file, write_atomically
from perfguard.model.config import find_project, read_settings
from perfguard.model.errors import BaselineError, ExitStatus, UsageError
from perfguard.model.records import Baseline, Report
from perfguard.render.outputs import ALONE, OUTPUTS
from perfguard.render.overview import LaneView, Overview
from perfguard.store.baseline_files import Store
from perfguard.store.report_file import read_report

NO_REPORT = "no report was given for this lane"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `perfguard report`."""
    parser.add_argument(
        "reports",
        nargs="+",
        metavar="[LANE=]REPORT.json",
        help="reports that pytest --perfguard saved; a lane is named by its hardware (one that was not timed by its "
        "target) unless a name is given",
    )
    parser.add_argument("--as", dest="form", choices=list(OUTPUTS), default="terminal", help="default: terminal")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of standard output")
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="LANE",
        help="a lane that must have a report, else it is shown as no result; may be repeated (else: `lanes` of "
        "[tool.perfguard], where several reports or a form for several lanes are asked for)",
    )


def run(options: argparse.Namespace) -> int:
    """Print saved reports in the requested form."""
    if options.output is not None:
        check_file(options.output)
    reports = read_lanes(options.reports)
    project = find_project(Path.cwd())
    settings = read_settings(project)
    alone = len(reports) == 1 and options.form in ALONE
    expected = options.expect or ([] if alone else settings.lanes)
    overview = merge(reports, expected, Store(project / settings.baselines))
    text = OUTPUTS[options.form](overview)
    if options.output is None:
        print(text)
    else:
        write_atomically(options.output, f"{text.rstrip()}\n".encode())
    return int(ExitStatus.PASSED)


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
