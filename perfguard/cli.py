"""The `perfguard` command: reports, what this machine can measure, comparing two commits."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from perfguard import __version__
from perfguard.model.errors import EXIT_MEANINGS, ExitStatus, PerfguardError

_FILE_WIDTH = 250  # The width if the output is a log or a pipe.

# Command -> the module with its options and its work, which is loaded only for that command, and its purpose.
_COMMANDS = {
    "init": (
        "perfguard.github.init.command",
        "set this repository up: settings, .gitignore, workflows of GitHub Actions",
    ),
    "report": (
        "perfguard.session.report_command",
        "show reports that pytest --perfguard saved, of one lane or several, in one of several forms",
    ),
    "accept": ("perfguard.github.accept", "write what a report measured into the baselines, with a reason"),
    "resume": ("perfguard.github.resume", "fetch what earlier runs of CI have tried, so that a job goes on there"),
    "comment": ("perfguard.github.comment_job", "judge what the lanes uploaded and report it in the pull request"),
    "judge": ("perfguard.github.judge_command", "judge reports from files, as `comment` does, without any network"),
    "compare": (
        "perfguard.pytest_plugin.compare",
        "the merge base with BASE against the working tree, alternating on one device; needs no baseline",
    ),
    "explain": (
        "perfguard.session.explain",
        "why a case is slower: hardware counters of both sides, by ncu or rocprofv3",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit status is one of `perfguard.ExitStatus`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = _parser(next((argument for argument in given[:cut] if argument in _COMMANDS), ""))
    options = parser.parse_args(given[:cut])
    if given[cut + 1 :]:  # These are for pytest; argparse would lose them behind an option.
        if not hasattr(options, "pytest_arguments"):
            parser.error(f"{' '.join(given[cut:])}: this command hands nothing on to pytest; leave it out")
        options.pytest_arguments = given[cut + 1 :]
    command: Callable[[argparse.Namespace], int] = options.command
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":  # It lacks some characters.
            with contextlib.suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    try:
        status = command(options)
        sys.stdout.flush()
        return status
    except PerfguardError as error:
        from perfguard.render.escaping import clean  # The error may name what a stranger wrote.

        print(f"perfguard: {clean(str(error), None)}", file=sys.stderr)
        return int(ExitStatus.USAGE_ERROR)
    except KeyboardInterrupt:  # The command has removed what it made.
        return int(ExitStatus.INTERRUPTED)
    except BrokenPipeError:  # The reader, for instance head, has closed the pipe.
        sys.stderr.close()
        return int(ExitStatus.PASSED)
    except OSError as error:
        where = error.filename or "standard output"
        print(f"perfguard: {where}: {error.strerror}; make room, or mend its permissions", file=sys.stderr)
        if error.filename is None:  # Otherwise Python writes the rest when it ends, and fails again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitStatus.USAGE_ERROR)


class _Parser(argparse.ArgumentParser):
    """A parser that exits with perfguard's usage status; argparse's own 2 means interrupted in pytest."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(int(ExitStatus.USAGE_ERROR), f"{self.prog}: {message}\n")


def _parser(named: str) -> argparse.ArgumentParser:
    """All commands, with the options of the `named` one."""
    statuses = "\n".join(f"  {int(status):3}  {meaning}" for status, meaning in EXIT_MEANINGS.items())
    parser = _Parser(
        prog="perfguard",
        description="Guards GPU kernels in pytest: measure and judge with `pytest --perfguard`.",
        epilog=f"exit status of pytest --perfguard and perfguard:\n{statuses}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"perfguard {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="what this machine can measure, what is missing, and the next step")
    doctor.set_defaults(command=run_doctor)
    for name, (module, purpose) in _COMMANDS.items():
        command = commands.add_parser(name, help=purpose)
        if name == named:
            loaded = importlib.import_module(module)
            loaded.add_arguments(command)
            command.set_defaults(command=loaded.run)
    return parser


def run_doctor(options: argparse.Namespace) -> int:
    """Print one row per finding, with the next step for each missing part, and the next command."""
    from rich.console import Console
    from rich.table import Table

    from perfguard.measure.devices import Finding, diagnose
    from perfguard.model.config import Settings, find_project, read_settings
    from perfguard.session.pairing.worktrees import find_repository

    project, configured = find_project(Path.cwd()), Settings()
    try:
        configured = read_settings(project)
        settings = Finding("settings", "[tool.perfguard] can be read, or is left out")
    except PerfguardError as error:
        settings = Finding("settings", "", str(error), "mend it: every run stops there")
    repository = project
    try:
        repository = find_repository(project).root
        git = Finding("git", str(repository))
    except PerfguardError as error:
        git = Finding("git", "", *str(error).split("; ", 1))
    table = Table.grid(padding=(0, 2))
    findings = [settings, *diagnose(targets=configured.targets), git]
    for finding in findings:
        missing = [f"missing: {finding.missing}", f"next step: {finding.next_step}"] if finding.missing else []
        text = "\n".join(filter(None, [finding.value, *missing]))
        table.add_row(finding.topic, text, style="yellow" if missing else "")
    table.columns[1].overflow = "fold"  # A truncated slug or path is of no use.
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    console = Console(width=width, highlight=False, markup=False)  # Brackets name extras; markup would hide them.
    console.print(table)
    topics = ("settings", "torch", "device", "git")
    needed = (each.next_step for each in findings if each.missing and each.topic in topics)
    slug = next((finding.value for finding in findings if finding.topic == "device hardware"), "")
    step = next(needed, "") or _next_command(repository, project / configured.baselines, slug)
    console.print(f"\nnext: {step}", soft_wrap=True)
    return int(ExitStatus.PASSED)


def _next_command(repository: Path, baselines: Path, slug: str) -> str:
    """What a user types next in this repository, once the machine has what a run needs.

    Args:
        slug: the name of this hardware; "" if it is unknown.
    """
    lane = "pytest --perfguard --perfguard-lane=cpu"
    if slug and (baselines / slug).is_dir():
        return "pytest --perfguard"
    if (baselines / "cpu").is_dir():
        return lane
    workflows = (repository / ".github" / "workflows").glob("*.y*ml")
    if not any("perfguard" in path.read_text(encoding="utf-8", errors="replace") for path in workflows):
        return "perfguard init"
    return f"{lane} --perfguard-update=new  # once a guarded test is committed: docs/start.md"
