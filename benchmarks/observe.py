"""Observes foreign test suites, unedited: recorded, run again in other orders, with changes planted, and its price.

    python -m benchmarks.observe einops FOLDER [--json FILE]      FOLDER: einops 0.8.2 as its source distribution has it
    python -m benchmarks.observe liger FOLDER [--json FILE]       Liger 0.8.5 (without a GPU: TRITON_INTERPRET=1)
    python -m benchmarks.observe operators                        what observing one small operator costs

It copies FOLDER, makes the copy a git repository, and runs pytest there. `--path DIR` adds a folder to PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.checkouts import import_path
from benchmarks.rows import write_rows

_QUIET_RUNS = 3
_CALLS, _ROUNDS = 5000, 9  # of one operator
OBSERVE = ["--perfguard", "--perfguard-observe"]


@dataclass(frozen=True)
class Planted:
    """A change of the library: line `at` of `file` becomes `code`; a finding that begins with `said` has to name
    `metric`. An empty `said`: a test of the suite fails by itself."""

    name: str
    file: str
    at: int
    code: str
    said: str
    metric: str = ""


@dataclass(frozen=True)
class Suite:
    """A foreign suite.

    Attributes:
        tests: its test files, or patterns of them.
        variables: of its environment.
        targets: architectures that its Triton kernels are compiled for.
        deselected: tests that fail by themselves on a machine without a GPU.
    """

    tests: list[str]
    planted: list[Planted]
    variables: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=list)
    deselected: list[str] = field(default_factory=list)


_BACKENDS, _LAYERS = "einops/_backends.py", "einops/layers/torch.py"
_RELU = "src/liger_kernel/ops/relu_squared.py"
SUITES = {
    "einops": Suite(
        tests=["einops/tests/test_*.py"],
        variables={"EINOPS_TEST_BACKENDS": "numpy,torch"},
        planted=[
            Planted(
                "copy", _BACKENDS, 261, "        return x.permute(axes).contiguous()",
                "einops/_backends.py:261 in transpose", "copies",
            ),
            Planted(
                "saved tensor", _BACKENDS, 251,
                "            return (x * self.torch.ones_like(x)).mean(dim=reduced_axes)",
                "einops/_backends.py:251 in reduce", "saved_bytes",
            ),
            Planted(
                "host read", _BACKENDS, 264,
                "        return self.torch.stack([each for each in tensors if bool((each == each).sum() >= 0)])",
                "einops/_backends.py:264 in ", "host_reads",
            ),
            Planted("graph break", _LAYERS, 25,
                "        torch._dynamo.graph_break()\n        recipe = self._multirecipe[input.ndim]", "",
            ),
            Planted(
                "recompilation", _LAYERS, 25,
                "        self.calls = getattr(self, 'calls', 0) + 1\n        recipe = self._multirecipe[input.ndim]",
                "external_utils.inner: ", "recompiles",
            ),
            Planted(
                "leak", _BACKENDS, 277,
                "        self.last = self.torch.cat(tensors, dim=axis)\n        return self.last",
                "einops/_backends.py:277 in concat", "residue_bytes",
            ),
        ],
    ),
    # Its tests take a GPU where there is one, and Triton's interpreter if TRITON_INTERPRET is set.
    "liger": Suite(
        tests=[f"test/transformers/test_{name}.py" for name in ("relu_squared", "softmax")],
        variables={"PYTHONPATH": "src"},
        targets=["sm_90", "gfx942"],
        planted=[
            Planted("copy", _RELU, 90, "    dX = dY_2d.clone()", f"{_RELU}:90 in ", "copies"),
            Planted(
                "saved tensor", _RELU, 112, "        ctx.doubled = X * 2\n        ctx.save_for_backward(X)",
                f"{_RELU}:112 in forward", "saved_bytes",
            ),
            Planted(
                "host read", _RELU, 66, "    n_rows = X_2d.shape[0] if X_2d.sum().item() < 1e30 else 0",
                f"{_RELU}:66 in ", "host_reads",
            ),
            Planted(
                "float64", _RELU, 56, "    relu_x = tl.maximum((x_row.to(tl.float64) * 1.0000001).to(x_row.dtype), 0)",
                "_relu_squared_backward_kernel", "fp64",
            ),
            Planted(
                "launch", _RELU, 119, "        dX = relu_squared_backward(X, relu_squared_backward(X, dY) * 0 + dY)",
                "_relu_squared_backward_kernel", "launches",
            ),
            Planted(
                "leak", _RELU, 104, "    relu_squared_backward.last = dX\n    return dX.view(*ori_shape)",
                f"{_RELU}:90 in ", "residue_bytes",
            ),
        ],
    ),
}  # fmt: skip


class Checkout:
    """A copy of a suite in a repository of its own, which is made unless `folder` is one."""

    def __init__(self, suite: Suite, folder: Path, paths: list[str]) -> None:
        self.suite, self.folder = suite, folder
        own = suite.variables.get("PYTHONPATH", ".")
        bin_ = str(Path(sys.executable).parent)
        self._environment = {
            **os.environ, "OMP_NUM_THREADS": "1", **suite.variables, "PYTHONPATH": import_path(own, *paths),
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        if (folder / ".git").exists():
            return
        pyproject = folder / "pyproject.toml"
        settings = f"targets = {json.dumps(suite.targets)}\npair_minutes = 0\n"  # names and price, no times
        pyproject.write_text(f"{pyproject.read_text()}\n[tool.perfguard]\n{settings}")
        for line in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "as it is"]):
            who = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
            subprocess.run(["git", *who, *line], cwd=folder, check=True)

    def pytest(self, *options: str, seed: int | None = None) -> tuple[int, str, float]:
        """Run the suite's files; exit status, output, processor seconds. `seed` draws their order and Python's hash
        seed."""
        files = sorted(
            str(path.relative_to(self.folder)) for each in self.suite.tests for path in self.folder.glob(each)
        )
        variables = {}
        if seed is not None:
            random.Random(seed).shuffle(files)
            variables["PYTHONHASHSEED"] = str(seed)
        left_out = [f"--deselect={each}" for each in self.suite.deselected]
        before = _seconds()
        done = self.run(*left_out, *options, *files, variables=variables)
        return done.returncode, done.stdout + done.stderr, _seconds() - before

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

    def planted(self, change: Planted) -> str:
        """Make the change; returns the file's text before."""
        path = self.folder / change.file
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        lines[change.at - 1] = f"{change.code}\n"
        path.write_text("".join(lines))
        return text


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suite", choices=[*SUITES, "operators"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--path", action="append", default=[], help="folder for PYTHONPATH")
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
        found = measure(Checkout(suite, folder, given.path), suite, given.rounds)
    if given.json:
        write_rows(given.json, found)


def measure(checkout: Checkout, suite: Suite, rounds: int) -> dict[str, object]:
    """Record, run quietly, plant, and measure the price."""
    checkout.pytest()  # compilers' caches
    plain, observed = [], []
    for _ in range(rounds):
        plain.append(checkout.pytest()[2])
        observed.append(checkout.pytest(*OBSERVE)[2])
    price = statistics.median(two / one for one, two in zip(plain, observed, strict=True))
    print(
        f"processor seconds, by turns: {_told(plain)} plain, {_told(observed)} observed; ratio {price:.2f}", flush=True
    )
    status, output, _ = checkout.pytest(*OBSERVE, "--perfguard-update=all", "--perfguard-dirty")
    recorded = re.findall(r"(\d+) NEW", output)
    unstable = re.findall(r"update: (\d+ facts? of .*?), not the same", output)
    print(f"recorded: status {status}, {recorded} tests, unstable: {unstable}", flush=True)
    quiet = []
    for seed in range(1, _QUIET_RUNS + 1):
        status, output, _ = checkout.pytest(*OBSERVE, seed=seed)
        (counts,) = re.findall(r"^(\d+ [A-Z]+.*?);", output, re.MULTILINE)[:1] or ["?"]
        quiet.append({"seed": seed, "status": status, "verdicts": counts})
        print(f"seed {seed}: status {status}, {counts}", flush=True)
    changes = []
    for change in suite.planted:
        text = checkout.planted(change)
        status, output, _ = checkout.pytest(*OBSERVE)
        (checkout.folder / change.file).write_text(text)
        head = _finding(change, output)
        changes.append({"change": change.name, "status": status, "named": bool(head), "finding": head})
        print(f"{change.name}: status {status}, {head or 'not named'}", flush=True)
    return {
        "plain": plain, "observed": observed, "price": price,
        "tests": int(recorded[0]) if recorded else 0, "unstable": unstable, "quiet": quiet, "planted": changes,
    }  # fmt: skip


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


def _finding(change: Planted, output: str) -> str:
    """The first line that names the change; empty if none does."""
    if not change.said:
        return next((line for line in output.splitlines() if line.startswith("FAILED ")), "")
    blocks = [each for each in output.split("CHANGED  ")[1:] if each.startswith(change.said)]
    return next((each.splitlines()[0] for each in blocks if change.metric in each), "")


def _told(seconds: list[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in seconds)


if __name__ == "__main__":
    main()
