"""`perfguard comment [--run ID] [--dry-run]`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

MEASURE_WORKFLOW = ".github/workflows/measure.yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard comment`."""
    parser.description = (
        "For a job `on: workflow_run` after the lanes: reads what they uploaded as a stranger's, judges it by the "
        "baselines of the merge base, and keeps one comment and the commit statuses true. Needs GITHUB_TOKEN, no GPU "
        "and no torch. See docs/pull-requests.md."
    )
    parser.add_argument(
        "--run", type=int, metavar="ID", help="the run that measured (default: that of the job's event)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print comment and statuses; tell GitHub nothing")
    parser.add_argument(
        "--key", default="default", metavar="NAME", help="tells comments of several configurations apart: [a-z0-9-]"
    )
    parser.add_argument(
        "--workflow",
        metavar="PATH",
        default=MEASURE_WORKFLOW,
        help="the workflow that measures (default: %(default)s); runs of others are left alone",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        default=Path(".perfguard"),
        help="folder of report.md, report.html, report.json",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; returns one of `perfguard.ExitStatus`.

    Raises:
        PerfguardError: what keeps it from judging at all, with the next step.
    """
    from perfguard.github.api.token import Environ
    from perfguard.github.post.post_job import Job, post
    from perfguard.model.config import read_settings

    settings = read_settings(Path.cwd())
    return int(
        post(
            Job(
                settings,
                Environ(os.environ),
                run=options.run,
                dry=options.dry_run,
                key=options.key,
                output=options.output,
                workflow=options.workflow,
            )
        )
    )
