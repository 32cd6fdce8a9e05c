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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.checkouts import ROOT, git, import_path
from benchmarks.rows import write_rows

_FOREIGN = Path(__file__).with_name("foreign")
_QUIET_RUNS = 3  # the last of them in two processes, where the tests need no GPU
_CALLS, _ROUNDS = 5000, 9  # of one operator
OBSERVE = ["--perfguard", "--perfguard-observe"]


@dataclass(frozen=True)
class Planted:
    """A change of the library: line `at` of `file` becomes `code`; a finding that begins with `said` has to name
    `metric`. Without a metric a test fails, by itself or because a guarded result is wrong, and a line that begins with
    WRONG or FAILED has to name `said`."""

    name: str
    file: str
    at: int
    code: str
    said: str
    metric: str = ""
    turn: int = 0  # Changes of one turn are planted together: each has to be named beside the others.


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
    planted: list[Planted]
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


_BACKENDS, _LAYERS = "einops/_backends.py", "einops/layers/torch.py"
_ACTIVATIONS, _L2NORM = "fla/modules/activations/ops.py", "fla/modules/norm/l2norm.py"
_SILU, _RMS = "conch/{}/activation/silu_and_mul.py", "conch/{}/normalization/rms_norm.py"
_INT8, _RELU = "conch/{}/quantization/int8.py", "src/liger_kernel/ops/relu_squared.py"
SUITES = {
    "einops": Suite(
        name="einops 0.8.2",
        tests=["einops/tests/test_*.py"],
        variables={"EINOPS_TEST_BACKENDS": "numpy,torch"},
        planted=[
            Planted("copy", _BACKENDS, 261, "        return x.permute(axes).contiguous()",
                    "einops/_backends.py:261 in transpose", "copies"),
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
                "        torch._dynamo.graph_break()\n        recipe = self._multirecipe[input.ndim]", "compile",
                turn=2,
            ),
            Planted(
                "recompilation", _LAYERS, 25,
                "        self.calls = getattr(self, 'calls', 0) + 1\n        recipe = self._multirecipe[input.ndim]",
                "external_utils.inner: ", "recompiles", turn=1,
            ),
            Planted("leak", _BACKENDS, 277,
                    "        self.last = self.torch.cat(tensors, dim=axis)\n        return self.last",
                    "einops/_backends.py:277 in concat", "residue_bytes"),
            Planted("dtype", _BACKENDS, 251, "            return x.double().mean(dim=reduced_axes).to(x.dtype)",
                    "einops/_backends.py:251 in reduce", "copies", turn=1),
            Planted("expanded view", _BACKENDS, 271, "        return x.expand(repeats).clone()",
                    "einops/_backends.py:271 in add_axes", "copies"),
            Planted("operator", _BACKENDS, 249, "            return x.sum(dim=reduced_axes) + 0",
                    "einops/_backends.py:249 in reduce", "operators"),
            Planted("dropped part", _BACKENDS, 277, "        return self.torch.cat(tensors[1:], dim=axis)", "", turn=3),
        ],
    ),
    # Its tests take a GPU where there is one, and Triton's interpreter if TRITON_INTERPRET is set.
    "liger": Suite(
        name="Liger 0.8.5, 2 files",
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
                f"{_RELU}:90 in ", "residue_bytes", turn=1,
            ),
        ],
    ),
    "fla": Suite(
        name="fla-core 0.6.0",
        tests=["test_foreign.py", "test_interpreted.py"],
        ours=["test_foreign.py", "test_interpreted.py"],
        chosen="test_foreign and fla or fla_swiglu or fla_l2norm",
        targets=["sm_90", "gfx942"],
        planted=[
            Planted("copy", _ACTIVATIONS, 604, "    return z.clone()", f"{_ACTIVATIONS}:604 in swiglu_fwd", "copies"),
            Planted(
                "launch", _ACTIVATIONS, 659, "        return swiglu_fwd(x=x, y=swiglu_fwd(x=x, y=y) * 0 + y)",
                "swiglu_fwd_kernel", "launches",
            ),
            Planted(
                "host read", _ACTIVATIONS, 592, "    T, D = x.numel() if x.sum().item() < 1e30 else 0, x.shape[-1]",
                f"{_ACTIVATIONS}:592 in swiglu_fwd", "host_reads",
            ),
            Planted(
                "saved tensor", _L2NORM, 178, "        ctx.doubled = x * 2\n        ctx.save_for_backward(y, rstd)",
                f"{_L2NORM}:178 in forward", "saved_activation_bytes", turn=2,
            ),
            Planted(
                "leak", _L2NORM, 179, "        L2NormFunction.last = y\n        return y",
                f"{_L2NORM}:117 in l2norm_fwd", "residue_bytes",
            ),
            Planted("tile", _ACTIVATIONS, 39, "        bs_list = [16384]", "swiglu_fwd_kernel", "registers", turn=3),
            Planted(
                "float64", _ACTIVATIONS, 541, "    b_z = (b_x.to(tl.float64) * tl.sigmoid(b_x) * b_y).to(tl.float32)",
                "swiglu_fwd_kernel", "fp64", turn=3,
            ),
            Planted("tail mask", _ACTIVATIONS, 536, "    mask = offs < T - 1", "swiglu", turn=1),
            Planted("dropped row", _L2NORM, 73, "    m_t = o_t < T - 1", "l2norm", turn=1),
            Planted("dtype", _ACTIVATIONS, 593, "    z = alloc_output(x=x).float()", "swiglu", turn=2),
        ],
    ),
    "conch": Suite(
        name="conch 1.3, 4 files",
        tests=[f"tests/{name}_test.py" for name in ("rms_norm", "silu_and_mul", "int8_quant_kernels")]
        + ["test_interpreted.py"],
        ours=["test_interpreted.py"],
        chosen="rms_norm and 80-855-dtype1 or silu and 20-4-855-dtype1 or int8 and dtype1-67-7 or conch_silu",
        targets=["sm_90", "gfx942"],
        planted=[
            Planted(
                "copy", _SILU.format("ops"), 29, "    return output.clone()",
                f"{_SILU.format('ops')}:29 in silu_and_mul", "copies",
            ),
            Planted(
                "launch", _SILU.format("ops"), 27, "    [silu_and_mul_launcher(output, x) for _ in range(2)]",
                "_silu_and_mul_kernel", "launches",
            ),
            Planted(
                "host read", _INT8.format("ops"), 24, "    assert scale.item() > 0",
                f"{_INT8.format('ops')}:24 in static_scaled_int8_quant", "host_reads",
            ),
            Planted(
                "leak", _RMS.format("ops"), 24, "    rms_norm.last = output\n    return output",
                f"{_RMS.format('ops')}:19 in rms_norm", "residue_bytes",
            ),
            Planted(
                "tile", _SILU.format("kernels"), 68, "    cxpr_block_size = 16 * triton.next_power_of_2(d)",
                "_silu_and_mul_kernel", "registers", turn=2,
            ),
            Planted("float64", _RMS.format("kernels"), 56, "    x = x.to(tl.float64)",
                    "_rms_norm_kernel", "fp64", turn=2),
            Planted(
                "second read", _RMS.format("kernels"), 43,
                "    at = x_ptr + token_offset + block_offsets\n"
                "    x = (tl.load(at, mask=mask) + tl.load(at, mask=mask)) / 2",
                "_rms_norm_kernel", "kernel_work", turn=2,
            ),
            Planted(
                "tail mask", _INT8.format("kernels"), 52, "        mask = hidden_offsets < hidden_size - 1",
                "int8", turn=1,
            ),
            Planted("dropped row", _SILU.format("kernels"), 77, "    grid = (num_tokens - 1,)", "silu", turn=1),
            Planted(
                "dtype", _SILU.format("ops"), 29, "    return output.float().to(x.dtype)",
                f"{_SILU.format('ops')}:29 in silu_and_mul", "copies", turn=2,
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
        for line in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "as it is"]):
            who = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
            subprocess.run(["git", *who, *line], cwd=folder, check=True)

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
    changes = [each for number in range(len(suite.planted)) for each in planted(checkout, observe, number)]
    return {
        "name": suite.name, "on": on, "torch": torch.__version__, "triton": triton.__version__,
        "date": datetime.date.today().isoformat(), "commit": commit,
        "plain": plain, "observed": observed, "tests": int(counted[0]) if counted else 0,
        "recorded": recorded, "quiet": quiet, "planted": changes,
    }  # fmt: skip


def planted(checkout: Checkout, observe: list[str], number: int) -> list[dict[str, object]]:
    """Plant the changes of the suite that stand in its turn `number`, run, take them back; what was found of each."""
    changes = [each for each in checkout.suite.planted if each.turn == number]
    if not changes:
        return []
    upwards = sorted(changes, key=lambda change: -change.at)  # A change may be of several lines.
    before = [(checkout.folder / each.file, checkout.planted(each)) for each in upwards]
    run = checkout.pytest(*observe)
    for path, text in reversed(before):
        path.write_text(text)
    found = []
    for change in changes:
        head = _finding(change, run.output)
        found.append({"change": change.name, "turn": number, "named": bool(head), "finding": head, **run.kept})
        print(found[-1], flush=True)
    if not all(each["named"] for each in found):
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


def _finding(change: Planted, output: str) -> str:
    """The first line that names the change; empty if none does."""
    if not change.metric:
        said = [line for line in output.splitlines() if line.startswith(("WRONG ", "FAILED ")) and change.said in line]
        return min(said, key=lambda line: not line.startswith("WRONG "), default="")
    blocks = [each for each in output.split("CHANGED  ")[1:] if each.startswith(change.said)]
    return next((each.splitlines()[0] for each in blocks if change.metric in each), "")


if __name__ == "__main__":
    main()
