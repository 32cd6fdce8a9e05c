"""The measurement engine: one file a timer; which one times a case is decided here, once, and then stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from perfguard.errors import DeviceError
from perfguard.timing import queue, wall
from perfguard.timing.timing import Cache, Timer, Timing

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMERS: tuple[Timer, ...] = (queue, wall)  # of device time, in order of preference


def measure_device_time(
    call: Callable[[], object],
    device: Device,
    *,
    cache: Cache = "cold",
    seconds: float = 1.0,
    stored: str | None = None,
) -> Timing:
    """Device time of one call, by the timer the baseline was read with, else by the first that suits.

    A stored id that cannot be reproduced is no error: the reading then has another id, and is not compared.

    Raises:
        DeviceError: no timer suits the device.
        Exception: whatever `call` raises.
    """
    suitable = [timer for timer in TIMERS if timer.suits(device)]
    if not suitable:
        raise DeviceError(f"{device.identity.slug}: no timer suits this device; add one in perfguard/timing/")
    same = [timer for timer in suitable if stored is not None and timer.understands(stored)]
    return (same or suitable)[0].measure(call, device, cache=cache, seconds=seconds, stored=stored)
