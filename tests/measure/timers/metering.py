"""From a call to its reading, by a given timer: what a metric does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfguard.measure import collector_paused
from perfguard.measure.devices.device import Device
from perfguard.measure.timers import prepare_device_time
from perfguard.measure.timers.blocks import collect
from perfguard.measure.timers.timing import Cache, Meter, Workload
from perfguard.model.records import Reading
from perfguard.testing.fake import FakeDevice

Copies = Callable[[int], Sequence[Callable[[], object]]]
MUCH = 2**40  # bytes: overfills any cache in one call


def quiet(kind: type[FakeDevice] = FakeDevice, **options: Any) -> Any:
    """A device without noise."""
    return kind(session_noise=0, block_noise=0, launch_noise=0, seed=1, **options)


def measured(
    prepare: Any,
    call: Callable[[], object],
    device: Device,
    *,
    cache: Cache = "cold",
    seconds: float = 1.0,
    stored: str | None = None,
    copies: Copies | None = None,
    bytes: int = 0,
) -> Reading:
    """What a timer, given by its `prepare`, reads of `call`, which it must be able to time."""
    with collector_paused():
        meter = prepare(Workload(call, cache, copies, bytes), device, seconds=seconds, stored=stored)
    assert meter is not None
    return timed(meter, device, seconds)


def device_time(
    call: Callable[[], object], device: Device, *, seconds: float = 1.0, stored: str | None = None, **workload: Any
) -> Reading:
    """What the timer that is chosen reads of `call`."""
    meter = prepare_device_time(Workload(call, **workload), device, seconds=seconds, stored=stored)
    return timed(meter, device, seconds)


def timed(meter: Meter, device: Device, seconds: float) -> Reading:
    """What `meter` reads."""
    return meter.reading("device_time_us", collect("device_time_us", meter, device, seconds), promise=0.03)
