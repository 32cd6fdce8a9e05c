"""All GPUs of a host: records blocks over all of them together, then the suites, one GPU each.

    python -m benchmarks.all_gpus --out DIR [--only STEP …]

Each step runs in a clone of the last commit: `fleet`, and the suites by name. As soon as it is done DIR/baselines gets
what it recorded, to be taken over by `cp -r DIR/baselines .`; DIR/<step> gets its report and what it printed. Where
pytest does not find the suites, this ends at once. perfguard need not be installed, only what it needs.
"""

from __future__ import annotations

import argparse
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.checkouts import RECORDING, ROOT, copied, git, guard
from benchmarks.fleet import CASES
from benchmarks.pairs.__main__ import SUITES, file_of

FLEET = "fleet"
STEPS = (FLEET, *reversed(SUITES))  # compiled blocks, which take longest, first


@dataclass(frozen=True)
class Host:
    """`clones`: where each step gets a checkout of `source`, and its caches. `device`: of the suites."""

    source: Path
    clones: Path
    out: Path
    device: str
    started: float

    def found(self, suites: Sequence[str]) -> bool:
        """Whether pytest finds them, which takes seconds."""
        return self.step("found", lambda checkout, out: collect(checkout, out, suites)) == 0

    def fleet(self, ranks: int) -> int:
        return self.step(FLEET, lambda checkout, out: blocks(checkout, out, ranks))

    def suite(self, name: str, gpu: int) -> int:
        """On one GPU, with caches of its own: how warm they are is not to depend on what runs beside it."""
        folders = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        variables = {each: str(self.clones / "caches" / name / folder) for each, folder in folders.items()}
        arguments = (f"--perfguard-device={self.device}", *RECORDING, file_of(name))

        def record(checkout: Path, out: Path) -> int:
            return guard(checkout, out, *arguments, CUDA_VISIBLE_DEVICES=str(gpu), **variables).status

        return self.step(name, record)

    def step(self, name: str, run: Callable[[Path, Path], int]) -> int:
        """Run it in a checkout of its own, and keep what it recorded of this hardware. Its status."""
        checkout, out = copied(self.clones / name, self.source), self.out / name
        out.mkdir(parents=True, exist_ok=True)
        status = run(checkout, out)
        changed = git(checkout, "ls-files", "-z", "--modified", "--others", "baselines", ":!baselines/cpu")
        for file in filter(None, changed.split("\0")):
            kept = self.out / file
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkout / file, kept)
        print(f"{time.monotonic() - self.started:.0f} s: {name} ended with status {status}", flush=True)
        return status


def collect(checkout: Path, out: Path, suites: Sequence[str]) -> int:
    ran = guard(checkout, out, "--collect-only", *map(file_of, suites))
    if ran.status:
        print((out / "output.txt").read_text(encoding="utf-8")[-3000:])
    return ran.status


def blocks(checkout: Path, out: Path, ranks: int) -> int:
    line = [sys.executable, "-m", "benchmarks.fleet", "--ranks", str(ranks), "--out", str(out)]
    with (out / "output.txt").open("w", encoding="utf-8") as output:
        return subprocess.run(line, cwd=checkout, check=False, stdout=output, stderr=subprocess.STDOUT).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".perfguard" / "all_gpus", metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=STEPS, metavar="STEP")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose suites are run (default: this one's)")
    options = parser.parse_args()
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"--out: {options.out} is no folder")
    gpus = max(1, torch.cuda.device_count())
    suites = [name for name in STEPS if name in options.only and name != FLEET]
    with tempfile.TemporaryDirectory(prefix="all-gpus-") as folder:
        host = Host(options.checkout.resolve(), Path(folder), options.out.resolve(), options.device, time.monotonic())
        if suites and not host.found(suites):
            return 1
        ranks = max((count for count in CASES if count <= gpus), default=0)
        statuses = [host.fleet(ranks)] if ranks and FLEET in options.only else []
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for gpu in range(gpus):
            free.put(gpu)

        def record(name: str) -> int:
            gpu = free.get()
            try:
                return host.suite(name, gpu)
            finally:
                free.put(gpu)

        with ThreadPoolExecutor(gpus) as workers:
            statuses += workers.map(record, suites)
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
