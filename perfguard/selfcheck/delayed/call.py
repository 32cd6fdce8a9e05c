"""The call that is made slower: a chain of dependent multiply-adds, as long as it is told to be.

`out = x·(1 + 2^-(steps + tail))`: each link halves the distance from x. The lengths are arguments at run time, so
one binary serves every delay, and whatever differs between two delays is their time.
"""

from __future__ import annotations

from typing import Literal

import torch

from perfguard.errors import DeviceError
from perfguard.hardware import fake

COUNT = 2**16
# Memory has no part in a chain, and so few bytes in a cold cache would leave the profiler to time it, not a graph.
CACHE: Literal["warm"] = "warm"
_FAKE_CALL_US, _FAKE_LINK_US = 2.0, 0.002  # of the simulated kernel


def runs_on(device: torch.device) -> bool:
    """Whether there is something to delay: a GPU, or the simulated one."""
    return device.type != "cpu" or fake.current() is not None


def inputs(device: torch.device, seed: int = 0) -> torch.Tensor:
    """x (COUNT,) float32. Its values have eight significant bits, so that the chain ends at x exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(COUNT, generator=generator).bfloat16().float().to(device)


def delayed(x: torch.Tensor, steps: int, tail: int) -> torch.Tensor:
    """The chain of `steps` and then `tail` links on every element of x, contiguous float32; out is like x.

    Raises:
        DeviceError: x lies on a CPU.
    """
    if x.device.type == "cpu":
        if fake.current() is None:
            raise DeviceError("selfcheck: its kernel needs a GPU; run it where `perfguard doctor` shows one")
        fake.launch("delayed", us=_FAKE_CALL_US + _FAKE_LINK_US * (steps + tail))
        return expected(x, steps, tail)
    from perfguard.selfcheck.delayed.kernel import launch

    return launch(x, steps, tail)


def expected(x: torch.Tensor, steps: int, tail: int) -> torch.Tensor:
    """What `delayed` returns, without a chain."""
    return x * (1 + 2.0 ** -(steps + tail))
