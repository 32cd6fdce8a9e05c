"""Triton where it is installed. Without it `jit` gives None, which `kernels.paths.path_of` reads as the eager path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

try:
    import triton
    import triton.language as tl
    from triton.runtime import JITFunction, driver
except ImportError as error:
    if error.name is None or error.name.split(".")[0] != "triton":
        raise
    triton = tl = driver = JITFunction = None

__all__ = ["JITFunction", "driver", "jit", "tl", "triton"]


def jit(do_not_specialize: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Any]:
    """`triton.jit`. What is in `do_not_specialize` may take any value without another compilation."""

    def define(kernel: Callable[..., Any]) -> Any:
        return None if triton is None else triton.jit(kernel, do_not_specialize=list(do_not_specialize))

    return define
