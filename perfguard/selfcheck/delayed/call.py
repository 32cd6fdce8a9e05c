"""The delayed call: a chain of dependent multiply-adds of any length.

`out = x·(1 + 2^-(steps + tail))`: each link halves the distance from x. The lengths are run-time arguments, so one
binary serves every delay, and two delays differ in nothing but time.
"""

from __future__ import annotations

from typing import Literal

import torch

from perfguard.measure.devices import fake
from perfguard.model.errors import DeviceError

COUNT = 2**16
# The chain hardly uses memory. With a cold cache, so few bytes would be timed by the profiler instead of a graph.
CACHE: Literal["warm"] = "warm"
_FAKE_CALL_US, _FAKE_LINK_US = 2.0, 0.002  # of the simulated kernel


def runs_on(device: torch.device) -> bool:
    """Whether the kernel runs on `device`: a GPU, or the simulated one."""
    return device.type != "cpu" or fake.current() is not None


def inputs(device: torch.device, seed: int = 0) -> torch.Tensor:
    """x (COUNT,) float32, with values of eight significant bits, so that the chain ends at x exactly."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(COUNT, generator=generator).bfloat16().float().to(device)


def delayed(x: torch.Tensor, steps: int, tail: int) -> torch.Tensor:
    """The chain of `steps` and then `tail` links on every element of x, contiguous float32; out is like x.

    Raises:
        DeviceError: x is on a CPU.
    """
    if x.device.type == "cpu":
        if fake.current() is None:
            raise DeviceError("selfcheck: its kernel needs a GPU; run it where `perfguard doctor` shows one")
        fake.launch("delayed", us=_FAKE_CALL_US + _FAKE_LINK_US * (steps + tail))
        return expected(x, steps, tail)
    from perfguard.selfcheck.delayed.kernel import launch

    return launch(x, steps, tail)


def expected(x: torch.Tensor, steps: int, tail: int) -> torch.Tensor:
    """The result of `delayed`, computed without a chain."""
    return x * (1 + 2.0 ** -(steps + tail))
