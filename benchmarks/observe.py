"""Observes and guards foreign suites: recorded, run again in other orders, with changes planted, and the price.

    python -m benchmarks.observe {einops,liger,fla,conch} FOLDER [--json FILE]
    python -m benchmarks.observe operators                        what observing one small operator costs

Copies FOLDER (sources of einops 0.8.2, Liger 0.8.5, fla-core 0.6.0, which needs einops by --path, or of
conch-triton-kernels 1.3), makes the copy a git repository, and runs pytest there. `--path DIR` adds a folder to
PYTHONPATH. Without a GPU set TRITON_INTERPRET=1, for runs without perfguard. `--json` replaces the suite's row in FILE.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.checkouts import ROOT, commit, git, import_path
from benchmarks.planting import Listed, listed, planted_in
from benchmarks.rows import write_rows

_FOREIGN = Path(__file__).with_name("foreign")
PLANTS = _FOREIGN / "plants.toml"
_QUIET_RUNS = 3  # the last of them in two processes, where the tests need no GPU
_CALLS, _ROUNDS = 5000, 9  # of one operator
OBSERVE = ["--perfguard", "--perfguard-observe"]


@dataclass(frozen=True)
class Suite:
    """A foreign suite.

    Attributes:
        name: with its version, as a table has it.
        tests: its test files, or patterns of them.
        variables: of its environment.
        targets: architectures that its Triton kernels are compiled for.
        deselected: tests that fail by themselves on a machine without a GPU.
        ours: files of `benchmarks/foreign` that are put beside the library: tests in its style where it publishes none,
            and guarded calls.
        chosen: pytest's expression (`-k`) of the tests that run.
    """

    name: str
    tests: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    deselected: list[str] = field(default_factory=list)
    ours: list[str] = field(default_factory=list)
    chosen: str = ""


@dataclass(frozen=True)
class Run:
    """One run of pytest: its exit status, what it printed, seconds of the processor and of the clock."""

    status: int
    output: str
    processor: float
    wall: float

    @property
    def kept(self) -> dict[str, object]:
        return {"status": self.status, "processor": round(self.processor, 1), "wall": round(self.wall, 1)}


SUITES = {
    "einops": Suite(
        name="einops 0.8.2",
        tests=["einops/tests/test_*.py"],
        variables={"EINOPS_TEST_BACKENDS": "numpy,torch"},
    ),
    # Its tests take a GPU where there is one, and Triton's interpreter if TRITON_INTERPRET is set.
    "liger": Suite(
        name="Liger 0.8.5, 2 files",
        tests=[f"test/transformers/test_{name}.py" for name in ("relu_squared", "softmax")],
        variables={"PYTHONPATH": "src"},
        targets=["sm_90", "gfx942"],
    ),
    "fla": Suite(
        name="fla-core 0.6.0",
        tests=["test_foreign.py", "test_interpreted.py"],
        ours=["test_foreign.py", "test_interpreted.py"],
        chosen="test_foreign and fla or fla_swiglu or fla_l2norm",
        targets=["sm_90", "gfx942"],
    ),
    "conch": Suite(
        name="conch 1.3, 4 files",
        tests=[f"tests/{name}_test.py" for name in ("rms_norm", "silu_and_mul", "int8_quant_kernels")]
        + ["test_interpreted.py"],
        ours=["test_interpreted.py"],
        chosen="rms_norm and 80-855-dtype1 or silu and 20-4-855-dtype1 or int8 and dtype1-67-7 or conch_silu",
        targets=["sm_90", "gfx942"],
    ),
}  # fmt: skip


class Checkout:
    """A copy of a suite in a repository of its own, which is made unless `folder` is one."""

    def __init__(self, suite: Suite, folder: Path, paths: list[Path]) -> None:
        self.suite, self.folder = suite, folder
        own = suite.variables.get("PYTHONPATH", ".")
        bin_ = str(Path(sys.executable).parent)
        self._environment = {
            **os.environ, "OMP_NUM_THREADS": "1", **suite.variables, "PYTHONPATH": import_path(own, *paths, _FOREIGN),
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        if (folder / ".git").exists():
            return
        for name in suite.ours:
            shutil.copy(_FOREIGN / name, folder)
        pyproject = folder / "pyproject.toml"
        settings = f"targets = {json.dumps(suite.targets)}\npair_minutes = 0\n"  # names and price, no times
        pyproject.write_text(f"{pyproject.read_text()}\n[tool.perfguard]\n{settings}")
        commit(folder)

    def pytest(self, *options: str, seed: int | None = None) -> Run:
        """Run the suite's files. `seed` draws the order of all tests, and is Python's hash seed."""
        files = sorted(
            str(path.relative_to(self.folder)) for each in self.suite.tests for path in self.folder.glob(each)
        )
        left_out = [f"--deselect={each}" for each in self.suite.deselected]
        chosen = ["-k", self.suite.chosen] if self.suite.chosen else []
        order = [] if seed is None else ["-p", "order"]
        before, began = _seconds(), time.monotonic()
        done = self.run(
            *left_out, *chosen, *order, *options, *files,
            variables={} if seed is None else {"PYTHONHASHSEED": str(seed)},
        )  # fmt: skip
        return Run(done.returncode, done.stdout + done.stderr, _seconds() - before, time.monotonic() - began)

    def run(
        self, *arguments: str, variables: dict[str, str], limit: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest, at most `limit` seconds.

        Raises:
            subprocess.TimeoutExpired: it took longer.
        """
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=self.folder, env={**self._environment, **variables}, capture_output=True, text=True, errors="replace",
            timeout=limit,
        )  # fmt: skip


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suite", choices=[*SUITES, "operators"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--path", action="append", type=Path, default=[], help="folder for PYTHONPATH")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3, help="runs with and without observation, by turns")
    given = parser.parse_args()
    if given.suite == "operators":
        print_operators()
        return
    if given.folder is None:
        parser.error("name the folder of the suite")
    suite = SUITES[given.suite]
    with tempfile.TemporaryDirectory(prefix="perfguard-observe-") as name:
        folder = Path(name) / given.suite
        shutil.copytree(given.folder, folder, ignore=shutil.ignore_patterns(".git", "baselines", ".perfguard"))
        found = measure(Checkout(suite, folder, [each.resolve() for each in given.path]), suite, given.rounds)
    if given.json:
        data = json.loads(given.json.read_bytes()) if given.json.exists() else {"suites": []}
        others = [each for each in data["suites"] if (each["name"], each["on"]) != (found["name"], found["on"])]
        write_rows(given.json, {**data, "suites": [*others, found]})


def measure(checkout: Checkout, suite: Suite, rounds: int) -> dict[str, object]:
    """Record, run quietly, plant, and measure the price."""
    import torch
    import triton

    alone = torch.cuda.is_available()  # one process, since there is one GPU
    commit = git(ROOT, "rev-parse", "HEAD")
    on = torch.cuda.get_device_name() if alone else "CPU, interpreter" if suite.targets else "CPU"
    observe = [*OBSERVE, *([] if alone else ["--perfguard-lane=cpu"])]
    runs_alone = not checkout.pytest().status  # Caches of compilers are filled, too.
    plain, observed = [], []
    for _ in range(rounds):
        plain += [round(checkout.pytest().processor, 1)] if runs_alone else []
        observed.append(round(checkout.pytest(*observe).processor, 1))
    print(f"processor seconds, by turns: {plain or 'it does not run'} alone, {observed} observed", flush=True)
    run = checkout.pytest(*observe, "--perfguard-update=all", "--perfguard-dirty")
    counted = re.findall(r"(\d+) NEW", run.output)
    unstable = re.findall(r"update: (\d+ facts? of .*?), not the same", run.output)
    recorded = {**run.kept, "unstable": unstable}
    print(f"recorded: {recorded}, {counted} cases", flush=True)
    git(checkout.folder, "add", "baselines")
    git(checkout.folder, "commit", "--quiet", "-m", "baselines")
    quiet = []
    for seed in range(1, _QUIET_RUNS + 1):
        workers = ["-n", "2"] if seed == _QUIET_RUNS and not alone else []
        run = checkout.pytest(*observe, *workers, seed=seed)
        (counts,) = re.findall(r"^(\d+ [A-Z]+.*?);", run.output, re.MULTILINE)[:1] or ["?"]
        quiet.append({"seed": seed, "processes": 2 if workers else 1, "verdicts": counts, **run.kept})
        print(quiet[-1], flush=True)
        if run.status:
            print(run.output, flush=True)
    plants = [each for each in listed(PLANTS) if suite is SUITES[each.owed["suite"]]]
    changes = [planted(checkout, observe, each) for each in plants]
    return {
        "name": suite.name, "on": on, "torch": torch.__version__, "triton": triton.__version__,
        "date": datetime.date.today().isoformat(), "commit": commit,
        "plain": plain, "observed": observed, "tests": int(counted[0]) if counted else 0,
        "recorded": recorded, "quiet": quiet, "planted": changes,
    }  # fmt: skip


def planted(checkout: Checkout, observe: list[str], change: Listed) -> dict[str, object]:
    """Plant a change, run, take it back; what was found of it."""
    with planted_in(checkout.folder, change.edit):
        run = checkout.pytest(*observe)
    head = _finding(change.owed, run.output)
    found = {"change": change.what, "named": bool(head), "finding": head, **run.kept}
    print(found, flush=True)
    if not head:
        print(run.output, flush=True)
    return found


def print_operators() -> None:
    """Print the processor time of an addition, which makes a tensor, and of a view: alone, in a mode that does nothing,
    and observed."""
    import torch

    from perfguard._compat.torch_utils import DispatchMode
    from perfguard.measure.devices.observation import observed

    class Idle(DispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def microseconds(call: Callable[[torch.Tensor], object], mode: AbstractContextManager[object]) -> float:
        with torch.no_grad(), mode:
            given = torch.ones(4, 4)
            began = time.process_time()
            for _ in range(_CALLS):
                call(given)
            return 1e6 * (time.process_time() - began) / _CALLS

    torch.set_num_threads(1)
    modes: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "alone": nullcontext,
        "in a mode": Idle,
        "observed": lambda: observed("cpu"),
    }
    calls: dict[str, Callable[[torch.Tensor], object]] = {"addition": lambda x: x + x, "view": lambda x: x.view(16)}
    for name, call in calls.items():
        rounds = [[microseconds(call, mode()) for mode in modes.values()] for _ in range(_ROUNDS)]
        least = zip(modes, map(min, zip(*rounds, strict=True)), strict=True)
        print(f"{name}, µs: " + ", ".join(f"{took:.1f} {mode}" for mode, took in least))


def _finding(owed: Mapping[str, Any], output: str) -> str:
    """The first line that names the change, with the one below it that has the metric; empty if none does."""
    if "metric" not in owed:
        said = [line for line in output.splitlines() if line.startswith(("WRONG ", "FAILED ")) and owed["said"] in line]
        return min(said, key=lambda line: not line.startswith("WRONG "), default="")
    for block in output.split("CHANGED  ")[1:]:
        head, *rest = block.splitlines()
        named = next((line.strip() for line in [head, *rest] if owed["metric"] in line), "")
        if head.startswith(owed["said"]) and named:
            return head if named in head else f"{head}; {named}"
    return ""


if __name__ == "__main__":
    main()
