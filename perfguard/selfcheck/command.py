"""Command line of `perfguard selfcheck`. Cheap to import."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

_DESCRIPTION = """\
Measures the guarded suite in fresh processes of one commit and judges process pairs that are drawn from them: how often
unchanged code is accused, and which slowdowns are found.
On a GPU a kernel of perfguard's own is made slower by 1 to 10 %, measured and judged like any case."""

_EPILOG = """\
exit status: 0 the promises hold, 1 one does not, 4 usage, 12 nothing was measured"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to `parser`."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sessions", type=_count(2), default=20, metavar="N", help="fresh processes (default: 20)")
    parser.add_argument(
        "--suites", type=_count(1), default=300, metavar="N", help="suites built by resampling (default: 300)"
    )
    parser.add_argument("--from", dest="stored", type=Path, metavar="FOLDER", help="judge stored sessions again")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="sessions and results (default: .perfguard/selfcheck)"
    )
    parser.add_argument(
        "pytest_arguments", nargs="*", metavar="PYTEST_ARGUMENT", help="after --: tests to measure, -k …"
    )


def _count(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of {least} or more")
        return number

    return count


def run(options: argparse.Namespace) -> int:
    """Measure, judge, show; the exit status is 0 if no promise is broken."""
    from perfguard.selfcheck.running import Request, selfcheck

    return selfcheck(
        Request(
            directory=Path.cwd(),
            sessions=options.sessions,
            suites=options.suites,
            stored=options.stored,
            output=options.output,
            arguments=tuple(options.pytest_arguments),
        )
    )
