"""Whether the exact metrics are the same in every run: the untimed suite again and again, and whatever differed.

    python -m benchmarks.repeated [--runs 10] [--reports DIR] [pytest's arguments]

Runs take turns between two checkouts of this repository's last commit, at paths of different length and depth, and
between two seeds of Python's hashes. Each judges against the committed baselines, as `scripts/guard
--perfguard-lane=cpu` does. A run differs if a case, its inputs, a reading, or a verdict does. The first run of each
checkout compiles everything, later ones take it from the checkout's cache. Exit status 1: runs differ, or one failed.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.checkouts import copied
from perfguard.model.records import CaseResult
from perfguard.store.report_file import read_report

PLACES = ("a", "another/checkout-with-a-longer-name")
SEEDS = ("1", "20261122")
MOST_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--reports", type=Path, help="folder that keeps each run's report and output")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="repeated-") as name:
        folder = Path(name)
        reports = (options.reports or folder / "reports").resolve()
        checkouts = [copied(folder / place) for place in PLACES]
        first: dict[str, object] = {}
        same = True
        for number in range(options.runs):
            checkout, seed = checkouts[number % 2], SEEDS[number // 2 % 2]
            found, told = _run(checkout, seed, reports / f"run-{number + 1:02}", arguments)
            first = first or found
            differing = differences(first, found)
            print(f"run {number + 1:2}: {told}; {len(differing)} of {len(found)} facts differ from run 1", flush=True)
            for words in differing[:MOST_SHOWN]:
                print(f"    {words}", flush=True)
            same &= bool(found) and not differing and "status 0" in told
    print(f"{options.runs} runs: {'all the same' if same else 'NOT all the same, or not all passed'}")
    return 0 if same else 1


def _run(checkout: Path, seed: str, reports: Path, arguments: Sequence[str]) -> tuple[dict[str, object], str]:
    """One run's facts, and how it went."""
    suites = sorted(str(path.relative_to(checkout)) for path in (checkout / "tests/kernels").glob("test_*_guarded.py"))
    line = [
        sys.executable,
        "-m",
        "pytest",
        "--perfguard",
        "--perfguard-lane=cpu",
        "-q",
        f"--perfguard-reports={reports}",
    ]
    line += ["-n", "auto", "--dist", "worksteal", *(arguments or suites)]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
    reports.mkdir(parents=True, exist_ok=True)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with (reports / "output.txt").open("w") as output:
        status = subprocess.run(line, cwd=checkout, env=environment, stdout=output, stderr=output).returncode
    seconds, used = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    found = facts(result for path in sorted(reports.glob("report-*.json")) for result in read_report(path).results)
    return found, f"status {status}, {seconds:.0f} s, {busy:.0f} s of processors, {checkout.name}, seed {seed}"


def facts(results: Iterable[CaseResult]) -> dict[str, object]:
    """Everything exact that a run says, by name: of each case its inputs, its readings and its verdicts."""
    found: dict[str, object] = {}
    for result in results:
        case = f"{result.case.suite} {result.case.key}"
        found[f"{case} inputs"] = result.inputs
        found[f"{case} verdicts"] = sorted(
            (verdict.word, verdict.metric, verdict.reason) for verdict in result.verdicts
        )
        found |= {f"{case} {each.metric}": each.value for each in result.readings if not each.timed}
    return found


def differences(first: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """`suite case metric: 1 -> 2`, in the first run's order; what one of them lacks is `absent` there."""
    names = dict.fromkeys([*first, *other])
    pairs = [(name, first.get(name, "absent"), other.get(name, "absent")) for name in names]
    return [f"{name}: {a!r} -> {b!r}" for name, a, b in pairs if a != b]


if __name__ == "__main__":
    raise SystemExit(main())
