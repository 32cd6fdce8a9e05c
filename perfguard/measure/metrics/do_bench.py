"""The time by `triton.testing.do_bench`, a rival method, for selfcheck only. Never gated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True  # takes time, and is read after the counts

METRIC = "do_bench_us"


def read(subject: Subject, device: Device) -> list[Reading]:
    """`do_bench_us`: the median of do_bench with its defaults, a plain number without a timer, µs.

    Nothing if rivals are not wanted, on a CPU, on the simulated GPU (do_bench takes its events from a real one), or
    without Triton.
    """
    if not (subject.rivals and subject.timed and device.asynchronous) or device.holds_cpu_tensors:
        return []
    try:
        from triton.testing import do_bench
    except ImportError:
        return []
    median_us = 1e3 * float(do_bench(subject.run, return_mode="median"))
    return [Reading(METRIC, Unit.MICROSECONDS, median_us, gated=False)]
