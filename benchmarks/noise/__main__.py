"""How much times differ between processes of one commit: fresh sessions that read times alone, and a table.

    python -m benchmarks.noise FOLDER --sessions 15 --seconds 300 [--suite PATH …]
    python -m benchmarks.noise --stored baselines/nvidia-h200

The first session chooses the timers; each has its own order of cases. The sessions lie in FOLDER for
`perfguard selfcheck --from FOLDER`, which judges them; another call goes on where this one ended. `--suite` takes other
guarded tests than those of `benchmarks/noise`. `--stored` measures nothing: it takes what baselines remember.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from perfguard.model.records import Report, TimedEntry
from perfguard.selfcheck.sessions import measure_sessions, stored_sessions
from perfguard.session.child import Request, child_command
from perfguard.store.baseline_files import Store

SUITE = "benchmarks/noise"
LIMITS = (0.3, 0.5)  # %
LEAST_US, MOST_US = 3.0, 10_000.0  # of what is promised to stay within them


def measure(folder: Path, suite: Sequence[str], device: str, sessions: int, seconds: float) -> None:
    """Sessions until there are so many, or until the next would end after `seconds`."""
    command = child_command(suite, Path.cwd(), device)
    started, longest = time.monotonic(), 0.0
    for number in range(1, sessions + 1):
        begun = time.monotonic()
        if begun - started + longest > seconds:
            print(f"stopped before session {number}: {seconds:g} s are over")
            return
        measure_sessions(command, Request(exact=False), folder, number, minutes=5, progress=lambda _: None)
        longest = max(time.monotonic() - begun, 0.8 * longest)  # the first one compiles


Times = dict[str, dict[tuple[str, str], list[float]]]  # metric: (case, timer): one for each session


def of_reports(reports: Sequence[Report]) -> Times:
    """Times of stored sessions."""
    found: Times = defaultdict(lambda: defaultdict(list))
    for report in reports:
        for result in report.results:
            for reading in result.readings:
                if reading.timer is not None and isinstance(reading.value, int | float):
                    found[reading.metric][result.case.key, reading.timer].append(reading.value)
    return found


def of_baselines(folder: Path) -> Times:
    """Times that the baselines in `folder` remember, one for each fresh process that recorded them."""
    found: Times = defaultdict(dict)
    for baseline in Store(folder.parent).baselines(folder.name).values():
        for case, remembered in baseline.cases.items():
            for metric, entry in remembered.entries.items():
                if isinstance(entry, TimedEntry):
                    found[metric][case, entry.timer] = list(entry.sessions)
    return found


def table(found: Times) -> list[str]:
    """A line for each time: median µs, coefficient of variation between sessions; then their shares within limits."""
    lines = []
    for metric, times in found.items():
        lines += ["", f"| {metric} | timer | median µs | CV % | sessions |", "|---|---|---|---|---|"]
        variation = {key: _variation(values) for key, values in times.items() if len(values) > 1}
        for (case, timer), percent in sorted(variation.items()):
            values = times[case, timer]
            lines.append(f"| {case} | {timer} | {statistics.median(values):.4g} | {percent:.2f} | {len(values)} |")
        if variation:
            lines.append(f"all {_shares([*variation.values()])}")
            promised = [each for key, each in variation.items() if LEAST_US <= statistics.median(times[key]) <= MOST_US]
            if promised:
                lines.append(f"those from 3 µs to 10 ms, {_shares(promised)}")
    return lines


def _shares(variation: Sequence[float]) -> str:
    shares = [100 * sum(each <= limit for each in variation) / len(variation) for limit in LIMITS]
    within = ", ".join(f"{share:.0f} % within {limit} %" for limit, share in zip(LIMITS, shares, strict=True))
    return f"{len(variation)}: median {statistics.median(variation):.2f} %; {within}"


def _variation(values: Sequence[float]) -> float:
    return 100 * statistics.stdev(values) / statistics.fmean(values)


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sessions", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=600.0, help="no further session begins that would end later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--suite", nargs="+", default=[SUITE], help="files of guarded tests")
    parser.add_argument("--stored", action="store_true", help="of the baselines in FOLDER")
    options = parser.parse_args()
    if options.stored:
        found = of_baselines(options.folder)
        if not found:
            parser.error(f"folder: {options.folder} holds no baseline with times")
        print("\n".join(table(found)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    measure(options.folder, options.suite, options.device, options.sessions, options.seconds)
    reports = stored_sessions(options.folder)
    print(f"{len(reports)} sessions on {reports[0].hardware.name}, torch {reports[0].toolchain.torch}")
    print("\n".join(table(of_reports(reports))))


if __name__ == "__main__":
    main()
