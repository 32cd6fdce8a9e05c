"""Triton: its launchers and hooks, the interpreter, compiled kernels, and the driver that a target pretends to be."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from perfguard._compat.private import Private

_FOLLOW = "following launches without running them"
_INTERPRET = "following kernels in Triton's interpreter"

FUNCTION = Private("triton.runtime.jit", "JITFunction", _FOLLOW)
AUTOTUNER = Private("triton.runtime.autotuner", "Autotuner", "following tuners and their choices")
DRIVER = Private("triton.runtime", "driver", "compiling for a target that is not present")
TARGET = Private("triton.backends.compiler", "GPUTarget", "compiling for a target that is not present")
KNOBS = Private("triton.knobs", "runtime", "hooks before a compilation and a launch")
NVDISASM = Private("triton.knobs", "nvidia.nvdisasm", "reading the instructions of a cubin")
CUOBJDUMP = Private("triton.knobs", "nvidia.cuobjdump", "reading the resources of a cubin")
INTERPRETED = Private("triton.runtime.interpreter", "InterpretedFunction", _INTERPRET)
GRID = Private("triton.runtime.interpreter", "GridExecutor", _INTERPRET)
COMPILED = Private("triton.compiler.compiler", "CompiledKernel", "reading the scalars of a launch")

#: What a launch imports when it is made first: processes that fork import it before.
OF_LAUNCHES = (
    Private("triton.compiler", "", "starting processes that have the compiler loaded"),
    Private("triton.experimental.gluon", "", "starting processes that have Gluon loaded"),
)

NAMES = (
    *OF_LAUNCHES,
    Private("triton.runtime.jit", "JITFunction.run", _FOLLOW),
    Private("triton.runtime.jit", "JITFunction.preload", "compiling a kernel that another process has launched"),
    Private("triton.runtime.jit", "JITFunction.is_gluon", "telling Gluon from Triton"),
    Private("triton.runtime", "driver.set_active", "compiling for a target that is not present"),
    Private("triton.runtime", "driver._active", "compiling for a target that is not present"),
    Private("triton.runtime.autotuner", "Autotuner.run", "following tuners and their choices"),
    Private("triton.runtime.interpreter", "InterpretedFunction.run", _INTERPRET),
    Private("triton.runtime.interpreter", "GridExecutor.__call__", _INTERPRET),
    Private("triton.compiler.compiler", "CompiledKernel.launch_metadata", "reading the scalars of a launch"),
    Private("triton.knobs", "runtime.jit_cache_hook", _FOLLOW),
    Private("triton.knobs", "runtime.launch_enter_hook.add", "listing launches"),
    Private("triton.knobs", "runtime.launch_enter_hook.remove", "listing launches"),
    Private("triton.knobs", "nvidia.nvdisasm.path", "reading the instructions of a cubin"),
    Private("triton.knobs", "nvidia.cuobjdump.path", "reading the resources of a cubin"),
    Private("triton.language.standard", "cdiv", "knowing whether Triton was imported as an interpreter"),
)


def knows_triton() -> bool:
    """Whether Triton is loaded. A process that never imported it launches none of its kernels."""
    return "triton" in sys.modules


@contextmanager
def driven_by(driver: object) -> Iterator[None]:
    """Launch and compile by this driver while inside."""
    active = DRIVER.get()
    before = active._active
    active.set_active(driver)
    try:
        yield
    finally:
        active._active = before


def drive(driver: object) -> None:
    """Launch and compile by this driver from now on."""
    DRIVER.get().set_active(driver)


def is_compiled(kind: type) -> bool:
    """Whether objects of this type are kernels that Triton compiled."""
    return kind.__name__ == "CompiledKernel" and kind.__module__.startswith("triton.")


def was_imported_as_interpreter() -> bool:
    """Whether Triton's own functions are for its interpreter. Its other modules must then be imported like that."""
    standard = importlib.import_module("triton.language.standard")
    return not isinstance(standard.cdiv, FUNCTION.get())
