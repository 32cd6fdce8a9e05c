"""What a run of 200 cases costs on the simulated device: seconds of `pytest --perfguard` where 0, 5 or 50 kernels have
other code that is as fast as before.

    python -m benchmarks.run_cost [--perfguard /path/to/another/checkout] [--startup 8] [--boards same other]

Every process sleeps `--startup` seconds when it starts, as one that imports torch and makes a CUDA context takes; the
simulated device itself takes no time. The record holds five sessions. On the board of the record it screens what
changed; on another board process pairs measure all of it. `--perfguard` runs another version of perfguard on the same
project, which records anew with it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CASES = 200
CONFTEST = """
import os
import time

from perfguard.measure.devices import fake

time.sleep(float(os.environ["STARTUP"]))
fake.FakeDevice.board = os.environ["BOARD"]
"""
TEST = """
import pytest
import torch
from perfguard.measure.devices import fake

CHANGED = {changed}


def double(x, n):
    fake.launch("double", us=20.0 + n % 40, binary=f"code {{n}}, version {{2 if n < CHANGED else 1}}")
    return 2 * x


@pytest.mark.parametrize("n", range({cases}))
def test_double(perfguard, n):
    perfguard(lambda x: double(x, n), torch.ones(8), reference=lambda x: 2 * x)
"""
SETTINGS = """
[tool.pytest.ini_options]
addopts = "-q -p no:cacheprovider"
[tool.perfguard]
device = "fake"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--perfguard", type=Path, default=ROOT, help="checkout of the perfguard to run")
    parser.add_argument("--startup", type=float, default=8.0, help="seconds that every process takes to start")
    parser.add_argument("--changed", type=int, nargs="*", default=[0, 5, 50])
    parser.add_argument("--boards", nargs="*", default=["same", "other"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="run-cost-") as name:
        folder = Path(name)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "pyproject.toml").write_text(SETTINGS)
        (folder / ".gitignore").write_text(".perfguard/\n__pycache__/\n")
        (folder / "test_cost.py").write_text(TEST.format(changed=0, cases=CASES))
        guard(folder, options, "same", "--perfguard-update=new")
        git(folder, "init", "--quiet")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "-m", "recorded")
        for board in options.boards:
            for changed in options.changed:
                (folder / "test_cost.py").write_text(TEST.format(changed=changed, cases=CASES))
                seconds, words = guard(folder, options, board)
                print(f"{board} board, {changed} of {CASES} changed: {seconds:.0f} s; {words}", flush=True)
                found.append({"board": board, "changed": changed, "seconds": round(seconds, 1), "words": words})
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def guard(folder: Path, options: argparse.Namespace, board: str, *arguments: str) -> tuple[float, dict[str, int]]:
    """Seconds of one run, and how many times were judged with which word."""
    environment = os.environ | {
        "PYTHONPATH": str(options.perfguard.resolve()), "STARTUP": str(options.startup), "BOARD": board,
    }  # fmt: skip
    started = time.monotonic()
    line = [sys.executable, "-m", "pytest", "--perfguard", *arguments]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:])
    words: dict[str, int] = {}
    for result in json.loads((folder / ".perfguard" / "report-fake-gpu.json").read_text())["results"]:
        for verdict in result["verdicts"]:
            if verdict["metric"] == "device_time_us":
                words[verdict["word"]] = words.get(verdict["word"], 0) + 1
    return seconds, words


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    sys.exit(main())
