"""Work on a GPU's queue: captures as torch's graphs, and waits.

A failed capture restores the previous state. A wait is a spinning kernel if torch has one, else a chain of matrix
products.
"""

from __future__ import annotations

import collections
import contextlib
import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from perfguard._compat.torch_internals import leave_pool, spin_of
from perfguard.measure.devices.device import Device
from perfguard.model.errors import DeviceError

Wait = Callable[[float], None]
Spin = Callable[[int], None]

_SHORT_CYCLES = 1_000_000
_LONG_CYCLES = 6_000_000
_LINK_US = 200.0  # A link this long takes the device much longer than the host.
_LARGEST_SIDE = 16384

# Only unsafe calls of this thread end a capture, not those of other threads, such as one that reads clocks.
_ERRORS = "thread_local"


class NotCapturable(Exception):
    """A capture failed; the message is that of the call or of torch."""


def capture(calls: Sequence[Callable[[], object]], keep: int, backend: Any, index: int) -> Any:
    """A torch graph of the work of all `calls` (`Device.capture`); the current stream must be a side stream.

    Raises:
        NotCapturable: a call raised, used an operation that cannot be captured, or put no work on this stream.
    """
    scratch = torch.zeros(1, device=torch.device("cuda", index))
    try:
        graph, problem = _captured(calls, keep, backend, index)
    except Exception as error:  # Candidates raise various errors when they may not synchronise.
        # Random generators assume a running capture, and raise, until a capture has succeeded. If even this one fails,
        # the device is lost, and its next use reports this.
        with contextlib.suppress(Exception):
            _captured([scratch.zero_], 1, backend, index)
        raise NotCapturable(next(iter(str(error).splitlines()), "") or type(error).__name__) from error
    if problem:
        raise NotCapturable(problem)
    return graph


def _captured(calls: Sequence[Callable[[], object]], keep: int, backend: Any, index: int) -> tuple[Any, str]:
    """The graph, and a problem of which torch warned at the end of the capture."""
    graph, pool = backend.CUDAGraph(), backend.graph_pool_handle()
    kept: collections.deque[object] = collections.deque(maxlen=keep)
    graph.capture_begin(pool=pool, capture_error_mode=_ERRORS)
    try:
        for call in calls:
            kept.append(call())
    except BaseException:
        with contextlib.suppress(Exception):  # The first error is more useful than that of the broken capture.
            graph.capture_end()
        leave_pool(index, pool)
        raise
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            graph.capture_end()
    except Exception:
        leave_pool(index, pool)
        raise
    empty = any("graph is empty" in str(warning.message).lower() for warning in caught)
    return graph, "the call puts no work on the current stream" if empty else ""


def calibrated_wait(device: Device, backend: Any) -> Wait:
    """A function that enqueues a wait of about the given µs on the device's queue.

    Raises:
        DeviceError: no wait could be calibrated.
    """
    spin = spin_of(backend)
    wait = None if spin is None else _spinning(device, spin)
    return _matmul_chain(device) if wait is None else wait


def _spinning(device: Device, spin: Spin) -> Wait | None:
    """A wait by `spin(cycles)`, calibrated against events; None if `spin` does not work.

    Cycles per µs are the slope between two lengths, so the costs of launches and events cancel.
    """
    try:
        spin(10 * _LONG_CYCLES)  # The clocks rise from idle.
        short_us = _median_us(device, lambda: spin(_SHORT_CYCLES))
        long_us = _median_us(device, lambda: spin(_LONG_CYCLES))
    except (RuntimeError, TypeError):  # torch's spin is private and may change.
        return None
    if long_us <= 2 * short_us:
        return None
    cycles_per_us = (_LONG_CYCLES - _SHORT_CYCLES) / (long_us - short_us)
    return lambda microseconds: spin(max(1, round(microseconds * cycles_per_us)))


def _matmul_chain(device: Device) -> Wait:
    """A wait by matrix products, rounded up to whole products of 200 µs or more."""
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
