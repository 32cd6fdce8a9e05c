"""`perfguard accept [--lane L] [-k EXPR] (--from REPORT.json | --run ID) --reason TEXT`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard accept`."""
    parser.description = (
        "Writes what a run measured into the baselines of this checkout, as --perfguard-update would, without "
        "measuring anything. Judges the readings again by these baselines first. A time is taken from what fresh "
        "processes read, else as its record times what process pairs found; what neither tells, what is wrong and what "
        "was measured under another toolchain is left alone, with the reason. Then commit."
    )
    parser.add_argument("--lane", metavar="LANE", help="only this lane, e.g. nvidia-h200 (default: every one)")
    parser.add_argument("-k", dest="expression", metavar="EXPR", default="", help="which cases; as pytest -k")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--from", dest="reports", type=Path, nargs="+", metavar="REPORT.json", help="reports at hand")
    source.add_argument("--run", type=int, metavar="ID", help="the reports of a workflow run; needs GITHUB_TOKEN")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; kept in the file for what got worse")


def run(options: argparse.Namespace) -> int:
    """Return the exit status, one of `perfguard.ExitStatus`.

    Raises:
        PerfguardError: nothing can be accepted; with the next step.
    """
    from perfguard.github.accept.accept import Request, accept
    from perfguard.github.accept.sources import from_files, from_run
    from perfguard.model.config import read_settings

    root = Path.cwd()
    settings = read_settings(root)
    if options.run is None:
        reports = from_files(options.reports, options.lane)
    else:
        reports = from_run(os.environ, options.run, [options.lane] if options.lane else settings.lanes)
    request = Request(root / settings.baselines, settings, options.expression, options.reason)
    return int(accept(request, reports, print))
