"""Kernels in files of their own, so that a child process finds them, and what is read of them and compared."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import torch

from perfguard.judge.exact import judge_exact
from perfguard.measure.binaries.call_binaries import Binaries, OnTarget, of_pass
from perfguard.measure.binaries.comparison import Compared
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.devices import open_device
from perfguard.measure.metrics import binary
from perfguard.measure.metrics.subject import Subject
from perfguard.model.call import Call
from perfguard.model.records import Pass, Reading, Verdict, Word

COMPILER_SECONDS = 120.0
_NUMBERS = count()

SCALE = """
import torch
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x * factor, mask=at < n)


def call(x, block=1024):
    if x.device.type == "cpu":
        return x * 2.0
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), 2.0, BLOCK=block, num_warps=4)
    return out
"""

PRODUCT = """
import torch
import triton
import triton.language as tl


@triton.jit
def product_kernel(a_ptr, b_ptr, out_ptr, k, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, D):
        a = tl.load(a_ptr + rows[:, None] * k + start + depth[None, :])
        b = tl.load(b_ptr + (start + depth[:, None]) * N + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(out_ptr + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16))


def call(a, b):
    if a.device.type == "cpu":
        return a @ b
    out = torch.empty(64, 64, dtype=a.dtype, device=a.device)
    product_kernel[(1,)](a, b, out, a.shape[1], M=64, N=64, D=32, num_warps=4, num_stages=2)
    return out
"""

TUNED = SCALE.replace(
    "@triton.jit",
    """@triton.autotune(
    configs=[triton.Config({"BLOCK": 256}, num_warps=2), triton.Config({"BLOCK": 1024}, num_warps=4)],
    key=["width"],
)
@triton.jit""",
).replace("n, factor, BLOCK: tl", "n, width, factor, BLOCK: tl").replace(
    "[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), 2.0, BLOCK=block, num_warps=4)",
    '[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), x.shape[1], 2.0)',
)  # fmt: skip


def load(folder: Path, source: str, name: str = "") -> Callable[..., Any]:
    """The function `call` of a module with this source, of the given name or of a new one."""
    name = name or f"kernels_{next(_NUMBERS)}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    call: Callable[..., Any] = module.call
    return call


class Reader:
    """Follows, reads and compares calls, with one compiler a side for all tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compilers = Compiler(folder / "cache", COMPILER_SECONDS), Compiler(folder / "cache", COMPILER_SECONDS)
        self.compiler = self.compilers[1]
        self.device = open_device("cpu")

    def close(self) -> None:
        for compiler in self.compilers:
            compiler.close()

    def call(self, source: str, *args: torch.Tensor, name: str = "", **options: Any) -> Call:
        """Of the `call` in a module with this source, of a given or a new name, in a folder of its own, on `args`;
        `options` are those of the guarded call."""
        function = load(self.folder / str(next(_NUMBERS)), source, name)
        return Call(function, args, lambda *_, **__: None, **options)

    def read(
        self, call: Call, targets: tuple[str, ...] = ("sm_90",), direction: Pass = "forward"
    ) -> dict[str, Reading]:
        """Metric -> reading of a run."""
        subject = Subject(call.run, direction=direction, call=call, binaries=Binaries(targets, self.compiler))
        return {reading.metric: reading for reading in binary.read(subject, self.device)}

    def follow(self, call: Call, targets: tuple[str, ...] = ("sm_90",), direction: Pass = "forward") -> list[OnTarget]:
        """As another process hands it over."""
        found = Binaries(targets, self.compiler).of(call, self.device)
        return of_pass(msgspec.json.decode(msgspec.json.encode(found), type=list[OnTarget]), direction)


def verdicts(compared: Compared) -> dict[str, Verdict]:
    """Metric -> the verdict of every reading that is not PASS."""
    found = [judge_exact(after, before.value) for before, after in zip(compared.base, compared.work, strict=True)]
    return {verdict.metric: verdict for verdict in found if verdict.word is not Word.PASS}


# Gluon, which nothing interprets: its numbers are known to a GPU alone.
GLUON = """
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def shift_kernel(x_ptr, out_ptr, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    x = gl.load(x_ptr + at, mask=at < n)
    gl.store(out_ptr + at, x + 1.0, mask=at < n)


def call(x):
    if x.device.type == "cpu":
        return x + 1.0
    out = torch.empty_like(x)
    shift_kernel[((x.numel() + 511) // 512,)](x, out, x.numel(), BLOCK=512, num_warps=4)
    return out
"""
