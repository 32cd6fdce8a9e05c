"""`scripts/guard` again and again in a fresh clone while other processes keep the processors busy.

    python -m benchmarks.loaded_guard --runs 20                    # nothing changed: no run may be red
    python -m benchmarks.loaded_guard --runs 20 --plant 1.3        # one function takes 30 % longer: runs should be red

The clone is of HEAD; it sets up its own environment, as a newcomer's does. What is planted spins for a share of the
function's own processor time and dispatches no operator more, so that times alone can tell. Prints a line a run and a
summary; `--json` keeps both. Arguments behind `--` go to scripts/guard, e.g. `-- -k quantize_rowwise`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.checkouts import ROOT, copied, git
from benchmarks.rows import write_rows

BUSY = [sys.executable, "-c", "while True: pass"]
FILE = "kernels/fp8/ops.py"
CALL = "        codes, scales = reference.quantize_rowwise(x, dtype=dtype, power_of_two=power_of_two)\n"
SLOWED = """\
        import time
        started = time.thread_time()
{call}        until = time.thread_time() + {share} * (time.thread_time() - started)
        while time.thread_time() < until:
            pass
"""
RED = (1, 10, 11)


@dataclass(frozen=True)
class Ran:
    """One run: its exit status, how long it took, lines of perfguard's summary, and the verdicts that it counts."""

    status: int
    seconds: float
    lines: int
    words: dict[str, int]

    def __str__(self) -> str:
        words = ", ".join(f"{count} {word}" for word, count in self.words.items())
        return f"status {self.status}, {self.seconds:.0f} s, {self.lines} lines: {words}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=4, help="processes that keep the processors busy")
    parser.add_argument("--plant", type=float, default=1.0, help="how many times as long one function takes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENTS", help="of scripts/guard")
    options = parser.parse_args()
    runs: list[Ran] = []
    commit = git(ROOT, "rev-parse", "HEAD")
    with tempfile.TemporaryDirectory(prefix="loaded-guard-") as folder:
        clone = copied(Path(folder, "clone"))
        if options.plant > 1:
            plant(clone / FILE, options.plant - 1)
        burners = [subprocess.Popen(BUSY) for _ in range(options.busy)]
        try:
            for number in range(1, options.runs + 1):
                runs.append(run(number, clone, options.arguments))
                if options.json:  # after each: an interrupted benchmark keeps what it saw
                    write_rows(options.json, found(runs, commit))
        finally:
            for burner in burners:
                burner.kill()
    red = sum(each.status in RED for each in runs)
    slower = sum(bool(each.words.get("SLOWER")) for each in runs)
    seconds = sorted(each.seconds for each in runs)
    print(f"{red} of {len(runs)} red, {slower} with SLOWER; {seconds[len(seconds) // 2]:.0f} s in the middle, "
          f"{seconds[-1]:.0f} s at most; {max(each.lines for each in runs)} lines at most")  # fmt: skip
    return 0


def found(runs: list[Ran], commit: str) -> dict[str, object]:
    """What `--json` keeps, of the commit that was cloned."""
    return {
        "command": " ".join(["python -m benchmarks.loaded_guard", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "processor": platform.processor() or platform.machine(),
        "runs": [asdict(each) for each in runs],
    }


def plant(path: Path, share: float) -> None:
    """Make the function take `share` longer, in processor time alone."""
    source = path.read_text(encoding="utf-8")
    if source.count(CALL) != 1:
        raise SystemExit(f"{path}: the line to slow down is not there once; mend benchmarks/loaded_guard.py")
    path.write_text(source.replace(CALL, SLOWED.format(call=CALL, share=share)), encoding="utf-8")


def run(number: int, clone: Path, arguments: list[str]) -> Ran:
    """`scripts/guard` once; its output is printed where it failed for a reason of its own."""
    started = time.monotonic()
    done = subprocess.run(["scripts/guard", *arguments], cwd=clone, capture_output=True, text=True, check=False)
    told = re.search(r"^=+ perfguard: .*?\n(.*?)^report: ", done.stdout, re.MULTILINE | re.DOTALL)
    ran = Ran(
        done.returncode,
        round(time.monotonic() - started, 1),
        len(told[1].splitlines()) + 1 if told else 0,  # with the report's own line
        words(clone),
    )
    print(f"run {number}: {ran}", flush=True)
    if done.returncode not in (0, *RED):
        print(done.stdout[-4000:], done.stderr[-4000:], flush=True)
    return ran


def words(clone: Path) -> dict[str, int]:
    """How many cases the report says each word of."""
    counts: dict[str, int] = {}
    for path in (clone / ".perfguard").glob("report-*.json"):
        for result in json.loads(path.read_text(encoding="utf-8"))["results"]:
            for word in {verdict["word"] for verdict in result.get("verdicts", [])}:
                counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
