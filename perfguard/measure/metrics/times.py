"""The time metrics of a case.

A device with a queue has `device_time_us`, the time that one call keeps it busy, and `host_time_us`, which matters if
kernels are short. A CPU has `cpu_time_us` on one thread, since wall time includes the work of others.
`beside_rival_us` is the device or CPU time, measured alternately with a rival's. `cold_start_us` and compile times come
from separate processes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers import host, prepare_device_time
from perfguard.measure.timers.timing import Meter, Workload
from perfguard.model.limits import COARSEST_TIMER_US, KERNEL_TIME, KERNEL_TIME_LIMITS, Limits
from perfguard.model.records import Better, Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

CPU_TIME, DEVICE_TIME, HOST_TIME = "cpu_time_us", "device_time_us", "host_time_us"
BESIDE_RIVAL = "beside_rival_us"
_BESIDE = "-beside-"  # It separates the two timers of a reading beside a rival.

# Between processes the host time of one Python launch path differed by 2-11 % (coefficient of variation, 39 cases,
# five sessions on an H200 machine). With five stored sessions this resolves 20-44 %. An additional 50 µs of Python
# lengthens a launch by half.
_HOST_PROMISE = 0.50
_HOST_FLOOR_US = 2.0

# Disks, other processes and the linker vary by seconds, so a slowdown below 50 % or 2 s is no finding (the judge fails
# above a third of the promise). One more layer costs almost nothing if layers share their graph.
_COLD = Limits(Better.LOWER, promise=3 * 0.405, floor=2e6)  # ln 1.5
_LAYER = Limits(Better.LOWER, promise=3 * 0.405, floor=5e5)

LIMITS = {
    # CPU time varies between processes by 0.6 to 3 %, and by up to 9 % on a busy machine (docs/measuring.md).
    CPU_TIME: Limits(Better.LOWER, promise=0.10, floor=2.0),
    DEVICE_TIME: Limits(Better.LOWER, promise=0.03, floor=COARSEST_TIMER_US),
    HOST_TIME: Limits(Better.LOWER, promise=_HOST_PROMISE, floor=_HOST_FLOOR_US),
    BESIDE_RIVAL: Limits(Better.LOWER, promise=0.05, floor=COARSEST_TIMER_US),
    "cold_start_us": _COLD,
    "compile_layer_us": _LAYER,
    "compile_time_us": _COLD,
    "compiled_kernels": Limits(Better.LOWER),
    "graph_cache_misses": Limits(Better.LOWER),
    KERNEL_TIME: KERNEL_TIME_LIMITS,  # Only observed tests have it.
    "warm_compile_layer_us": _LAYER,
    "warm_compile_time_us": _COLD,
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """The times of a case. The judged one is first: device time, or on a CPU the time of one thread."""
    if not subject.timed or subject.ranks.in_step:  # `rank_times` measures several ranks.
        return []
    readings: list[Reading] = []
    for metric in (DEVICE_TIME, HOST_TIME) if device.asynchronous else (CPU_TIME,):
        if metric not in subject.skipped:
            if readings:
                subject.put_back()
            readings.append(_time(metric, subject, device))
    if subject.rival is not None:
        subject.put_back()
        readings += _beside_rival(subject, subject.rival(), device)
    return readings if subject.cold is None else [*readings, *subject.cold()]


def _time(metric: str, subject: Subject, device: Device) -> Reading:
    prepare = host.prepare if metric == HOST_TIME else prepare_device_time
    seconds = subject.seconds
    meter = prepare(subject.workload, device, seconds=seconds, stored=subject.stored_timers.get(metric))
    blocks = subject.collect(metric, meter, device, seconds)
    floor = _HOST_FLOOR_US if metric == HOST_TIME else 0.0
    return meter.reading(metric, blocks, promise=LIMITS[metric].promise, floor=floor)


def _beside_rival(subject: Subject, rival: Workload, device: Device) -> list[Reading]:
    """The time of one call beside the rival's, which is independent of older runs and of the machine's state.

    Blocks have the order ours, theirs, theirs, ours, so that a steady drift changes both alike. The time of a block is
    the ratio in such a group of four, times the rival's first block, µs. Only the ratio is judged.
    """
    our_timer, _, their_timer = subject.stored_timers.get(BESIDE_RIVAL, "").partition(_BESIDE)
    ours, theirs = (
        prepare_device_time(workload, device, seconds=subject.seconds, stored=timer or None)
        for workload, timer in ((subject.workload, our_timer), (rival, their_timer))
    )
    unit_us = next((us for _ in range(3) if (us := theirs.block()) is not None), None)
    if unit_us is None:
        return []

    def block() -> float | None:
        first, second, third, fourth = (meter.block() or math.nan for meter in (ours, theirs, theirs, ours))
        ratio = math.sqrt(first * fourth / (second * third))
        return None if math.isnan(ratio) else unit_us * ratio

    meter = Meter(
        f"{ours.timer}{_BESIDE}{theirs.timer}",
        block,
        floor_us=max(ours.floor_us, theirs.floor_us),
    )
    blocks = subject.collect(BESIDE_RIVAL, meter, device, 2 * subject.seconds)
    reading = meter.reading(BESIDE_RIVAL, blocks, promise=LIMITS[BESIDE_RIVAL].promise)
    return [msgspec.structs.replace(reading, rival=unit_us, note=_more_launches(subject, rival, device))]


def _more_launches(subject: Subject, rival: Workload, device: Device) -> str:
    """A note such as `6 launches, its rival 1`; empty if the candidate makes no more launches than its rival."""
    if not device.asynchronous:
        return ""
    ours, theirs = len(subject.activity(device).launches), len(device.activity(rival.run).launches)
    return f"{ours} launches, its rival {theirs}" if ours > theirs else ""
