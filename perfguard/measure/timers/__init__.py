"""The timers, one per file. A case's timer is chosen here once, and then stored.

Every module in this folder that has a timer's names is a timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from perfguard.measure import collector_paused
from perfguard.measure.timers.timing import Meter, Timer, Workload
from perfguard.model.errors import DeviceError, MeasurementError
from perfguard.model.modules import modules_in

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


def all_timers() -> tuple[Timer, ...]:
    """The timers of device time, in order of preference."""
    timers = modules_in(__name__, "RANK", "prepare", "suits", "understands")
    timers.sort(key=lambda module: float(module.RANK))
    return cast(tuple[Timer, ...], tuple(timers))


def prepare_device_time(
    workload: Workload, device: Device, *, seconds: float = 1.0, stored: str | None = None
) -> Meter:
    """A meter of one call's device time, or of its CPU time on a CPU.

    It uses the timer of the baseline, or else the first timer that can time the call. If a stored id cannot be
    reproduced, the reading has another id and is not compared.

    Raises:
        DeviceError: no timer suits this kind of device.
        MeasurementError: no timer can time the workload.
        Exception: raised by the workload.
    """
    suitable = [timer for timer in all_timers() if timer.suits(device)]
    same = [timer for timer in suitable if stored is not None and timer.understands(stored)]
    with collector_paused():
        for timer in [*same, *(timer for timer in suitable if timer not in same)]:
            meter = timer.prepare(workload, device, seconds=seconds, stored=stored)
            if meter is not None:
                return meter
    slug = device.identity.slug
    if not suitable:
        raise DeviceError(
            f"{slug}: perfguard has no timer for this kind of device; choose another by --perfguard-device"
        )
    raise MeasurementError(
        f"{slug}: no timer can time the call. One that waits for the device needs the profiler; run `perfguard doctor`"
    )
