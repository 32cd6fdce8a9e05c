"""Triton where it is installed, and which way a call takes: its kernels, its interpreter, or torch's operators.

Without Triton `jit` gives None, which `path_of` reads as the eager path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

try:
    import triton
    import triton.language as tl
    from triton import knobs
    from triton.runtime import JITFunction, driver
except ImportError as error:
    if error.name is None or error.name.split(".")[0] != "triton":
        raise
    triton = tl = driver = knobs = JITFunction = None

__all__ = ["JITFunction", "Path", "driver", "jit", "knobs", "named", "path_of", "tl", "triton"]

Path = Literal["triton", "interpreter", "eager"]


def jit(do_not_specialize: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """`triton.jit`. What is in `do_not_specialize` may take any value without another compilation."""

    def define(kernel: Callable[..., Any]) -> Any:
        return None if triton is None else triton.jit(kernel, do_not_specialize=list(do_not_specialize))

    return define


if triton is not None:

    @triton.constexpr_function  # type: ignore[untyped-decorator]
    def named(record: Any, values: Any) -> Any:
        """A record, a NamedTuple of constants, that a launch gives a kernel as one parameter.

        `SIZES: tl.constexpr = named(Sizes, sizes)` gives the values their names back: Triton writes down the plain
        tuple, for whoever compiles the launch elsewhere.
        """
        return record(*values)


def path_of(kernel: Any, device: torch.device | str) -> Path:
    """What a call that would launch `kernel` on this device runs now; `kernel` is None where Triton is missing.

    The interpreter needs TRITON_INTERPRET=1 both now and when the kernel was defined, because Triton decides at
    definition.
    """
    if kernel is None or JITFunction is None:
        return "eager"
    interpreted = not isinstance(kernel, JITFunction)
    if (torch.device(device) if isinstance(device, str) else device).type != "cpu":
        return "interpreter" if interpreted else "triton"
    return "interpreter" if interpreted and os.environ.get("TRITON_INTERPRET") == "1" else "eager"
