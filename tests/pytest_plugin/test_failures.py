"""What exceptions say: the words of memory that ran out, in the wording of each allocator; and lost devices."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.model.errors import is_out_of_memory
from perfguard.pytest_plugin.failures import describe_error, is_lost
from perfguard.testing import fake

CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 512.50 MiB is "
    "free. Including non-PyTorch memory, this process has 139.30 GiB memory in use."
)
CPU = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4398046511104 bytes. Error code 12 (Cannot allocate memory)"
)
NEXT = "; make the case smaller, or free the device's memory"


def described(error: Exception) -> str:
    with pytest.raises(type(error)) as excinfo:
        raise error
    return describe_error("call", excinfo)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError(CUDA), "call ran out of memory: asked for 20.00 GiB, 512.50 MiB free" + NEXT),
        (RuntimeError(CPU), "call ran out of memory: asked for 4096 GiB" + NEXT),
        (RuntimeError("CUDA error: out of memory"), "call ran out of memory" + NEXT),
        (MemoryError(), "call ran out of memory" + NEXT),
        (ValueError("no\nsuch thing"), "call raised ValueError: no"),
        (ValueError("out of memory"), "call raised ValueError: out of memory"),
        (torch.AcceleratorError("CUDA error: x"), "call raised torch.AcceleratorError: CUDA error: x"),
    ],
)
def test_words(error: Exception, words: str) -> None:
    assert described(error) == words
    assert is_out_of_memory(error) == ("ran out" in words)


def test_triton_without_a_gpu_is_told_of_the_interpreter() -> None:
    """Triton's own message is of drivers, which nobody on a CPU has heard of. Here it may be interpreted already."""
    if torch.cuda.is_available() or torch.xpu.is_available():
        pytest.skip("Triton finds a GPU here")
    code = "import triton; triton.runtime.driver.active.get_current_target()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    kind, _, message = done.stderr.strip().splitlines()[-1].partition(": ")
    assert kind == "RuntimeError"
    with pytest.raises(RuntimeError) as excinfo:
        raise RuntimeError(message)
    assert describe_error("call", excinfo).endswith(
        "Triton found no GPU: TRITON_INTERPRET=1 runs its kernels in the interpreter"
    )


def test_the_real_allocator_of_the_cpu_is_understood() -> None:
    with pytest.raises(RuntimeError) as excinfo:
        torch.empty(2**60, dtype=torch.uint8)
    assert describe_error("call", excinfo).startswith("call ran out of memory: asked for 1")


def test_a_lost_device_is_told_from_a_well_one() -> None:
    device = fake.FakeDevice(seed=1)
    assert not is_lost(device)
    assert not is_lost(CpuDevice())
    with pytest.raises(RuntimeError):
        fake.fault()
    assert is_lost(device)
