"""Times at one clock: most of what differs between two sessions on one GPU is the clock of its processors.

Under a power cap, or after a rest, a GPU runs at 1300 to 1980 MHz and tells nobody when it will. Within a process ln t
is a straight line in ln f: its slope -e is -1 for a product on tensor cores, 0 for a copy. So when a timer is chosen,
e is read off the case, and from then on every block's time is given as it would be at one clock:
t·(f / reference)^e. Both numbers belong to the timer's id, `graph-cold-u8-r1-c1530-e98` (1530 MHz, e = 0.98), and are
never fitted anew: a slower candidate would otherwise change what its time means. An id without them stands for times as
they were read.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfguard.collector import collector_paused
from perfguard.timing.timing import Clocked, Meter

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

_ID = re.compile(r"(?P<timer>.+)-c(?P<mhz>[1-9]\d{0,4})-e(?P<percent>\d{1,3})")
_MOST = 1.1  # no call gains more than the clock does; the rest is for the error of the fit
_BLOCKS = 3  # of each kind, hot and rested
_BEFORE_US = 20_000.0  # how long the device is heated, or rests, before a block: its power control takes about as long
_LONGER_US = 250_000.0  # how long it is heated where that left the clock as it was: it had rested before
_LEAST_RANGE = 0.03  # of ln f: below, a slope would be mostly noise
_ENOUGH_US = 500_000.0  # a call so long that its blocks take more averages over the clock by itself


@dataclass(frozen=True)
class Correction:
    """From a block's times and clocks to its time at the reference clock."""

    mhz: int
    percent: int  # 100·e

    def __str__(self) -> str:
        return f"c{self.mhz}-e{self.percent}"

    def us(self, block: Clocked) -> float | None:
        """µs per call at the reference clock, the median of the samples; None for a block whose clock nobody told."""
        times: list[float] = []
        for stretch in block.stretches:
            if stretch.mhz is None:
                return None
            factor = (stretch.mhz / self.mhz) ** (self.percent / 100)
            times += [factor * us for us in stretch.us]
        return statistics.median(times)


def split(timer: str | None) -> tuple[str | None, Correction | None]:
    """The id of the timer proper, and the correction that it carries."""
    match = _ID.fullmatch(timer or "")
    if match is None or int(match["percent"]) > 100 * _MOST:
        return timer, None
    return match["timer"], Correction(int(match["mhz"]), int(match["percent"]))


def at_one_clock(meter: Meter, device: Device, stored: str | None) -> Meter:
    """`meter` with its times at the reference clock that `stored` names; chosen here where nothing is stored.

    Unchanged where its timer reads no clock, where the clock explains nothing, and where `stored` is the id of another
    timer or of times as they are read.
    """
    if meter.clocked is None or device.clock_mark() is None:
        return meter
    timer, correction = split(stored)
    if timer is None:
        with collector_paused():
            correction = fitted(_observed(meter, device))
    elif timer != meter.timer:
        return meter
    return meter if correction is None else _corrected(meter, correction)


def fitted(blocks: Sequence[Clocked]) -> Correction | None:
    """The correction that straightens `blocks`, at their median clock; None where the clock hardly moved, or e is 0.

    e is the median of the slopes between any two stretches (Theil, Sen), each weighted by how far their clocks lie
    apart: one block behind a rest holds many clocks.
    """
    points = [
        (math.log(stretch.mhz), math.log(statistics.median(stretch.us)))
        for block in blocks
        for stretch in block.stretches
        if stretch.mhz is not None
    ]
    if _clock_range(blocks) < _LEAST_RANGE:
        return None
    clocks = [point[0] for point in points]
    slopes = sorted(
        ((y - other_y) / (x - other_x), abs(x - other_x))
        for index, (x, y) in enumerate(points)
        for other_x, other_y in points[:index]
        if x != other_x
    )
    passed = list(itertools.accumulate(weight for _, weight in slopes))
    slope = slopes[bisect.bisect_left(passed, passed[-1] / 2)][0]
    percent = round(100 * min(max(-slope, 0.0), _MOST))
    return Correction(round(math.exp(statistics.median(clocks))), percent) if percent else None


def _observed(meter: Meter, device: Device) -> list[Clocked]:
    """Blocks at low clocks, behind work that takes all the power, and at high ones, behind a rest."""
    assert meter.clocked is not None
    found: list[Clocked] = []
    measured_us = 0.0
    for prepare, before_us in ((device.heat, _BEFORE_US), (device.sleep, _BEFORE_US), (device.heat, _LONGER_US)):
        if before_us == _LONGER_US and _clock_range(found) >= _LEAST_RANGE:
            break
        for _ in range(_BLOCKS):
            prepare(before_us)
            started = device.now_us()
            block = meter.clocked()
            if block is not None:
                found.append(block)
            measured_us += device.now_us() - started
            if measured_us > _ENOUGH_US:
                return found
    return found


def _clock_range(blocks: Sequence[Clocked]) -> float:
    """Of ln f; 0 where nobody told the clock."""
    clocks = [math.log(stretch.mhz) for block in blocks for stretch in block.stretches if stretch.mhz is not None]
    return max(clocks) - min(clocks) if clocks else 0.0


def _corrected(meter: Meter, correction: Correction) -> Meter:
    clocked = meter.clocked
    assert clocked is not None

    def block() -> float | None:
        found = clocked()
        return None if found is None else correction.us(found)

    note = f"times are given at {correction.mhz} MHz"
    return replace(
        meter, timer=f"{meter.timer}-{correction}", block=block, note="; ".join(filter(None, (meter.note, note)))
    )
