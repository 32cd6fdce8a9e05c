"""What all timers share: warming up, blocks, when to stop, when to drop a block."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from perfguard.collector import collector_paused
from perfguard.errors import MeasurementError
from perfguard.timing.floor import floor, is_reached
from perfguard.timing.timing import Blocks, Meter, Workload, spread

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

LEAST_BLOCKS = 3
MOST_BLOCKS = 9
MOST_REJECTED = 3
SAMPLE_US = 1_000.0  # a sample of short calls holds so many of them that it lasts this long
_BLOCK_US = 10_000.0
_LONGEST_BLOCK_US = 25_000.0
_ENOUGH_US = 100_000.0
_LEAST_SAMPLES = 5
_MOST_SAMPLES = 500  # their median is good to 0.1 % where single calls scatter by 2 %
_WARM_UP_US = 25_000.0
_WARM_UP_CALLS = 5
_MOST_WARM_UP_CALLS = 50_000
_ODD_BLOCK = 0.015  # a block this far off the others asks for a look at the device
_LONGEST_SAMPLE_US = 100_000.0

# In the words of every vendor: what says that the device is slower than it should be. A power cap is not
# among them: it is the normal state of tensor-core work, and a filter on it discards everything.
_SLOWED_DOWN = ("thermal", "hardware", "hw_", "brake", "reliability", "prochot")
_POWER_CAP = ("power_cap", "power cap", "power-cap")


def warm_up(call: Callable[[], object], device: Device, seconds: float, least_us: float = _WARM_UP_US) -> float:
    """Call until `least_us` and 5 calls are over, or `seconds` are; returns one waited-for call's time, µs."""
    times: list[float] = []
    started = now = device.now_us()
    while True:
        call()
        device.synchronize()
        times.append(device.now_us() - now)
        now = device.now_us()
        enough = len(times) >= _WARM_UP_CALLS and now - started >= least_us
        if enough or now - started >= 1e6 * seconds or len(times) >= _MOST_WARM_UP_CALLS:
            return statistics.median(times[len(times) // 2 :])


def warmed_up(workload: Workload, call: Callable[[], object], device: Device, seconds: float) -> float:
    """`warm_up` with `call`, once for all timers of a workload; what a waited-for call took then, µs.

    Of several timers that are asked in turn, and of those of device and host time, only the first finds it cold.
    """
    if not workload.warmed:
        workload.warmed.append(warm_up(call, device, seconds))
    return workload.warmed[0]


def power_of_two(count: float, most: int) -> int:
    """The smallest power of two >= `count`, in [1, most]: an id must not change with every measurement."""
    return int(min(most, 2 ** math.ceil(math.log2(max(1.0, count)))))


def calls_in_sample(calls: int, call_us: float) -> int:
    """`calls`, unless a sample of so many would last for ever.

    The number of calls in a sample belongs to the timer's id, and a slower candidate must not change it. One
    that became so slow that a sample takes 100 ms is timed over fewer calls under the same id: what a clock
    adds to a sample is lost in 100 ms either way.
    """
    return max(1, min(calls, int(_LONGEST_SAMPLE_US / max(call_us, 1e-3))))


def samples_in_block(sample_us: float, seconds: float, longest_us: float = _LONGEST_BLOCK_US) -> int:
    """How many samples fill a block of 10 ms, so that the least number of blocks fits into `seconds`.

    Five at least, as long as the block then lasts no longer than `longest_us`: on a device that works by itself a
    sample of 10 ms has averaged over everything that a block of five would.
    """
    sample_us = max(sample_us, 1e-3)
    least = min(_LEAST_SAMPLES, longest_us / sample_us)
    wanted = int(min(_MOST_SAMPLES, max(1, least, math.ceil(_BLOCK_US / sample_us))))
    return max(1, min(wanted, int(1e6 * seconds / (LEAST_BLOCKS * sample_us))))


def budget_us(device: Device, seconds: float) -> float:
    """Time for the blocks of one metric, µs: `seconds`, and no more than a tenth of one on a device of its own.

    There, what more blocks of the same process agree on is not what other processes find, and time is dear.
    """
    return min(1e6 * seconds, _ENOUGH_US) if device.asynchronous else 1e6 * seconds


class Collect(Protocol):
    """How the blocks of a metered quantity are gathered; another process may conduct them."""

    def __call__(self, metric: str, meter: Meter, device: Device, seconds: float) -> Blocks:
        """The blocks of `metric`, at least one.

        Args:
            seconds: most time for all blocks, on the host's clock.

        Raises:
            MeasurementError: not one block could be read.
        """


def collect(metric: str, meter: Meter, device: Device, seconds: float) -> Blocks:
    """Blocks one after the other: until their median is settled or the time (`budget_us`) is over, at least three.
    Where the lowest count, until these agree.

    A block that could not be read, and one that `read_block` rejects, is measured again, at most 3 times.

    Raises:
        MeasurementError: not one block could be read.
    """
    times: list[float] = []
    rejected = 0
    most_us = budget_us(device, seconds)
    started = device.now_us()
    with collector_paused():
        while (meter.lowest or len(times) < MOST_BLOCKS) and rejected < MOST_REJECTED:
            block_us = read_block(meter, device, times)
            if block_us is None:
                rejected += 1
                continue
            times.append(block_us)
            spent_us = device.now_us() - started
            next_us = spent_us / (len(times) + rejected)
            settled = is_reached(times) if meter.lowest else spread(times) < meter.settled
            if len(times) >= LEAST_BLOCKS and (settled or spent_us + next_us > most_us):
                break
    return checked(metric, meter, times, rejected)


def read_block(meter: Meter, device: Device, others: Sequence[float]) -> float | None:
    """One block's time, µs per call; None where it is to be rejected: not readable, or throttled.

    Throttled is a block 1.5 % off the `others`, on a device that says it is slowed down by heat or hardware.
    The device is only asked about odd blocks: asking may take a tenth of a second.
    """
    block_us = meter.block()
    if block_us is None or (_odd(block_us, others) and slowed_down(device)):
        return None
    return block_us


def checked(metric: str, meter: Meter, times: Sequence[float], rejected: int) -> Blocks:
    """The blocks that count, of `times` in the order of measuring.

    Raises:
        MeasurementError: not one block could be read.
    """
    if not times:
        raise MeasurementError(
            f"{metric}: {rejected} blocks by {meter.timer} and none could be read; look for other processes "
            "on the device (`perfguard doctor`), then run the case again"
        )
    return Blocks(floor(times) if meter.lowest else tuple(times), rejected)


def _odd(block_us: float, others: Sequence[float]) -> bool:
    return bool(others) and abs(math.log(block_us / statistics.median(others))) > _ODD_BLOCK


def slowed_down(device: Device) -> bool:
    """Whether the device says that heat or hardware protection slows it down now; a power cap is none."""
    reasons = [reason.lower() for reason in device.conditions().throttle_reasons]
    return any(
        any(word in reason for word in _SLOWED_DOWN)
        for reason in reasons
        if not any(word in reason for word in _POWER_CAP)
    )
