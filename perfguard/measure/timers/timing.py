"""The records of all timers, and the interface of a timer module."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from perfguard.model.records import Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

Cache = Literal["cold", "warm"]

# Factors from MAD to SD for normal data, and from the mean's standard error to the median's.
_MAD_TO_SD = 1.4826
_MEDIAN_TO_MEAN = 1.2533

# No known device clock resolves a smaller change, even with a finer event grid.
_LEAST_FLOOR_US = 0.05


@dataclass(frozen=True)
class Workload:
    """The subject of a timer: one pass of one guarded call.

    Attributes:
        run: runs the pass once.
        cache: state of the last-level cache when a timed call starts.
        copies: `copies(n)` returns n calls like `run`, each on its own copy of the inputs with the same strides,
            alignment and shared memory (the first may be `run` itself); None if the inputs cannot be copied.
        bytes: device memory that one call touches: its inputs and outputs, each storage once; 0 if unknown.
        warmed: after warm-up, the time of one call with its wait, µs (`timers.blocks.warmed_up`); empty before.
    """

    run: Callable[[], object]
    cache: Cache = "cold"
    copies: Callable[[int], Sequence[Callable[[], object]]] | None = None
    bytes: int = 0
    warmed: list[float] = field(default_factory=list, compare=False, repr=False)


@dataclass(frozen=True)
class Blocks:
    """Times of blocks (`Meter.block`), µs per call, and the number of rejected blocks."""

    times: tuple[float, ...]
    rejected: int


@dataclass(frozen=True)
class Meter:
    """A timer that is ready for one workload: compiled, warmed up, captured, and tested by a first block.

    Attributes:
        timer: the method's id, e.g. `queue-cold`. It is part of the reading's key, so times with different ids are
            never compared.
        block: measures one block (about 10 ms) and returns its time as the device ran it, µs per call; None if the
            block could not be read. Blocks of several meters may alternate on one device.
        floor_us: the smallest change of the time that this timer can resolve, µs.
        note: a remark on an unusual property of the method; usually empty.
        clock_mhz: the mean clock of the device's processors during the last block, MHz; None if unknown.
        near: if above 0, only the lowest blocks count, since other work can only lengthen blocks. They must agree to
            within this, relative to the lowest (`blocks.agree`).
    """

    timer: str
    block: Callable[[], float | None]
    floor_us: float
    note: str = ""
    clock_mhz: Callable[[], float | None] = lambda: None
    near: float = 0.0

    def reading(self, metric: str, blocks: Blocks, *, promise: float, floor: float = 0.0) -> Reading:
        """The session's reading of a timed metric: the median of `blocks`.

        Args:
            floor: changes below this, µs, do not matter even if they can be resolved. If it is a large part of the
                time, it raises the promise (the ladder fails from a third of the promise).
        """
        value_us = statistics.median(blocks.times)
        return Reading(
            metric,
            Unit.MICROSECONDS,
            value_us,
            timer=self.timer,
            blocks=list(blocks.times),
            rejected_blocks=blocks.rejected,
            spread=spread(blocks.times),
            promise=max(promise, 3 * floor / value_us),
            floor=max(floor, self.floor_us),
            drifts=True,
            note=self.note,
        )


def spread(blocks: Sequence[float]) -> float:
    """Relative standard error of the median of `blocks`: 1.4826·MAD(ln blocks)·1.2533/√B; 0 for one block."""
    logs = [math.log(block) for block in blocks]
    center = statistics.median(logs)
    deviation = statistics.median(abs(log - center) for log in logs)
    return _MAD_TO_SD * deviation * _MEDIAN_TO_MEAN / math.sqrt(len(logs))


def floor_us(grid_us: float, calls: int) -> float:
    """Smallest change of one call's time that a clock with this grid resolves, µs: two steps divided by the calls."""
    return max(_LEAST_FLOOR_US, 2 * grid_us / calls)


class Timer(Protocol):
    """The interface of a timer module for device time.

    Attributes:
        RANK: place in the order of preference, the lowest first: 10 (`graph`), 30 (`profiler`), 40 (`queue`) and
            60 (`cpu`).
    """

    RANK: float

    def suits(self, device: Device) -> bool:
        """Whether the timer works on this kind of device."""

    def understands(self, timer: str) -> bool:
        """Whether `timer` is an id that this module wrote."""

    def prepare(self, workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
        """A meter for `workload`; None if this timer cannot time it, so that the next one is tried.

        Args:
            seconds: limit for all blocks together.
            stored: timer id of the baseline, to be reproduced.
        """
