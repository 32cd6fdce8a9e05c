"""Waits on a device's queue: a spinning kernel where torch has one, else a chain of matrix products."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import torch

from perfguard.measure.devices.device import Device
from perfguard.model.errors import DeviceError

Wait = Callable[[float], None]
Spin = Callable[[int], None]

_SHORT_CYCLES = 1_000_000
_LONG_CYCLES = 6_000_000
_LINK_US = 200.0  # a link this long takes the device much longer than the host
_LARGEST_SIDE = 16384


def spinning(device: Device, spin: Spin) -> Wait | None:
    """A wait by `spin(cycles)`, calibrated against events; None if `spin` does not work.

    Cycles per µs are the slope between two lengths, so launch and event costs cancel.
    """
    try:
        spin(10 * _LONG_CYCLES)  # lets the clocks rise from idle
        short_us = _median_us(device, lambda: spin(_SHORT_CYCLES))
        long_us = _median_us(device, lambda: spin(_LONG_CYCLES))
    except (RuntimeError, TypeError):  # torch's spin is private and may change
        return None
    if long_us <= 2 * short_us:
        return None
    cycles_per_us = (_LONG_CYCLES - _SHORT_CYCLES) / (long_us - short_us)
    return lambda microseconds: spin(max(1, round(microseconds * cycles_per_us)))


def matmul_chain(device: Device) -> Wait:
    """A wait by matrix products that fill the time, rounded up to whole products (200 µs or more each).

    Raises:
        DeviceError: no matrix product on this device takes long enough.
    """
    side = 512
    while side <= _LARGEST_SIDE:
        left = torch.zeros(side, side, dtype=torch.bfloat16, device=device.torch_device)
        out = torch.empty_like(left)

        def link(left: torch.Tensor = left, out: torch.Tensor = out) -> None:
            torch.mm(left, left, out=out)

        link_us = _median_us(device, link)
        if link_us >= _LINK_US:
            break
        side *= 2
    else:
        raise DeviceError(f"{device.identity.name}: no wait could be calibrated; run `perfguard doctor`")

    def wait(microseconds: float) -> None:
        for _ in range(math.ceil(microseconds / link_us)):
            link()

    return wait


def _median_us(device: Device, call: Callable[[], object], repeats: int = 5) -> float:
    call()
    times = []
    for _ in range(repeats):
        start, end = device.event(), device.event()
        start.record()
        call()
        end.record()
        device.synchronize()
        times.append(start.elapsed_us(end))
    return statistics.median(times)
