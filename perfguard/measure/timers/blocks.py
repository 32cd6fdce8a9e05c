"""Common parts of all timers: warm-up, blocks, when to stop, when to reject a block."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfguard.measure import collector_paused
from perfguard.measure.timers.timing import Blocks, Meter, Workload, spread
from perfguard.model.errors import MeasurementError

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

_LEAST_BLOCKS = 3
_MOST_BLOCKS = 9
_MOST_REJECTED = 3
_SETTLED = 0.001  # Below this relative standard error of the median no more blocks are needed.
SAMPLE_US = 1_000.0  # A sample of short calls holds enough calls to last this long.
_BLOCK_US = 10_000.0
_LONGEST_BLOCK_US = 25_000.0
_ENOUGH_US = 100_000.0
_LEAST_SAMPLES = 5
_MOST_SAMPLES = 500  # Their median is accurate to 0.1 % if single calls scatter by 2 %.
_WARM_UP_US = 25_000.0
_WARM_UP_CALLS = 5
_MOST_WARM_UP_CALLS = 50_000
_ODD_BLOCK = 0.015  # A block this far off the others leads to a check of the device.
_LONGEST_SAMPLE_US = 100_000.0
AGREEING = 3  # So many blocks must agree on the floor of a time.
LEAST_FOR_FLOOR = 8  # So many blocks are needed before the floor can be accepted.

# Parts of the vendors' throttle reasons that mean an abnormal slowdown. A power cap is normal for tensor-core work, and
# rejecting it would reject every block.
_SLOWED_DOWN = ("thermal", "hardware", "hw_", "brake", "reliability", "prochot")
_POWER_CAP = ("power_cap", "power cap", "power-cap")


def warm_up(call: Callable[[], object], device: Device, seconds: float, least_us: float = _WARM_UP_US) -> float:
    """Call for `least_us` and at least 5 times, but no longer than `seconds`; returns the time of one call with its
    wait, µs."""
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
    """Run `warm_up` once for all timers of a workload; returns the time of one call with its wait, µs.

    Several timers may be tried, for device and for host time, and only the first finds the workload cold.
    """
    if not workload.warmed:
        workload.warmed.append(warm_up(call, device, seconds))
    return workload.warmed[0]


def power_of_two(count: float, most: int) -> int:
    """The smallest power of two >= `count`, in [1, most]: an id should not change with every measurement."""
    return int(min(most, 2 ** math.ceil(math.log2(max(1.0, count)))))


def calls_in_sample(calls: int, call_us: float) -> int:
    """`calls`, or fewer if a sample would last longer than 100 ms.

    The number of calls in a sample belongs to the timer's id, which a slower candidate must not change. A candidate
    whose sample would take more than 100 ms is timed over fewer calls under the same id: the overhead of reading
    clocks is negligible in 100 ms either way.
    """
    return max(1, min(calls, int(_LONGEST_SAMPLE_US / max(call_us, 1e-3))))


def samples_in_block(sample_us: float, seconds: float, longest_us: float = _LONGEST_BLOCK_US) -> int:
    """Number of samples in a block of 10 ms, such that the least number of blocks fits into `seconds`.

    At least five, unless the block would then last longer than `longest_us`: on an asynchronous device, a sample of
    10 ms already averages over the same noise as a block of five.
    """
    sample_us = max(sample_us, 1e-3)
    least = min(_LEAST_SAMPLES, longest_us / sample_us)
    wanted = int(min(_MOST_SAMPLES, max(1, least, math.ceil(_BLOCK_US / sample_us))))
    return max(1, min(wanted, int(1e6 * seconds / (_LEAST_BLOCKS * sample_us))))


def lowest(times: Sequence[float]) -> tuple[float, ...]:
    """The lowest three blocks, or fewer, ascending. Their median is the floor of a time that other work can only
    lengthen.

    On a shared processor the CPU time of a process grows by half or threefold while others use its caches, its memory
    or, below a hypervisor, the processor itself. This happens in bursts of seconds, which the lowest blocks miss.
    """
    return tuple(sorted(times)[:AGREEING])


def agree(times: Sequence[float], near: float) -> bool:
    """Whether the lowest blocks agree to within `near`, relative to the lowest, and enough blocks were read."""
    floor = lowest(times)
    return len(times) >= LEAST_FOR_FLOOR and floor[-1] <= (1 + near) * floor[0]


def budget_us(device: Device, seconds: float) -> float:
    """Time for the blocks of one metric, µs: `seconds`, but at most a tenth of a second on an asynchronous device.

    On such a device, more blocks of one process bring its time no closer to that of other processes.
    """
    return min(1e6 * seconds, _ENOUGH_US) if device.asynchronous else 1e6 * seconds


#: A function like `collect`, which collects the blocks of a meter for a metric. Another process may direct it.
Collect = Callable[[str, Meter, "Device", float], Blocks]


def collect(metric: str, meter: Meter, device: Device, seconds: float) -> Blocks:
    """Measure at least three blocks, until their median is settled or the time (`budget_us`) is over. With a meter's
    `near`, measure until the lowest blocks agree.

    Blocks that `read_block` rejects are measured again, at most 3 times.

    Args:
        seconds: limit for all blocks together, on the host's clock.

    Raises:
        MeasurementError: no block could be read.
    """
    times: list[float] = []
    rejected = 0
    most_us = budget_us(device, seconds)
    started = device.now_us()
    with collector_paused():
        while (meter.near or len(times) < _MOST_BLOCKS) and rejected < _MOST_REJECTED:
            block_us = read_block(meter, device, times)
            if block_us is None:
                rejected += 1
                continue
            times.append(block_us)
            spent_us = device.now_us() - started
            next_us = spent_us / (len(times) + rejected)
            settled = agree(times, meter.near) if meter.near else spread(times) < _SETTLED
            if len(times) >= _LEAST_BLOCKS and (settled or spent_us + next_us > most_us):
                break
    return checked(metric, meter, times, rejected)


def read_block(meter: Meter, device: Device, others: Sequence[float]) -> float | None:
    """One block's time, µs per call; None if it is rejected as unreadable or throttled.

    A block is throttled if it is 1.5 % off the `others` and the device reports a slowdown by heat or hardware. The
    device is queried only after such a block, since a query may take a tenth of a second.
    """
    block_us = meter.block()
    if block_us is None or not others or abs(math.log(block_us / statistics.median(others))) <= _ODD_BLOCK:
        return block_us
    return None if slowed_down(device) else block_us


def checked(metric: str, meter: Meter, times: Sequence[float], rejected: int) -> Blocks:
    """The blocks of a reading, selected from `times`, which are in the order of measurement.

    Raises:
        MeasurementError: no block could be read.
    """
    if not times:
        raise MeasurementError(
            f"{metric}: {rejected} blocks by {meter.timer} and none could be read; look for other processes "
            "on the device (`perfguard doctor`), then run the case again"
        )
    return Blocks(lowest(times) if meter.near else tuple(times), rejected)


def slowed_down(device: Device) -> bool:
    """Whether the device reports a slowdown by heat or hardware protection. A power cap does not count."""
    reasons = [reason.lower() for reason in device.conditions().throttle_reasons]
    return any(
        any(word in reason for word in _SLOWED_DOWN)
        for reason in reasons
        if not any(word in reason for word in _POWER_CAP)
    )
