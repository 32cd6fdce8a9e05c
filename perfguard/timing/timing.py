"""What every timer returns, and the interface that a timer module has."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from perfguard.records import Reading
from perfguard.units import Unit

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

Cache = Literal["cold", "warm"]

# Of MAD to SD for normal data, and of the median's standard error to the mean's.
_MAD_TO_SD = 1.4826
_MEDIAN_TO_MEAN = 1.2533

# No device clock that we know of resolves a change of less than this, whatever its event grid.
_LEAST_FLOOR_US = 0.05


@dataclass(frozen=True)
class Blocks:
    """Times of blocks (`Meter.block`), µs per call, and how many blocks were dropped."""

    times: tuple[float, ...]
    rejected: int


@dataclass(frozen=True)
class Timing:
    """One timed quantity of one case in one session.

    Attributes:
        timer: the method, e.g. `queue-cold`; times under different timers are never compared.
        blocks: times of blocks, µs per call, in the order of measuring; at least one.
        rejected: blocks dropped because the device was throttled.
        floor_us: the smallest change of the time that this timer can tell, µs.
        samples: samples per block.
        note: what a reader must know about the method; empty for the usual.
        bytes: about how much device memory stays allocated while the meter lives.
    """

    timer: str
    blocks: tuple[float, ...]
    rejected: int
    floor_us: float
    samples: int
    note: str = ""

    @classmethod
    def of(cls, meter: Meter, blocks: Blocks) -> Timing:
        """What `meter` read in `blocks`."""
        return cls(meter.timer, blocks.times, blocks.rejected, meter.floor_us, meter.samples, meter.note)

    @property
    def value_us(self) -> float:
        """The session's value, µs per call: the median of the blocks."""
        return statistics.median(self.blocks)

    @property
    def spread(self) -> float:
        """Standard error of `value_us` within the session, relative."""
        return spread(self.blocks)

    def reading(self, metric: str, *, promise: float, floor: float = 0.0) -> Reading:
        """The session's reading of a timed metric. `floor`, µs: smaller changes do not matter even where they
        can be told; where it is much of the time, the promise is what it allows (the ladder fails from a third
        of the promise)."""
        return Reading(
            metric,
            Unit.MICROSECONDS,
            self.value_us,
            timer=self.timer,
            blocks=list(self.blocks),
            rejected_blocks=self.rejected,
            spread=self.spread,
            promise=max(promise, 3 * floor / self.value_us),
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


def renewed(reading: Reading, blocks: Blocks) -> Reading:
    """A timed reading with other blocks of the same timer: what more passes of the same session gave."""
    return msgspec.structs.replace(
        reading,
        value=statistics.median(blocks.times),
        blocks=list(blocks.times),
        rejected_blocks=blocks.rejected,
        spread=spread(blocks.times),
    )


def floor_us(grid_us: float, calls: int) -> float:
    """Smallest change of one call's time that a clock of this grid tells, µs: two steps over the calls."""
    return max(_LEAST_FLOOR_US, 2 * grid_us / calls)


@dataclass(frozen=True)
class Workload:
    """What a timer times: one pass of one guarded call.

    Attributes:
        run: does the pass once.
        cache: state of the last-level cache when a timed call starts.
        copies: `copies(n)` gives n calls like `run`, each on a copy of the inputs of its own with the same strides,
            alignment and shared memory (the first may be `run` itself); None where the inputs cannot be copied.
        bytes: device memory that one call touches: its inputs and outputs, each storage once; 0 if unknown.
        warmed: once it is warmed up, what a waited-for call took, µs (`perfguard.timing.blocks.warmed_up`).
    """

    run: Callable[[], object]
    cache: Cache = "cold"
    copies: Callable[[int], Sequence[Callable[[], object]]] | None = None
    bytes: int = 0
    warmed: list[float] = field(default_factory=list, compare=False, repr=False)


def unknown_clock() -> float | None:
    """The clock where nobody tells it."""
    return None


@dataclass(frozen=True)
class Meter:
    """A timer that stands ready for one workload: compiled, warmed up, captured, proven by a first block.

    Attributes:
        timer: the method's id; belongs to the key of the reading.
        block: measures one block (about 10 ms) and returns its time as the device ran it, µs per call; None where
            this block could not be read. Blocks of several meters may alternate on one device.
        floor_us: the smallest change of the time that this timer can tell, µs.
        samples: samples per block.
        note: what a reader must know about the method; empty for the usual.
        bytes: about how much device memory stays allocated while the meter lives.
        settled: relative standard error of the blocks' median below which more blocks tell nothing new.
        in_pass: blocks in each pass of a session that passes over its cases several times.
        clock_mhz: the mean clock of the device's processors during the last block, MHz; None where nobody tells.
        lowest: other work lengthens blocks and never shortens them: the lowest count (`perfguard.timing.floor`).
    """

    timer: str
    block: Callable[[], float | None]
    floor_us: float
    samples: int
    note: str = ""
    bytes: int = 0
    settled: float = 0.001
    in_pass: int = 3
    clock_mhz: Callable[[], float | None] = unknown_clock
    lowest: bool = False


class Timer(Protocol):
    """What a timer module of device time has: a new timer is one file and its place in `TIMERS`."""

    def suits(self, device: Device) -> bool:
        """Whether the timer works on this kind of device."""

    def understands(self, timer: str) -> bool:
        """Whether `timer` is an id that this module wrote."""

    def prepare(self, workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
        """A meter for `workload`; None where this timer cannot time it, so that the next one is asked.

        Args:
            seconds: most time that the blocks will get.
            stored: id of the timer the baseline was read with, to be reproduced.
        """
