"""What perfguard costs whoever tries it: seconds of a newcomer's commands, at an earlier commit and at this one.

python -m benchmarks.first_contact [--before COMMIT] [--only ROW ...] [--json FILE]

Both commits are cloned, and each command runs at one, then at the other, on the same machine and with the same
packages. What setting up an environment takes is left out. Processor seconds are those of a command with all processes
that it has started and waited for. `--json` gets every run; the table is made of it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.checkouts import ROOT, commit, git, import_path
from benchmarks.rows import markdown, write_rows
from perfguard.session.child import own_packages

BEFORE = "36c4f289"  # the last commit before the round that this measures
_TESTS = "tests/kernels/"

NORM = """
import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return x * scale * weight
"""
NORM_TEST = """
import pytest
import torch
from mynorm import rms_norm


@pytest.mark.parametrize("rows", [4, 64])
def test_rms_norm(perfguard, rows):
    x = torch.randn(rows, 256, device=perfguard.device, requires_grad=True)
    weight = torch.ones(256, device=perfguard.device)
    perfguard(
        rms_norm,
        x,
        weight,
        reference=lambda x, weight: torch.nn.functional.rms_norm(x, (256,), weight, 1e-6),
    )
"""
# Operators of rows and of elements, as tutorials have them: an expression of `x`, and torch's of the same.
ELEMENTS = {
    "relu": ("tl.where(x > 0, x, 0.0)", "torch.relu(x)"),
    "silu": ("x * tl.sigmoid(x)", "torch.nn.functional.silu(x)"),
    "square": ("x * x", "x * x"),
    "exp": ("tl.exp(x)", "torch.exp(x)"),
    "leaky_relu": ("tl.where(x > 0, x, 0.01 * x)", "torch.nn.functional.leaky_relu(x)"),
    "scale": ("x * 0.5", "x * 0.5"),
}
ROWS = {
    "sum": ("tl.sum(x, 0)", "x.sum(-1)"),
    "max": ("tl.max(x, 0)", "x.amax(-1)"),
    "square_sum": ("tl.sum(x * x, 0)", "(x * x).sum(-1)"),
}
_KERNELS = """
import time

import torch
import triton
import triton.language as tl


def bench(call, quantiles):  # Triton's own asks a driver
    started = time.perf_counter()
    call()
    return [time.perf_counter() - started] * len(quantiles)
"""
_ELEMENT = """
{tuned}@triton.jit
def {name}_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, {body}, mask=at < n)


def {name}(x):
    out = torch.empty_like(x)
    {name}_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(){given})
    return out


def test_{name}():
    x = torch.randn(1000)
    torch.testing.assert_close({name}(x), {reference})
"""
_ROW = """
@triton.jit
def {name}_kernel(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * columns + at, mask=at < columns, other={other})
    tl.store(out_ptr + tl.program_id(0), {body})


def {name}(x):
    out = torch.empty(x.shape[0])
    {name}_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


def test_{name}():
    x = torch.randn(20, 100)
    torch.testing.assert_close({name}(x), {reference})
"""
_TUNED = """@triton.autotune(
    [
        triton.Config({"BLOCK": size}, num_warps=warps)
        for size in (32, 64, 128, 256, 512, 1024)
        for warps in (1, 2, 4, 8, 16)
    ],
    key=["n"],
    do_bench=bench,
)
"""
SLOW = "\n\ndef slow(x):\n    return torch.sin(torch.sin(torch.sin(torch.sin({}))))\n"
SLOW_TEST = """
import torch
from slow import slow


def test_slow(perfguard):
    x = torch.randn(2**18)
    perfguard(slow, x, reference=lambda x: x.sin().sin().sin().sin())
"""


@dataclass(frozen=True)
class Ran:
    """One command at one commit. `wall` and `processor` in seconds; None if nobody read it."""

    row: str
    side: str
    command: str
    status: int
    wall: float
    processor: float | None


@dataclass(frozen=True)
class Side:
    """A clone of one commit, and a folder for projects that use it."""

    name: str
    clone: Path
    folder: Path

    def run(self, row: str, folder: Path, *command: str, env: dict[str, str] | None = None) -> Ran:
        """The command in `folder`, with this side's perfguard. What it prints goes into a file beside the projects."""
        before, started = _processor(), time.monotonic()
        with (self.folder / "output.txt").open("a", encoding="utf-8") as output:
            output.write(f"$ {shlex.join(command)}\n")
            output.flush()
            status = subprocess.run(
                command, cwd=folder, check=False, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": import_path(self.clone), **(env or {})},
            ).returncode  # fmt: skip
        ran = Ran(
            row, self.name, shlex.join(command[2:]), status,
            round(time.monotonic() - started, 1), round(_processor() - before, 1),
        )  # fmt: skip
        print(
            f"{ran.side:>6}  {ran.wall:7.1f} s wall  {_seconds(ran.processor):>9} processor  {ran.status}  {row}",
            flush=True,
        )
        return ran

    def pytest(self, row: str, folder: Path, *arguments: str, **env: str) -> Ran:
        return self.run(row, folder, sys.executable, "-m", "pytest", *own_packages().plugin, "-q", *arguments, env=env)

    def project(self, name: str, **files: str) -> Path:
        """A repository with these files, committed."""
        folder = self.folder / name
        folder.mkdir()
        (folder / ".gitignore").write_text(".perfguard/\n__pycache__/\n.pytest_cache/\n", encoding="utf-8")
        (folder / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n', encoding="utf-8")
        for file, text in files.items():
            (folder / f"{file}.py").write_text(text, encoding="utf-8")
        commit(folder)
        return folder


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def guard(side: Side) -> Iterator[Ran]:
    """`scripts/guard` in a fresh clone, without what it sets up."""
    yield side.pytest("scripts/guard, fresh clone", side.clone, "--perfguard", f"{_TESTS}test_quantize_guarded.py")


def lane(side: Side) -> Iterator[Ran]:
    """`scripts/guard --perfguard-lane=cpu`, all suites, a worker for each core: recorded, and run again."""
    suites = sorted(
        f"{_TESTS}test_{path.stem.removeprefix('kernels.')}.py" for path in ROOT.glob("baselines/cpu/*.yaml")
    )
    workers = str(len(os.sched_getaffinity(0)))
    options = ("--perfguard", "--perfguard-lane=cpu", "-n", workers, "--dist", "worksteal", *suites)
    recording = ("--perfguard-update=all", "--perfguard-reason=recorded by a benchmark")
    yield side.pytest("CPU lane of all suites: record", side.clone, *recording, *options, OMP_NUM_THREADS="1")
    commit(side.clone)
    yield side.pytest("CPU lane of all suites: run again", side.clone, *options, OMP_NUM_THREADS="1")


def start(side: Side) -> Iterator[Ran]:
    """The commands of docs/start.md, on a CPU."""
    folder = side.project("start", mynorm=NORM, test_norm=NORM_TEST)
    flow = "start.md: "
    yield side.pytest(f"{flow}pytest", folder)
    yield side.pytest(f"{flow}pytest --perfguard", folder, "--perfguard")
    yield side.pytest(f"{flow}record the lane", folder, "--perfguard", "--perfguard-lane=cpu", "--perfguard-update=new")
    commit(folder)
    yield side.pytest(f"{flow}the lane again", folder, "--perfguard", "--perfguard-lane=cpu")
    (folder / "mynorm.py").write_text(NORM.replace("x * scale", "x.clone() * scale"), encoding="utf-8")
    yield side.pytest(f"{flow}the lane, red", folder, "--perfguard", "--perfguard-lane=cpu")
    git(folder, "checkout", "--quiet", "mynorm.py")
    yield side.pytest(f"{flow}record times", folder, "--perfguard", "--perfguard-update=new")
    commit(folder)
    yield side.pytest(f"{flow}times again", folder, "--perfguard")


def foreign(side: Side) -> Iterator[Ran]:
    """Twelve kernels in Triton's interpreter, observed; three of them choose from thirty configurations each."""
    text = _KERNELS
    for name, (body, reference) in ELEMENTS.items():
        text += _ELEMENT.format(name=name, body=body, reference=reference, tuned="", given=", BLOCK=128")
    for name, (body, reference) in [*ELEMENTS.items()][:3]:
        text += _ELEMENT.format(name=f"tuned_{name}", body=body, reference=reference, tuned=_TUNED, given="")
    for name, (body, reference) in ROWS.items():
        other = 'float("-inf")' if name == "max" else "0.0"
        text += _ROW.format(name=f"row_{name}", body=body, reference=reference, other=other)
    folder = side.project("foreign", test_kernels=text)
    options = ("--perfguard", "--perfguard-observe")
    yield side.pytest("12 foreign kernels: record", folder, *options, "--perfguard-update", TRITON_INTERPRET="1")
    commit(folder)
    yield side.pytest("12 foreign kernels: run again", folder, *options, TRITON_INTERPRET="1")


def compare(side: Side) -> Iterator[Ran]:
    """`perfguard compare` of one case that is a quarter slower, and of one whose file has a new comment alone."""
    line = (sys.executable, "-m", "perfguard", "compare", "HEAD", "--")
    source = "import torch" + SLOW
    folder = side.project("compare", slow=source.format("x"), test_slow=SLOW_TEST)
    (folder / "slow.py").write_text(source.format("torch.asin(torch.sin(x))"), encoding="utf-8")
    yield side.run("perfguard compare: slower", folder, *line, *own_packages().plugin)
    (folder / "slow.py").write_text("unused = 1\n" + source.format("x"), encoding="utf-8")
    yield side.run("perfguard compare: the same", folder, *line, *own_packages().plugin)


ROWS_OF: dict[str, Callable[[Side], Iterator[Ran]]] = {
    "guard": guard,
    "lane": lane,
    "start": start,
    "foreign": foreign,
    "compare": compare,
}


def table(runs: list[Ran]) -> str:
    """The runs as Markdown, a row for each command: seconds at the earlier commit, now, and their ratio."""
    lines = []
    fields = [field for field in ("wall", "processor") if any(getattr(ran, field) is not None for ran in runs)]
    for row in dict.fromkeys(ran.row for ran in runs):
        sides = {ran.side: ran for ran in runs if ran.row == row}
        old, new = sides.get("before"), sides.get("now")
        cells = [
            cell
            for field in fields
            for before, now in [(old and getattr(old, field), new and getattr(new, field))]
            for cell in (_seconds(before), _seconds(now), f"{now / before:.2f}" if before and now else "")
        ]
        lines.append([row, *cells])
    head = ["command", *(name for field in fields for name in (f"{field} before", "now", ""))]
    return "\n".join(markdown(head, lines))


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT", help=f"the earlier commit (default: {BEFORE})")
    parser.add_argument("--only", nargs="+", choices=ROWS_OF, default=list(ROWS_OF), help="which rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to FILE")
    options = parser.parse_args()
    runs: list[Ran] = []
    with tempfile.TemporaryDirectory(prefix="first-contact-") as name:
        sides = []
        for side, revision in (("before", options.before), ("now", "HEAD")):
            folder = Path(name, side)
            folder.mkdir()
            git(folder, "clone", "--quiet", "--shared", str(ROOT), "clone")
            git(folder / "clone", "checkout", "--quiet", git(ROOT, "rev-parse", f"{revision}^{{commit}}"))
            sides.append(Side(side, folder / "clone", folder))
        for row in options.only:
            for side in sides:
                for ran in ROWS_OF[row](side):
                    runs.append(ran)
                    if options.json:  # after each: an interrupted benchmark keeps what it saw
                        write_rows(options.json, kept(runs, sides))
    print(table(runs))
    return 0


def kept(runs: list[Ran], sides: list[Side]) -> dict[str, object]:
    """What `--json` keeps."""
    return {
        "command": shlex.join(["python", "-m", "benchmarks.first_contact", *sys.argv[1:]]),
        "date": datetime.date.today().isoformat(),
        "commits": {side.name: git(side.clone, "rev-parse", "HEAD") for side in sides},
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "runs": [asdict(ran) for ran in runs],
    }


if __name__ == "__main__":
    sys.exit(main())
