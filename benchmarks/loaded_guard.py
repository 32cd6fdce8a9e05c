"""`pytest --perfguard` of changed code again and again, while other processes keep the processors busy.

    python -m benchmarks.loaded_guard --runs 20                # other code, as fast: no run may be red
    python -m benchmarks.loaded_guard --runs 10 --plant 1.15   # six functions take 15 % longer: all runs should be red
    python -m benchmarks.loaded_guard --runs 5 --suite         # scripts/guard's suite in a clone of HEAD, unchanged

The first two guard a project of six small functions, recorded on this machine before it is busy; the working tree then
holds other code of all six, so each time is read in process pairs. What is planted spins for a share of the function's
own processor time and dispatches no operator more: only times show it. Prints a line for each run and a summary;
`--json` keeps both. `taskset -c 0,1` leaves it, and what keeps it busy, two cores. Arguments behind `--` go to pytest.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.checkouts import ROOT, commit, copied, git, import_path
from benchmarks.rows import write_rows
from perfguard.session.child import own_packages

BUSY = [sys.executable, "-c", "while True: pass"]
SUITE = "tests/kernels/test_quantize_guarded.py"
# The six functions take 10 to 100 µs on a processor of 2026: a call's own overhead is a part of all of them.
FUNCTIONS = """
import time

import torch
import torch.nn.functional as F

SHARE = {share}


def spun(function):
    def run(x):
        started = time.thread_time()
        result = function(x)
        until = time.thread_time() + SHARE * (time.thread_time() - started)
        while time.thread_time() < until:
            pass
        return result

    return run if SHARE else function


softmax = spun(lambda x: (x - x.logsumexp(-1, keepdim=True)).exp())
rms_norm = spun(lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))
silu_mul = spun(lambda x: F.silu(x[:, ::2]) * x[:, 1::2])
gelu = spun(lambda x: F.gelu(x, approximate="tanh"))
rotate = spun(lambda x: torch.cat((-x[:, 128:], x[:, :128]), -1))
scale_rows = spun(lambda x: x / x.abs().amax(-1, keepdim=True).clamp(min=1e-12))
"""
TESTS = """
import functions
import pytest
import torch
import torch.nn.functional as F

REFERENCES = {
    "softmax": lambda x: torch.softmax(x, -1),
    "rms_norm": lambda x: F.rms_norm(x, (256,), eps=1e-6),
    "silu_mul": lambda x: F.silu(x[:, ::2]) * x[:, 1::2],
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "rotate": lambda x: torch.cat((-x[:, 128:], x[:, :128]), -1),
    "scale_rows": lambda x: x / x.abs().amax(-1, keepdim=True).clamp(min=1e-12),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_function(perfguard, name):
    x = torch.randn(64, 256, device=perfguard.device)
    perfguard(lambda x: getattr(functions, name)(x), x, reference=REFERENCES[name])
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
    parser.add_argument("--plant", type=float, default=1.0, help="how many times as long the six functions take")
    parser.add_argument("--suite", action="store_true", help=f"run {SUITE} of this repository, unchanged")
    parser.add_argument("--json", type=Path)
    parser.add_argument("arguments", nargs="*", metavar="-- ARGUMENTS", help="of pytest")
    options = parser.parse_args()
    runs: list[Ran] = []
    head = git(ROOT, "rev-parse", "HEAD")
    with tempfile.TemporaryDirectory(prefix="loaded-guard-") as name:
        clone = copied(Path(name, "clone"))
        folder, arguments = clone, [SUITE, *options.arguments]
        if not options.suite:
            folder, arguments = changed_project(Path(name, "six"), clone, options.plant - 1), options.arguments
        burners = [subprocess.Popen(BUSY) for _ in range(options.busy)]
        try:
            for number in range(1, options.runs + 1):
                runs.append(run(number, folder, clone, arguments))
                if options.json:  # after each: an interrupted benchmark keeps what it saw
                    write_rows(options.json, found(runs, head))
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


def changed_project(folder: Path, clone: Path, share: float) -> Path:
    """A repository of the six functions, recorded and committed, whose working tree holds other code of all of them,
    which takes `share` longer."""
    folder.mkdir()
    (folder / ".gitignore").write_text(".perfguard/\n__pycache__/\n.pytest_cache/\n", encoding="utf-8")
    (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n', encoding="utf-8")
    (folder / "test_functions.py").write_text(TESTS, encoding="utf-8")
    (folder / "functions.py").write_text(FUNCTIONS.format(share=0), encoding="utf-8")
    commit(folder)
    recorded = pytest(folder, clone, ["--perfguard-update=new"])
    if recorded.returncode != 0:
        raise SystemExit(f"recording the six functions failed:\n{recorded.stdout[-4000:]}{recorded.stderr[-4000:]}")
    commit(folder)
    other = FUNCTIONS.replace("    def run(x):", "    unused = 1\n\n    def run(x):")
    (folder / "functions.py").write_text(other.format(share=round(share, 4)), encoding="utf-8")
    return folder


def pytest(folder: Path, clone: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """`pytest --perfguard` in `folder`, with the perfguard of `clone`."""
    line = [sys.executable, "-m", "pytest", *own_packages().plugin, "--perfguard", *arguments]
    return subprocess.run(
        line, cwd=folder, env={**os.environ, "PYTHONPATH": import_path(clone)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def run(number: int, folder: Path, clone: Path, arguments: list[str]) -> Ran:
    """One run; its output is printed where it failed for a reason of its own."""
    started = time.monotonic()
    done = pytest(folder, clone, arguments)
    told = re.search(r"^=+ perfguard: .*?\n(.*?)^report: ", done.stdout, re.MULTILINE | re.DOTALL)
    ran = Ran(
        done.returncode,
        round(time.monotonic() - started, 1),
        len(told[1].splitlines()) + 1 if told else 0,  # with the report's own line
        words(folder),
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
