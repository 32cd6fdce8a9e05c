"""What Triton's driver, a kernel's `warmup` and a benchmark answer without a GPU, as modules ask at import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from perfguard.interpreter.entry import interpreter_error, interpreting
from perfguard.model.errors import next_step
from perfguard.pytest_plugin.without_gpu import VARIABLE, has_gpu
from tests.interpreter import INTERPRETED, PYTEST, jit

pytestmark = pytest.mark.skipif(has_gpu(), reason="Triton's driver is that of the GPU")


@jit
def rows_doubled(x, o, rows, columns, B: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, B)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        v = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
        tl.store(o + row * columns + at, v + v, mask=at < columns)


def active() -> Any:
    return triton.runtime.driver.active


def test_the_driver_answers_for_the_host() -> None:
    with interpreting():
        assert active().get_active_torch_device() == torch.device("cpu")
        assert active().get_current_target().backend == "cpu"
        properties = active().utils.get_device_properties(active().get_active_torch_device().index)
        assert 0 < properties["multiprocessor_count"] < 10
        assert not hasattr(active(), "launcher_cls")  # so that a library takes its other path
        with pytest.raises(RuntimeError) as raised:  # as without a driver
            triton.testing.get_dram_gbps(0)
        assert str(interpreter_error(raised.value)).startswith("the property 'mem_clock_rate' of a device needs a GPU")
        with pytest.raises(RuntimeError, match="get_device_interface of Triton's active driver needs a GPU"):
            triton.testing.do_bench(lambda: None)


def test_the_driver_is_gone_afterwards() -> None:
    """In a process of its own, since tests of kernels interpret for the rest of theirs."""
    code = """
import triton
from perfguard.interpreter.entry import interpreting
with interpreting():
    print(triton.runtime.driver.active.get_current_target().backend)
try:
    triton.runtime.driver.active.get_current_target()
except RuntimeError as error:
    print(error)
"""
    environment = os.environ | {VARIABLE: "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cpu\n0 active drivers")


@pytest.mark.parametrize("warps", [4, 8, 32])
def test_a_grid_of_the_occupancy_of_a_warmed_kernel(warps: int) -> None:
    x = torch.randn(11, 20)
    out = torch.empty_like(x)
    with interpreting():
        properties = active().utils.get_device_properties(0)
        kernel = rows_doubled.warmup(x, out, 11, 20, B=32, num_warps=warps, grid=(1,))
        kernel._init_handles()
        blocks = properties["max_num_regs"] // (kernel.n_regs * properties["warpSize"] * warps)
        blocks = min(blocks, properties["max_shared_mem"] // kernel.metadata.shared)
        kernel[(properties["multiprocessor_count"] * blocks, 1, 1)](x, out, 11, 20, 32)
        with pytest.raises(RuntimeError, match="asm of a compiled kernel needs a GPU"):
            _ = kernel.asm
    assert torch.equal(out, 2 * x)


def test_a_compiled_kernel_still_lacks_a_driver() -> None:
    def nothing(x):  # type: ignore[no-untyped-def]
        pass

    with interpreting(), pytest.raises(RuntimeError) as raised:
        JITFunction(nothing)[(1,)](torch.ones(1))
    assert interpreter_error(raised.value) is None
    assert VARIABLE in next_step(raised.value)


PROJECT = {
    "doubled.py": """
import torch, triton, triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()
CUDA = triton.runtime.driver.active.get_current_target().backend == "cuda"
PROCESSORS = triton.runtime.driver.active.utils.get_device_properties(DEVICE.index)["multiprocessor_count"]

@triton.autotune([triton.Config({"B": size}) for size in ((256,) if CUDA else (32, 64))], key=[])
@triton.jit
def kernel(x, o, n, B: tl.constexpr):
    for block in tl.range(tl.program_id(0), tl.cdiv(n, B), tl.num_programs(0)):
        at = block * B + tl.arange(0, B)
        v = tl.load(x + at, mask=at < n, other=0.0)
        tl.store(o + at, v + v, mask=at < n)

def double(x):
    out = torch.empty_like(x)
    kernel[(PROCESSORS,)](x, out, x.numel())
    return out

x = torch.randn(300, device=DEVICE, dtype=torch.bfloat16)  # which plain Triton adds as integers
assert torch.equal(double(x), x + x)

@triton.testing.perf_report(triton.testing.Benchmark(
    x_names=["N"], x_vals=[1 << 20], line_arg="by", line_vals=["triton"], line_names=["Triton"], plot_name="double",
    args={},
))
def benchmark(N, by):
    return triton.testing.do_bench(lambda: double(torch.randn(N, device=DEVICE)))

benchmark.run(print_data=True)
""",
    "test_double.py": """
from doubled import DEVICE, double
import torch

def test_double(perfguard):
    perfguard(double, torch.randn(300, device=DEVICE), reference=lambda x: x + x, hard=False)
""",
    "timed.py": """
import triton
SECONDS = triton.testing.do_bench(lambda: None)
""",
    "test_timed.py": """
import timed

def test_seconds():
    assert timed.SECONDS > 0
""",
}


@pytest.mark.parametrize("given", [None, "1"])
def test_modules_that_ask_for_a_device_at_import(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if given:
        monkeypatch.setenv(VARIABLE, given)
    for name, source in PROJECT.items():
        Path(pytester.path, name).write_text(source)
    result = pytester.run(*PYTEST, "--perfguard", "--perfguard-lane=cpu", "-rs")
    assert result.outlines.count(INTERPRETED) == (given is None)
    result.stdout.fnmatch_lines(["*UserWarning: benchmark is not run: a benchmark needs a GPU"])
    result.stdout.fnmatch_lines(["SKIPPED*test_timed.py*get_device_interface of Triton's active driver needs a GPU*"])
    result.assert_outcomes(passed=1, skipped=1, warnings=1)
