"""Times at one clock: most of what differs between two sessions on one GPU is the clock of its processors.

Under a power cap, or after a rest, a GPU runs at 1300 to 1980 MHz and tells nobody when it will. Within a process ln t
is nearly a straight line in ln f: its slope -e is -1 for a product on tensor cores, 0 for a copy. Some bend, as if from
one clock on the processors waited for the memory. So when a timer is chosen, e is read off the case, on both sides of a
reference clock where they differ, and from then on every sample's time is given as it would be at that clock:
t·(f / reference)^e. The numbers belong to the timer's id, `graph-cold-u8-r1-c1530-e98` (1530 MHz, e = 0.98) or
`…-e98-h71` (0.71 at higher clocks), and are never fitted anew: a slower candidate would otherwise change what its time
means. An id without them stands for times as they were read.
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

_ID = re.compile(r"(?P<timer>.+)-c(?P<mhz>[1-9]\d{0,4})-e(?P<below>\d{1,3})(?:-h(?P<above>\d{1,3}))?")
_MOST = 1.1  # no call gains more than the clock does; the rest is for the error of the fit
_BLOCKS = 3  # of each kind, hot and rested
_BEFORE_US = 20_000.0  # how long the device is heated, or rests, before a block: its power control takes about as long
_LONGER_US = 250_000.0  # how long it is heated where that left the clock as it was: it had rested before
_LEAST_RANGE = 0.03  # of ln f: below, a slope would be mostly noise
_LEAST_HALF = 5  # stretches on one side of the reference clock that give a slope of their own
_LEAST_BEND = 0.1  # of e: two slopes that differ by less are one, and its error is smaller
_NEAR = 0.1  # of ln f round the reference: there sessions run, and what a rested device does is another line
_ENOUGH_US = 500_000.0  # a call so long that its blocks take more averages over the clock by itself

_Point = tuple[float, float]  # ln f, ln t


@dataclass(frozen=True)
class Correction:
    """From a block's times and clocks to its time at the reference clock."""

    mhz: int
    below: int  # 100·e, at lower clocks than that
    above: int

    def __str__(self) -> str:
        return f"c{self.mhz}-e{self.below}" + (f"-h{self.above}" if self.above != self.below else "")

    def us(self, block: Clocked) -> float | None:
        """µs per call at the reference clock; None for a block whose clock nobody told."""
        times: list[float] = []
        for stretch in block.stretches:
            if stretch.mhz is None:
                return None
            percent = self.below if stretch.mhz < self.mhz else self.above
            factor = (stretch.mhz / self.mhz) ** (percent / 100)
            times += [factor * us for us in stretch.us]
        return block.middle(times)


def split(timer: str | None) -> tuple[str | None, Correction | None]:
    """The id of the timer proper, and the correction that it carries."""
    match = _ID.fullmatch(timer or "")
    if match is None:
        return timer, None
    below, above = int(match["below"]), int(match["above"] or match["below"])
    if max(below, above) > 100 * _MOST:
        return timer, None
    return match["timer"], Correction(int(match["mhz"]), below, above)


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

    The sides of that clock have their own e where both hold enough stretches, at clocks far enough apart, and differ.
    """
    points = _points(blocks)
    if _range(points) < _LEAST_RANGE:
        return None
    middle = statistics.median(x for x, _ in points)
    near = [point for point in points if abs(point[0] - middle) <= _NEAR]
    near = near if _range(near) >= _LEAST_RANGE else points
    sides = [point for point in near if point[0] <= middle], [point for point in near if point[0] >= middle]
    told = [side for side in sides if len(side) >= _LEAST_HALF and _range(side) >= _LEAST_RANGE / 2]
    slopes = [_elasticity(side) for side in told]
    if len(slopes) < len(sides) or abs(slopes[0] - slopes[1]) < _LEAST_BEND:
        slopes = [_elasticity(near)] * len(sides)
    percents = [round(100 * min(max(e, 0.0), _MOST)) for e in slopes]
    return Correction(round(math.exp(middle)), *percents) if any(percents) else None


def _points(blocks: Sequence[Clocked]) -> list[_Point]:
    return [
        (math.log(stretch.mhz), math.log(statistics.median(stretch.us)))
        for block in blocks
        for stretch in block.stretches
        if stretch.mhz is not None
    ]


def _elasticity(points: Sequence[_Point]) -> float:
    """The median of the slopes between any two points (Theil, Sen), each weighted by how far their clocks lie apart."""
    slopes = sorted(
        ((other_y - y) / (x - other_x), abs(x - other_x))
        for index, (x, y) in enumerate(points)
        for other_x, other_y in points[:index]
        if x != other_x
    )
    passed = list(itertools.accumulate(weight for _, weight in slopes))
    return slopes[bisect.bisect_left(passed, passed[-1] / 2)][0]


def _range(points: Sequence[_Point]) -> float:
    """Of ln f, without a tenth of the points at either end; 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    tenths = statistics.quantiles((x for x, _ in points), n=10, method="inclusive")
    return tenths[-1] - tenths[0]


def _observed(meter: Meter, device: Device) -> list[Clocked]:
    """Blocks at low clocks, behind work that takes all the power, and at high ones, behind a rest."""
    assert meter.clocked is not None
    found: list[Clocked] = []
    measured_us = 0.0
    for prepare, before_us in ((device.heat, _BEFORE_US), (device.sleep, _BEFORE_US), (device.heat, _LONGER_US)):
        if before_us == _LONGER_US and _range(_points(found)) >= _LEAST_RANGE:
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
