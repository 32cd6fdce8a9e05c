"""Triton's driver and compiled kernels on a machine without a GPU, while kernels are interpreted.

Modules of kernels query the driver when they are imported. The device is the CPU. A query that only a GPU can answer
raises an error that names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from perfguard._compat import triton_interpreter as names
from perfguard._compat.triton_internals import DRIVER, TARGET
from perfguard.interpreter.running import NotInterpreted

# The least of NVIDIA's GPUs since Ampere (CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability").
_WARP, _REGISTERS, _SHARED_BYTES, _THREADS = 32, 65536, 99 << 10, 1536
_MOST_REGISTERS = 255  # Per thread.
# With few processors, a program of a persistent kernel continues with further tiles even of small inputs.
_PROCESSORS = 4


class NoDevice(NotInterpreted, AttributeError, RuntimeError):
    """A query that only a GPU can answer. Libraries catch the RuntimeError of a missing driver, and `hasattr` catches
    AttributeError."""


class HostDriver:
    """Triton's active driver on a machine without a GPU."""

    def __init__(self) -> None:
        self.utils = _Utilities()

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_current_target(self) -> Any:
        return TARGET.get()("cpu", 0, _WARP)

    def get_current_device(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise NoDevice(f"{name} of Triton's active driver")


class _Utilities:
    def get_device_properties(self, device: Any = 0) -> dict[str, int]:
        return _Properties(
            max_shared_mem=_SHARED_BYTES,
            max_num_regs=_REGISTERS,
            multiprocessor_count=_PROCESSORS,
            warpSize=_WARP,
            max_threads_per_sm=_THREADS,
        )

    def __getattr__(self, name: str) -> Any:
        raise NoDevice(f"utils.{name} of Triton's active driver")


class _Properties(dict[str, int]):
    def __missing__(self, name: str) -> int:
        raise NoDevice(f"the property {name!r} of a device")


class Uncompiled:
    """The result of an interpreted kernel's `warmup`, which is a compiled kernel on a GPU.

    It reports the most registers and shared memory with which the kernel could run, so that a grid computed from them
    has one program per processor.
    """

    def __init__(self, kernel: Any, named: dict[str, Any]) -> None:
        warps = named.get("num_warps", 4)  # Triton's default.
        self.n_regs = min(_MOST_REGISTERS, _REGISTERS // (_WARP * warps))
        self.n_spills = 0
        self.metadata = SimpleNamespace(shared=_SHARED_BYTES, num_warps=warps)
        self._kernel = kernel
        self._options = {name: value for name, value in named.items() if name not in kernel.arg_names}

    def _init_handles(self) -> None:
        """Do nothing. A compiled kernel is loaded here."""

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args: self._kernel[grid](*args, **self._options)

    def __getattr__(self, name: str) -> Any:
        raise NoDevice(f"{name} of a compiled kernel")


def driver_or_host() -> Callable[[], Any]:
    """The replacement of Triton's search for a driver."""
    search = names.CREATE_DRIVER.get()

    def create() -> Any:
        try:
            return search()
        except RuntimeError as error:
            if "0 active drivers" not in str(error):
                raise
        return HostDriver()

    return create


def warmed() -> Callable[..., Any]:
    """The replacement of `warmup`, which gives None for interpreted kernels."""
    warm, interpreted = names.WARM.get(), names.INTERPRETER.get().InterpretedFunction

    def warmup(kernel: Any, *args: Any, grid: Any, **named: Any) -> Any:
        if isinstance(kernel, interpreted):
            return Uncompiled(kernel, named)
        return warm(kernel, *args, grid=grid, **named)

    return warmup


def reported_on_a_gpu() -> Callable[..., Any]:
    """The replacement of `triton.testing.perf_report(…).run`, which scripts call at import."""
    report = names.REPORT.get()

    def run(mark: Any, *args: Any, **named: Any) -> Any:
        if not isinstance(DRIVER.get().active, HostDriver):
            return report(mark, *args, **named)
        if named.get("return_df"):
            raise NotInterpreted("triton.testing.perf_report")
        warnings.warn(f"{mark.fn.__name__} is not run: a benchmark needs a GPU", stacklevel=2)
        return None

    return run
