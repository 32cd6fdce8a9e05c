"""Two GPUs: records the times of blocks over them, and compares what they exchange over NCCL with gloo's facts.

    python -m benchmarks.fleet [--out DIR]

Records `baselines/<slug>-x2/` in five launches, whose spread is the A/A of a session: the same code, measured again.
Then the same tests run on the CPU over gloo. `--out` gets reports, records and fleet.json, which stdout shows as well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfguard.model.records import CaseResult, Report, TimedEntry
from perfguard.store.baseline_files import Store
from perfguard.store.report_file import read_report

ROOT = Path(__file__).parents[1]
EXACT, TIMED = (f"tests/kernels/test_parallel{name}_guarded.py" for name in ("", "_times"))
FACTS = (
    "collectives", "collective_bytes", "exchange_bytes", "messages", "unwaited", "implicit_redistributions",
    "gather_padding", "gathered_bytes_left",
)  # fmt: skip
SHOWN = ("exposed_us", "overlap_share", "transfer_us", "skew_us", "bus_gb_per_second", "bus_share", "interconnect")


def run(reports: Path, *arguments: str) -> Report | None:
    """The report of one run of pytest; None if it wrote none."""
    started = time.monotonic()
    # A warning of a version that was never tried must not end a session on a machine that is lent by the minute.
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "--perfguard"]
    done = subprocess.run(
        [sys.executable, *command, f"--perfguard-reports={reports}", *arguments], cwd=ROOT, check=False
    )
    print(f"== {' '.join(arguments)}: status {done.returncode}, {time.monotonic() - started:.0f} s", flush=True)
    files = sorted(reports.glob("report-*.json"))
    return read_report(files[0]) if files else None


def rows(report: Report, baselines: Path) -> Iterator[dict[str, Any]]:
    """Each timed case: its recorded sessions, and what one session read of its exchanges, by collective."""
    store = Store(baselines)
    for result in report.results:
        file = store.load(f"{report.hardware.slug}-x{result.ranks}", result.case.suite)
        entries = file.cases[result.case.key].entries if file and result.case.key in file.cases else {}
        entry, floor = entries.get("ranks_time_us"), entries.get("ranks_floor_us")
        if isinstance(entry, TimedEntry):
            read = {metric: result.reading(metric) for metric in SHOWN}
            yield {
                "case": result.case.key,
                "timer": entry.timer,
                "sessions": entry.sessions,
                "floor_us": statistics.median(floor.sessions) if isinstance(floor, TimedEntry) else None,
                **{metric: reading.value for metric, reading in read.items() if reading is not None},
            }


def differences(one: Sequence[CaseResult], other: Sequence[CaseResult]) -> Iterator[str]:
    """The exact facts of cases that both have, where they differ, and how many are equal."""
    known = {result.case.key: result for result in other}
    equal = 0
    for result in one:
        for metric in FACTS:
            ours = result.reading(metric)
            theirs = known[result.case.key].reading(metric) if result.case.key in known else None
            if ours is None or theirs is None:
                continue
            equal += ours.value == theirs.value
            if ours.value != theirs.value:
                yield f"{result.case.key} {metric}: {ours.value} over NCCL, {theirs.value} over gloo"
    yield f"{equal} facts are equal"


def failures(report: Report) -> Iterator[str]:
    for result in report.results:
        for verdict in result.verdicts:
            if verdict.word.fails:
                yield f"{verdict.word} {result.case.key} {verdict.metric}: {verdict.reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".perfguard" / "fleet")
    out: Path = parser.parse_args().out
    on_gpus = run(out / "gpus", "--perfguard-update=new", EXACT, TIMED, "-k", "two_ and not inductor")
    on_cpu = run(out / "cpu", "--perfguard-lane=cpu", EXACT, "-k", "two_ and not inductor")
    if on_gpus is None:
        sys.exit("no report of GPUs")
    baselines = ROOT / "baselines"
    folder = f"{on_gpus.hardware.slug}-x2"
    if (baselines / folder).is_dir():
        shutil.copytree(baselines / folder, out / folder, dirs_exist_ok=True)
    different = [] if on_cpu is None else list(differences(on_gpus.results, on_cpu.results))
    found = {"rows": list(rows(on_gpus, baselines)), "facts": different}
    (out / "fleet.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    print("\n".join(failures(on_gpus)) or "nothing fails on GPUs")


if __name__ == "__main__":
    main()
