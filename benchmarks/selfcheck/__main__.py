"""Measures sessions of a user's suite, and judges process pairs that are drawn from them."""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.selfcheck.findings import SCHEMA, Findings
from benchmarks.selfcheck.judging import LEAST_SESSIONS, judge_exact_metrics, judge_suites, timed_cases
from benchmarks.selfcheck.sessions import gather, measure_sessions, stored_sessions
from benchmarks.selfcheck.table import show
from perfguard import __version__
from perfguard.measure.devices import find_devices
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import Settings, find_project, read_settings
from perfguard.model.errors import ExitStatus, MeasurementError, PerfguardError, UsageError
from perfguard.model.records import Report
from perfguard.session.child import DEVICE_OPTION, Request, child_command
from perfguard.session.device_lock import DeviceLock

RESULT = "selfcheck.json"

_DESCRIPTION = """\
Measures the guarded suite in fresh processes of one commit and judges process pairs that are drawn from them: how often
unchanged code is accused, and which slowdowns are found."""

_EPILOG = """\
exit status: 0 the promises hold, 1 one does not, 4 usage, 12 nothing was measured"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; what stands behind `--` is pytest's."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    cut = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.selfcheck",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--sessions", type=_count(LEAST_SESSIONS), default=20, metavar="N", help="fresh processes (default: 20)"
    )
    parser.add_argument("--suites", type=_count(1), default=300, metavar="N", help="suites to judge (default: 300)")
    parser.add_argument("--from", dest="stored", type=Path, metavar="FOLDER", help="judge stored sessions again")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="sessions and results (default: .perfguard/selfcheck)"
    )
    options = parser.parse_args(given[:cut])
    options.pytest_arguments = given[cut + 1 :]
    try:
        return run(options)
    except PerfguardError as error:
        print(f"selfcheck: {error}", file=sys.stderr)
        return int(ExitStatus.USAGE_ERROR)


def _count(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of {least} or more")
        return int(text)

    return count


def _named_device(arguments: Sequence[str], folder: Path) -> str | None:
    """The device that pytest's arguments name; None without one."""
    name = None
    given = child_command(arguments, folder, "").arguments[:-1]  # with those in files
    for number, argument in enumerate(given):
        option, equals, value = argument.partition("=")
        if option == DEVICE_OPTION:
            name = value if equals else next(iter(given[number + 1 :]), None)
    return name


def run(options: argparse.Namespace) -> int:
    """Measure (or read) sessions, judge them, show and write the findings; returns the exit status.

    Raises:
        UsageError: too few sessions, a folder with other contents, or no such folder.
    """
    here = Path.cwd()
    root = find_project(here)
    settings = read_settings(root, device=_named_device(options.pytest_arguments, here))
    if options.stored is not None and options.pytest_arguments:
        raise UsageError("--from: judges stored sessions and starts no pytest; leave the arguments after -- out")
    folder = (options.stored or options.output or root / settings.reports / "selfcheck").resolve()
    try:
        reports = stored_sessions(folder) if options.stored else _measure(options, folder, settings)
    except MeasurementError as error:
        _say(str(error))
        return int(ExitStatus.NOTHING_MEASURED)
    except KeyboardInterrupt:
        _say(f"interrupted; the sessions in {folder} are kept: the same command goes on from there")
        return int(ExitStatus.INTERRUPTED)
    if len(reports) < LEAST_SESSIONS:
        raise UsageError(
            f"{folder}: {len(reports)} sessions; a judgement needs {LEAST_SESSIONS} (three process pairs of three "
            "sessions each), 20 by default; measure them: python -m benchmarks.selfcheck -o FOLDER"
        )
    findings = analyse(reports, options.suites)
    if findings is None:
        _say(f"{folder}: no timed case was measured alike in every session; nothing to judge")
        return int(ExitStatus.NOTHING_MEASURED)
    result = (options.output or folder) / RESULT
    write_atomically(result, msgspec.json.format(msgspec.json.encode(findings), indent=1))
    show(findings)
    print(f"results: {result}")
    kept = [promise.kept for promise in findings.promises()]
    return int(ExitStatus.TESTS_FAILED if False in kept else ExitStatus.PASSED)


def _measure(options: argparse.Namespace, folder: Path, settings: Settings) -> list[Report]:
    """Measure the suite's sessions on one locked device."""
    device, key = next(iter(find_devices(settings.device).items()))
    with DeviceLock(key) as lock:
        lock.acquire(settings.lock_minutes, _say)
        command = child_command(options.pytest_arguments, Path.cwd(), device)
        minutes = settings.session_minutes
        return measure_sessions(command, Request(), folder, options.sessions, minutes=minutes, progress=_say)


def analyse(reports: Sequence[Report], suites: int) -> Findings | None:
    """Evaluate the judge on sessions of one commit; None if they share no timed case."""
    sample = gather(reports)
    times = timed_cases(sample)
    if not times:
        return None
    _say(f"judging {suites} suites of process pairs from {len(reports)} sessions")
    exact, moved = judge_exact_metrics(sample)
    judged = judge_suites(sample, suites, _say)
    accused = [f"{' '.join(case)}: SLOWER in {count} suites" for case, count in judged.accused.most_common()]
    return Findings(
        schema=SCHEMA,
        perfguard=__version__,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        hardware=sample.hardware,
        toolchain=sample.toolchain,
        commit=reports[0].commit,
        sessions=len(reports),
        first_session=min(report.started for report in reports),
        last_session=max(report.started for report in reports),
        cases=len(sample.sessions[0]),
        timed_cases=len(times),
        left_out=sample.left_out,
        seconds_per_case=statistics.fmean(each.seconds for session in sample.sessions for each in session.values()),
        exact=exact,
        suites=judged.suites,
        alarms=[*moved, *accused],
        timers=judged.timers,
        power=judged.power,
        promised=judged.promised,
    )


def _say(text: str) -> None:
    print(f"selfcheck: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
