"""Which way a call takes: Triton's kernels on a GPU, its interpreter, or torch's own operators; and on which device."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from kernels.jit import JITFunction

Path = Literal["triton", "interpreter", "eager"]


def path_of(kernel: Any, device: torch.device | str) -> Path:
    """What a call that would launch `kernel` on this device runs now; `kernel` is None where Triton is missing.

    The interpreter needs TRITON_INTERPRET=1 both now and when the kernel was defined, because Triton decides at
    definition.
    """
    if kernel is None or JITFunction is None:
        return "eager"
    interpreted = not isinstance(kernel, JITFunction)
    if torch.device(device).type != "cpu":
        return "interpreter" if interpreted else "triton"
    return "interpreter" if interpreted and os.environ.get("TRITON_INTERPRET") == "1" else "eager"


def on(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be that of the tensor."""
    return torch.cuda.device(tensor.device) if tensor.device.type == "cuda" else nullcontext()
