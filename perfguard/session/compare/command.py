"""`perfguard compare BASE [-- pytest arguments]`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `perfguard compare`."""
    parser.description = (
        "Measures the merge base of HEAD and BASE and the working tree, uncommitted changes included, side by side "
        "in live processes on one device, block against block. Needs no stored baseline and writes none."
    )
    parser.add_argument(
        "base",
        metavar="BASE",
        nargs="?",
        help="branch, tag or commit that the work will be merged into (default: the remote's or local main branch)",
    )
    parser.add_argument("--setup", metavar="CMD", default="", help="run in each worktree first, to build extensions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found to FILE")
    parser.add_argument(
        "pytest_arguments", nargs="*", metavar="-- PYTEST ARGUMENTS", help="which tests; as after `pytest`"
    )


def run(options: argparse.Namespace) -> int:
    """Compare, print, and return the exit status, one of `perfguard.ExitStatus`.

    Raises:
        PerfguardError: nothing can be compared; with the next step.
    """
    from perfguard.model.errors import ExitStatus
    from perfguard.session.compare.compare import Request, compare_in
    from perfguard.session.pairing.interrupts import Interrupts

    request = Request(Path.cwd(), options.base, options.setup, options.json, tuple(options.pytest_arguments))
    try:
        with Interrupts() as interrupts:
            return int(compare_in(request, interrupts))
    except KeyboardInterrupt:
        return int(ExitStatus.INTERRUPTED)
