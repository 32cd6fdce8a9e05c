"""How much times differ between processes of one commit: fresh sessions that read times alone, and a table.

    python -m benchmarks.noise FOLDER --sessions 15 --seconds 300

The first session chooses the timers; each has its own order of cases. The sessions lie in FOLDER for
`perfguard selfcheck --from FOLDER`, which judges them; another call goes on where this one ended.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfguard.records import Report
from perfguard.selfcheck.measuring import measure_sessions, read_sessions, suite_command

SUITE = "benchmarks/noise"
LIMITS = (0.3, 0.5)  # %


def measure(folder: Path, device: str, sessions: int, seconds: float) -> None:
    """Sessions until there are so many, or until the next would end after `seconds`."""
    command = replace(suite_command([SUITE], Path.cwd(), device), rivals=False)
    started, longest = time.monotonic(), 0.0
    for number in range(1, sessions + 1):
        begun = time.monotonic()
        if begun - started + longest > seconds:
            print(f"stopped before session {number}: {seconds:g} s are over")
            return
        measure_sessions(
            command, folder, number, minutes=5, progress=lambda _: None, timers_of=lambda pilot: pilot, exact=False
        )
        longest = max(time.monotonic() - begun, 0.8 * longest)  # the first one compiles


def table(reports: Sequence[Report]) -> list[str]:
    """A line for each time: median µs, coefficient of variation between sessions; then their shares within limits."""
    found: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for report in reports:
        for result in report.results:
            for reading in result.readings:
                if reading.timer is not None and isinstance(reading.value, int | float):
                    found[reading.metric][result.case.key, reading.timer].append(reading.value)
    lines = [f"{len(reports)} sessions on {reports[0].hardware.name}, torch {reports[0].toolchain.torch}"]
    for metric, times in found.items():
        lines += ["", f"| {metric} | timer | median µs | CV % | sessions |", "|---|---|---|---|---|"]
        variation = {key: _variation(values) for key, values in times.items() if len(values) > 1}
        for (case, timer), percent in sorted(variation.items()):
            values = times[case, timer]
            lines.append(f"| {case} | {timer} | {statistics.median(values):.4g} | {percent:.2f} | {len(values)} |")
        if variation:
            shares = [100 * sum(each <= limit for each in variation.values()) / len(variation) for limit in LIMITS]
            within = ", ".join(f"{share:.0f} % within {limit} %" for limit, share in zip(LIMITS, shares, strict=True))
            lines.append(f"median {statistics.median(variation.values()):.2f} %; {within}")
    return lines


def _variation(values: Sequence[float]) -> float:
    return 100 * statistics.stdev(values) / statistics.fmean(values)


def main() -> None:
    """Measure, then print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sessions", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=600.0, help="no further session begins that would end later")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    measure(options.folder, options.device, options.sessions, options.seconds)
    print("\n".join(table(read_sessions(options.folder))))


if __name__ == "__main__":
    main()
