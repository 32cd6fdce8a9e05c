"""The candidate and its rival, timed in turn, so that neither older runs nor the machine's state matter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers import prepare_device_time
from perfguard.measure.timers.timing import Meter, Timing, Workload
from perfguard.model.limits import COARSEST_TIMER_US, Limits
from perfguard.model.records import Better, Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

METRIC = "beside_rival_us"
_PROMISE = 0.05
_BESIDE = "-beside-"

LIMITS = {METRIC: Limits(Better.LOWER, promise=_PROMISE, floor=COARSEST_TIMER_US)}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`beside_rival_us`: device time of one call (CPU time on a CPU) beside the rival's; nothing without a rival.

    Blocks alternate in the order ours, theirs, theirs, ours, so that a steady drift moves both alike. The time of a
    block is the ratio in such a group of four, times the rival's first block, µs. Only the ratio is judged.
    """
    if subject.rival is None or not subject.timed:
        return []
    rival = subject.rival()
    ours, theirs = (
        prepare_device_time(workload, device, seconds=subject.seconds, stored=timer)
        for workload, timer in zip((subject.workload, rival), _timers(subject), strict=True)
    )
    unit_us = next((us for _ in range(3) if (us := theirs.block()) is not None), None)
    if unit_us is None:
        return []
    meter = _by_turns(ours, theirs, unit_us)
    blocks = subject.collect(METRIC, meter, device, 2 * subject.seconds)
    reading = Timing.of(meter, blocks).reading(METRIC, promise=_PROMISE)
    return [msgspec.structs.replace(reading, rival=unit_us, note=_launches(subject, rival, device))]


def _timers(subject: Subject) -> tuple[str | None, str | None]:
    """The timers for both in a fresh process: those of its parent."""
    ours, _, theirs = subject.stored_timers.get(METRIC, "").partition(_BESIDE)
    return ours or None, theirs or None


def _by_turns(ours: Meter, theirs: Meter, unit_us: float) -> Meter:
    def block() -> float | None:
        read = [meter.block() for meter in (ours, theirs, theirs, ours)]
        first, second, third, fourth = (us or math.nan for us in read)
        ratio = math.sqrt(first * fourth / (second * third))
        return None if math.isnan(ratio) else unit_us * ratio

    return Meter(
        f"{ours.timer}{_BESIDE}{theirs.timer}",
        block,
        floor_us=max(ours.floor_us, theirs.floor_us),
        samples=ours.samples,
        bytes=ours.bytes + theirs.bytes,
        in_pass=1,
    )


def _launches(subject: Subject, rival: Workload, device: Device) -> str:
    """Text on the launches that the candidate makes beyond the rival's; empty if it makes no more."""
    if not device.asynchronous:
        return ""
    ours, theirs = len(subject.activity(device).launches), len(device.activity(rival.run).launches)
    return f"{ours} launches, its rival {theirs}" if ours > theirs else ""
