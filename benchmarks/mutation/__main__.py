from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.mutation import __doc__ as description
from benchmarks.mutation.judging import LANES, MOST_TESTS, SUITES, Cases, Judged, Workplace
from benchmarks.mutation.reaching import WRITTEN, load
from benchmarks.mutation.report import DEAD, argued, key, page, with_arguments
from benchmarks.mutation.sampling import ROOT, Mutant, drawn
from benchmarks.rows import write_rows

KEPT = ROOT / ".perfguard" / "mutation"
REACHED = KEPT / "reached"
FILES = [f"tests/kernels/test_{suite}_guarded.py" for suites in SUITES.values() for suite in suites]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutation",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reach", action="store_true", help="find out anew which cases run which lines")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="judge N mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--files", nargs="+", default=["*"], metavar="GLOB", help="of which the mutants are, such as kernels/moe/*"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no other mutant after this")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants that are run side by side")
    parser.add_argument(
        "--lane",
        choices=[*LANES],
        default="cpu",
        help="all: with every configuration of every case; gpu: of the one that is there, untimed",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="what was seen: a mutant runs again where another lane did not notice it and nobody has argued why",
    )
    parser.add_argument("--tests", type=int, default=MOST_TESTS, metavar="N", help="cases of each mutant")
    parser.add_argument("--again", action="store_true", help="no new mutants: what FILE holds, by another lane")
    parser.add_argument("--table", nargs=2, type=Path, metavar=("PAGE", "FILE"), help="write the page of a FILE")
    given = parser.parse_args()
    if given.table:
        where, file = given.table
        seen = with_arguments(json.loads(file.read_text(encoding="utf-8")))
        write_rows(file, seen)
        where.write_text(page(seen), encoding="utf-8")
        return 0
    if given.reach or not REACHED.exists():
        reach()
    if given.sample:
        path = given.json or KEPT / "seen.json"
        first = islice((each for each in drawn(given.seed) if matches(each.file, given.files)), given.sample)
        sample(first, given.seed, given.minutes, path, given.jobs, given.lane, given.tests, given.again)
    return 0


def reach() -> None:
    """Run the suites once without perfguard's measuring, and keep lines and seconds by test."""
    shutil.rmtree(REACHED, ignore_errors=True)
    REACHED.mkdir(parents=True)
    environment = {**os.environ, WRITTEN: str(REACHED), "OMP_NUM_THREADS": "1"}
    line = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.mutation.reaching",
        f"--junitxml={KEPT / 'seconds.xml'}", "-o", "junit_family=xunit1", *FILES,
    ]  # fmt: skip
    subprocess.run(line, cwd=ROOT, env=environment, check=True)


def seconds_by_test() -> dict[str, float]:
    """Of the run that `reach` made."""
    from xml.etree import ElementTree

    found = {}
    for case in ElementTree.parse(KEPT / "seconds.xml").getroot().iter("testcase"):
        if case.find("skipped") is None:
            found[f"{case.get('file')}::{case.get('name')}"] = float(case.get("time") or 0)
    return found


def matches(file: str, globs: Sequence[str]) -> bool:
    return any(fnmatch(file, glob) for glob in globs)


def sample(
    first: Iterable[Mutant], seed: int, minutes: float, path: Path, jobs: int, lane: str, tests: int, again: bool
) -> None:
    """Judge the first mutants of a seed's order; what was seen is saved after each."""
    folders = "cpu" if lane != "gpu" else "*"
    cases = Cases(load(REACHED), seconds_by_test(), folders=folders, most=tests)
    seen: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["mutants"] if path.exists() else []
    settled = argued("equivalent") | argued("open")
    known = {
        place(each)
        for each in seen
        if each["word"] not in DEAD or each.get("lane", "cpu") == lane or key(each) in settled
    }
    until = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        free: SimpleQueue[Workplace] = SimpleQueue()
        clean: dict[str, bool] = {}
        for job in range(jobs):
            free.put(Workplace(Path(folder) / str(job), KEPT / "cache", lane, clean))

        def judged(mutant: Mutant) -> Judged | None:
            if time.monotonic() > until:
                return None
            workplace = free.get()
            try:
                return workplace.judge(mutant, cases.of(mutant))
            finally:
                free.put(workplace)

        places = {(each.file, each.line, each.operator, each.change()[1]): each for each in first}
        old = {place(each) for each in seen}
        new = [each for at, each in places.items() if at not in known and (at in old or not again)]
        with ThreadPoolExecutor(jobs) as pool:
            for future in as_completed([pool.submit(judged, each) for each in new]):
                found = future.result()
                if found is not None:
                    one = asdict(found)
                    seen = [each for each in seen if place(each) != place(one)] + [one]
                    write_rows(path, whole(seed, seen))
                    print(told(found), flush=True)


def place(seen: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a mutant from others."""
    return seen["file"], seen["line"], seen["operator"], seen["after"]


def whole(seed: int, seen: list[dict[str, Any]]) -> dict[str, Any]:
    """What `--json` keeps."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {
        "command": "python -m benchmarks.mutation",
        "seed": seed,
        "date": datetime.date.today().isoformat(),
        "commit": commit.strip(),
        "mutants": seen,
    }


def told(judged: Judged) -> str:
    """A line a mutant."""
    return (
        f"{judged.word:12} {judged.group:16} {judged.file}:{judged.line} {judged.seconds:.0f} s, {judged.tests} tests: "
        f"{judged.after[:90]}  [{judged.metric}{' ' if judged.metric else ''}{judged.says[:80]}]"
    )


if __name__ == "__main__":
    sys.exit(main())
