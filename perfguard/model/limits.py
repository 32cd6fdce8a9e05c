"""Limits of a metric: the most lenient values that its readings may have, on every device.

Each metric declares them in its own file (`LIMITS`). A report contains the limits of its readings, but the change's own
code, which made the report, may have edited them. So the post job restricts the readings to the declared limits.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perfguard.model.records import Better, Reading, Value
from perfguard.model.units import Unit

#: `Limits.portable` of metrics that are portable on a CPU only.
EITHER = None

#: Twice the resolution of events, which is 0.5 µs or better on all known GPUs.
COARSEST_TIMER_US = 1.0

#: The device time of the kernels that an observed test launched, µs, with a part for each. It is stored, never gated.
KERNEL_TIME = "kernel_time_us"


def kernel_time(kernel: str) -> str:
    """The metric by which process pairs judge one kernel of an observed test, `kernel_time_us[double_kernel]`."""
    return f"{KERNEL_TIME}[{kernel}]"


def timed_kernel(metric: str) -> str:
    """The kernel in a metric of `kernel_time`; empty for other metrics."""
    return metric.removeprefix(f"{KERNEL_TIME}[").removesuffix("]") if metric.startswith(f"{KERNEL_TIME}[") else ""


class Limits(Struct, frozen=True):
    """The most lenient limits of one metric over all devices.

    Attributes:
        promise: the promise of a time, before the timer's floor is added (as in `Meter.reading`).
        floor: the floor in the unit of an exact metric, or in µs for a time.
        stored: whether an exact metric is recorded although it is not gated.
        covers: times that cannot have changed if the reading, a hash, equals the stored one.
        unrecorded: the value that a record without the metric implies; None: no value.
        portable: whether the reading is portable; None if that is so on a CPU, but not on a GPU.
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
        same = ("better", "gated", "stored", "floor", "tolerance", "unrecorded")
        limits: dict[str, Any] = {name: getattr(self, name) for name in same}
        limits |= {"covers": list(self.covers), "portable": bool(self.portable)}
        return Reading(metric, unit, value, **(limits | others))


#: A sum of few launches with caches as the test left them is less precise than the time of a call.
KERNEL_TIME_LIMITS = Limits(
    Better.LOWER, gated=False, stored=True, promise=0.10, tolerance=0.10, floor=COARSEST_TIMER_US
)
