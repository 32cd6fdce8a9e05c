"""Limits of a metric: how lenient its readings may be at most, on every device.

Each metric declares them in its own file (`LIMITS`). A report carries the limits of its readings, and it comes from the
change's own code, which may have edited them: the trusted side holds the readings to the declared limits.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perfguard.model.records import Better, Reading, Value
from perfguard.model.units import Unit

#: `Limits.portable` of what is portable where the device is a CPU.
EITHER = None

#: Events have a resolution of 0.5 µs or better on all known GPUs, and a timer resolves two steps.
COARSEST_TIMER_US = 1.0

#: Device time of the kernels that an observed test launched: a part for each, µs. Stored and shown, never gated.
KERNEL_TIME = "kernel_time_us"


def kernel_time(kernel: str) -> str:
    """The metric by which process pairs judge one kernel of an observed test, `kernel_time_us[double_kernel]`."""
    return f"{KERNEL_TIME}[{kernel}]"


def timed_kernel(metric: str) -> str:
    """The kernel in such a metric; empty for other metrics."""
    return metric.removeprefix(f"{KERNEL_TIME}[").removesuffix("]") if metric.startswith(f"{KERNEL_TIME}[") else ""


class Limits(Struct, frozen=True):
    """The most lenient limits of one metric over all devices.

    Attributes:
        promise: of a time, before the timer's own floor is added (as in `Meter.reading`).
        floor: of an exact metric in its unit, of a time in µs.
        stored: whether an exact metric is recorded although it is not gated.
        covers: times that cannot have moved if the reading, a hash, equals the stored one.
        unrecorded: the value assumed for a record without the metric; None: no value.
        portable: None: taken from the reading, because it is portable on a CPU and not on a GPU.
    """

    better: Better
    gated: bool = True
    stored: bool = False
    promise: float = 0.03
    floor: float = 0.0
    tolerance: float = 0.0
    covers: tuple[str, ...] = ()
    unrecorded: int | str | None = None
    portable: bool | None = False

    def reading(self, metric: str, unit: Unit, value: Value, **others: Any) -> Reading:
        """An exact reading with these limits. `others`: its other fields, or stricter limits."""
        limits: dict[str, Any] = {
            "better": self.better,
            "gated": self.gated,
            "stored": self.stored,
            "floor": self.floor,
            "tolerance": self.tolerance,
            "covers": list(self.covers),
            "unrecorded": self.unrecorded,
            "portable": bool(self.portable),
        }
        return Reading(metric, unit, value, **(limits | others))


#: One sum of few launches, whose caches are as the test left them: coarser than the time of a call.
KERNEL_TIME_LIMITS = Limits(
    Better.LOWER, gated=False, stored=True, promise=0.10, tolerance=0.10, floor=COARSEST_TIMER_US
)
