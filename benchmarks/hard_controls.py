"""Hard inputs on clean code: our guarded suites, with the order of derived inputs turned again and again. None may be
accused.

    python -m benchmarks.hard_controls --rotations 10 --json FILE [-- PYTEST ARGUMENTS]

Prints a line for each accused case, and at last how many inputs were compared and what they cost beside the check.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.checkouts import ROOT, git
from benchmarks.rows import write_rows

NUMBER, WRITTEN = "PERFGUARD_ROTATIONS", "PERFGUARD_ROTATED"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rotations", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "arguments", nargs="*", metavar="-- ARGUMENTS", help="of pytest, in place of all guarded suites"
    )
    given = parser.parse_args()
    suites = given.arguments or sorted(map(str, (ROOT / "tests" / "kernels").glob("*_guarded.py")))
    with tempfile.TemporaryDirectory(prefix="hard-controls-") as folder:
        written = Path(folder, "seen")
        environment = {**os.environ, NUMBER: str(given.rotations), WRITTEN: str(written)}
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", __name__, *suites]
        if __name__ == "__main__":
            line[line.index(__name__)] = "benchmarks.hard_controls"
        status = subprocess.run(line, cwd=ROOT, env=environment, check=False).returncode
        seen = [json.loads(each) for each in written.read_text(encoding="utf-8").splitlines()]
    accused = [each for each in seen if each["problem"]]
    for each in accused:
        print(f"{each['test']}, rotation {each['rotation']}: {each['problem']}")
    tests = len({each["test"] for each in seen})
    hard, check = (sum(each[name] for each in seen) for name in ("seconds", "check_seconds"))
    print(f"{len(accused)} of {len(seen)} accused ({tests} tests, {given.rotations} rotations); "
          f"{sum(each['ran'] for each in seen)} inputs compared, {sum(each['left_out'] for each in seen)} left out; "
          f"{hard / max(check, 1e-3):.2f} times the check's processor time")  # fmt: skip
    if given.json:
        write_rows(given.json, found(seen))
    return status or bool(accused)


def found(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """What `--json` keeps."""
    return {
        "command": " ".join(["python -m benchmarks.hard_controls", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": git(ROOT, "rev-parse", "HEAD"),
        "processor": platform.processor() or platform.machine(),
        "calls": seen,
    }


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Every call's derived inputs in as many orders as are asked for, each within its own budget."""
    from perfguard.check.hard_inputs import search

    once = search.run_hard

    def run(
        call: Any, seconds: float, rotation: int = 0, kept: Any = None, *, check_seconds: float, **given: Any
    ) -> search.HardResult:
        for turn in range(int(os.environ[NUMBER])):
            began = time.thread_time()
            result = once(call, seconds, rotation + turn, kept, check_seconds=check_seconds, **given)
            seen = {
                "test": os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0],
                "rotation": turn,
                "ran": result.ran.total(),
                "left_out": sum(result.left_out.values()),
                "waiting": sum(result.waiting.values()),
                "seconds": round(time.thread_time() - began, 3),
                "check_seconds": round(check_seconds, 3),
                "problem": result.problem,
            }
            with open(os.environ[WRITTEN], "a", encoding="utf-8") as file:
                file.write(json.dumps(seen) + "\n")
        return search.HardResult()

    search.run_hard = run


if __name__ == "__main__":
    sys.exit(main())
