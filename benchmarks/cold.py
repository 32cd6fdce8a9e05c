"""Seconds until a first result: a call in a fresh process with an empty Triton cache, and what of them compiling takes.

    python -m benchmarks.cold [NAME …] [--shapes A B] [--repeats 3] [--json PATH]

Names are the quantisers of `benchmarks/quantize_fp8.py`, and `grouped_mm` and `fp8_grouped_mm`, forward and backward.
Imports of torch and the first use of the device are not counted. Part of a first call passes once a process whatever is
compiled: Triton imports its backend, and a C compiler builds what queries the device. The first line, an empty kernel,
shows it; `own s` is without it. `kernels` is how many Triton compiled, `compiling s` how long that took in all, and the
slowest of them; what `own s` has beyond is the C compiler again, once a kernel, and the kernels' runs. The figures are
medians over the repeats. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.quantize_fp8 import KERNELS, SHAPES, call_of
from benchmarks.rows import write_rows
from kernels import fp8, grouped
from kernels.fp8.grouped_shapes import MATMUL_A, MATMUL_B

EMPTY = "(empty kernel)"
MATMULS: dict[str, Callable[..., torch.Tensor]] = {"grouped_mm": grouped.grouped_mm, "fp8_grouped_mm": fp8.grouped_mm}
MATMUL_SHAPES = {"A": MATMUL_A, "B": MATMUL_B}


@triton.jit
def _nothing(x_ptr):  # type: ignore[no-untyped-def]
    pass


@dataclass(frozen=True)
class First:
    """A first call: its seconds, and for each kernel that was compiled its name and seconds."""

    seconds: float
    kernels: list[tuple[str, float]]


def main() -> None:
    arguments = _arguments()
    if arguments.child:
        print(json.dumps(asdict(_first(*arguments.child))))
        return
    empty = _firsts(EMPTY, "A", arguments.repeats)
    rows = [_row(EMPTY, "", empty, 0.0)]
    print(_HEADER, _line(rows[0]), sep="\n", flush=True)
    once = statistics.median(first.seconds for first in empty)
    for shape in arguments.shapes:
        for name in arguments.names or (*KERNELS, *MATMULS):
            rows.append(_row(name, shape, _firsts(name, shape, arguments.repeats), once))
            print(_line(rows[-1]), flush=True)
    if arguments.json:
        report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        write_rows(Path(arguments.json), report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.cold", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join((*KERNELS, *MATMULS)))
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["A"])
    parser.add_argument("--repeats", type=int, default=3, help="processes for a figure")
    parser.add_argument("--json", help="also write the figures there")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in KERNELS and name not in MATMULS:
            parser.error(f"name: is {name!r}; may be {', '.join((*KERNELS, *MATMULS))}")
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    return arguments


def _first(name: str, shape: str) -> First:
    """Of this process, which has compiled nothing yet."""
    import torch._dynamo  # PyTorch loads it at the first call of any custom operator: not the kernel's time

    call = _call(name, shape)
    torch.zeros(1, device="cuda").add_(1)
    kernels: list[tuple[str, float]] = []

    def compiled(*, metadata: dict[str, Any], times: Any, **_: Any) -> None:
        kernels.append((metadata["name"], times.total / 1e6))

    triton.knobs.compilation.listener = compiled
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return First(time.perf_counter() - start, kernels)


def _call(name: str, shape: str) -> Callable[[], object]:
    if name == EMPTY:
        x = torch.zeros(1, device="cuda")
        return lambda: _nothing[(1,)](x)
    if name in KERNELS:
        return call_of(name, SHAPES[shape])[0]
    a, w, offs = MATMUL_SHAPES[shape].inputs(torch.device("cuda"))
    grad = torch.randn(len(a), w.shape[1], device=a.device, dtype=a.dtype)
    matmul = MATMULS[name]
    return lambda: matmul(a, w.mT, offs).backward(grad)


def _firsts(name: str, shape: str, repeats: int) -> list[First]:
    firsts = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            child = subprocess.run(
                [sys.executable, "-m", "benchmarks.cold", "--child", name, shape],
                env={**os.environ, "TRITON_CACHE_DIR": cache},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        answer = json.loads(child.stdout.splitlines()[-1])
        firsts.append(First(answer["seconds"], [(kernel, seconds) for kernel, seconds in answer["kernels"]]))
    return firsts


def _row(name: str, shape: str, firsts: list[First], once: float) -> dict[str, Any]:
    seconds = statistics.median(first.seconds for first in firsts)
    slowest = [max(first.kernels, key=lambda kernel: kernel[1]) for first in firsts]
    return {
        "name": name,
        "shape": shape,
        "seconds": seconds,
        "own_seconds": seconds - once,
        "kernels": len(firsts[0].kernels),
        "compiling_seconds": statistics.median(sum(each for _, each in first.kernels) for first in firsts),
        "slowest": slowest[0][0],
        "slowest_seconds": statistics.median(each for _, each in slowest),
        "all_seconds": [first.seconds for first in firsts],
    }


_HEADER = f"{'call':<26}{'shape':<7}{'first s':>9}{'own s':>8}{'kernels':>9}{'compiling s':>13}  slowest"


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['name']:<26}{row['shape']:<7}{row['seconds']:>9.2f}{row['own_seconds']:>8.2f}{row['kernels']:>9}"
        f"{row['compiling_seconds']:>13.2f}  {row['slowest']} {row['slowest_seconds']:.2f}"
    )


if __name__ == "__main__":
    main()
