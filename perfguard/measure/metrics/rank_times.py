"""The time of a call that several ranks make, each on its own device: the longest of their times.

It is shown and stored but not gated, because a gate would need the noise between sessions. All ranks read the same
value, from the data that they exchange.

Ids: `ranks-queue-cold-m12`, `ranks-queue-warm-m12`; `ranks-host-…` if a host cannot be kept ahead of its device, as in
a call that waits for its device: the time then includes the host's. `m`: the number of device barriers before the call.

Each call begins with a barrier of all hosts. Each device then sleeps until every host has enqueued its part, and passes
device barriers, which are exchanges of one number on the timed stream. Two events time each device's own part, so that
clocks of two devices are never compared. The devices leave the last barrier within a few µs of each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perfguard.measure import collector_paused
from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers.queue import event_grid_us
from perfguard.measure.timers.timing import Blocks, Cache, Meter, floor_us
from perfguard.model.limits import Limits
from perfguard.model.records import Across, Better, Reading
from perfguard.tensors.step import Step

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device, Within

TIMED = True

_TIME = "ranks_time_us"
LIMITS = {_TIME: Limits(Better.LOWER, gated=False)}

_WARM_UPS = 3
_TRIALS = 3  # If a host is ahead of its device in none of these calls, it waits for the device during the call.
_BLOCKS = 5
_LEAST_CALLS, _MOST_CALLS = 3, 20  # The limits are for one block.
_SHORTEST_SLEEP_US, _LONGEST_SLEEP_US = 500.0, 100_000.0
# After a sleep of 60 ms, the first four exchanges of two H200s took 111 to 217 µs, and later ones 9 µs; after 20 ms all
# took 9 µs (docs/results.md). In a training step the links are already awake.
_BARRIERS = 12


def read(subject: Subject, device: Device) -> list[Reading]:
    """`ranks_time_us`, the time of the slowest rank. Its note names that rank."""
    step, ranks = subject.run, subject.ranks
    if not subject.timed or not ranks.in_step or not isinstance(step, Step):
        return []
    import torch
    import torch.distributed as dist

    on_host, on_device = torch.zeros(1), torch.zeros(1, device=device.torch_device)
    timed = TimedRanks(  # The hosts' barrier uses gloo, the devices' their own backend.
        device,
        ranks.exchange,
        host_barrier=lambda: dist.all_reduce(on_host),
        device_barrier=lambda: dist.all_reduce(on_device),
        cache=subject.cache,
    )
    meter, blocks = measure(step.within, timed, subject.seconds)
    reading = meter.reading(_TIME, blocks, promise=LIMITS[_TIME].promise)
    return [msgspec.structs.replace(reading, gated=False, across=Across.EQUAL)]


class _TimedCall(NamedTuple):
    """One call on one rank."""

    us: float  # time on the device
    ahead: bool  # whether the host had enqueued everything before its device began
    host_us: float  # time that the host took to enqueue the call


@dataclass(frozen=True)
class TimedRanks:
    """One rank's view of the ranks that make a call.

    Attributes:
        exchange: gathers the data of all ranks, by rank.
        host_barrier: returns once every host has called it.
        device_barrier: enqueues an exchange that no device leaves before all have reached it.
        sleep_us: the devices' sleep while hosts enqueue.
    """

    device: Device
    exchange: Callable[[str, object], list[Any]]
    host_barrier: Callable[[], object]
    device_barrier: Callable[[], object]
    cache: Cache = "cold"
    sleep_us: float = _SHORTEST_SLEEP_US

    def time(self, within: Within) -> _TimedCall:
        """Time one call, whose timed part all devices begin within a few µs of each other."""
        device, turns = self.device, list[tuple[bool, float]]()
        asleep, start, end = device.event(), device.event(), device.event()

        @contextmanager
        def timed_part() -> Iterator[None]:
            device.synchronize()
            self.host_barrier()
            began_us = device.now_us()
            device.sleep(self.sleep_us)
            asleep.record()
            if self.cache == "cold":
                device.flush_cache()
            for _ in range(_BARRIERS):
                self.device_barrier()
            start.record()
            yield
            end.record()
            turns.append((not asleep.query(), device.now_us() - began_us))

        within(timed_part())
        device.synchronize()
        return _TimedCall(start.elapsed_us(end), *turns[0])


def measure(within: Within, ranks: TimedRanks, seconds: float) -> tuple[Meter, Blocks]:
    """The meter and the blocks of a call's time, equal on all ranks. All ranks make equally many calls.

    The meter's note names the rank that takes the longest, and says if hosts were not ahead of their devices. The meter
    measures no further blocks.

    Args:
        within: makes the call, and holds the given context during the part that is timed.
        seconds: limit for the timed calls, estimated from the last warm-up call.
    """
    device = ranks.device
    with collector_paused():
        for _ in range(_WARM_UPS):
            started_us = device.now_us()
            warm = ranks.time(within)
        by_rank = ranks.exchange("the time of a call", [warm.host_us, device.now_us() - started_us])
        host_us, call_us = (max(times) for times in zip(*by_rank, strict=True))
        ranks = replace(ranks, sleep_us=min(_LONGEST_SLEEP_US, max(_SHORTEST_SLEEP_US, 2 * host_us)))
        trials = ranks.exchange("whether hosts are ahead", [ranks.time(within).ahead for _ in range(_TRIALS)])
        ahead = all(any(own) for own in trials)
        calls = int(1e6 * seconds / (_BLOCKS * (call_us + ranks.sleep_us)))
        calls = max(_LEAST_CALLS, min(_MOST_CALLS, calls))
        grid_us = max(ranks.exchange("the step of the clock", event_grid_us(device)))
        blocks = [_block(within, ranks, calls, grid_us) for _ in range(_BLOCKS)]
    slowest = max(range(len(by_rank)), key=lambda rank: sum(counts[rank] for _, counts, _ in blocks))
    behind = sum(count for _, _, count in blocks)
    notes = [f"rank {slowest} takes the longest"]
    if not ahead:
        notes.append("hosts wait for their devices during the call: the time includes theirs")
    elif behind:
        notes.append(f"a host was behind its device in {behind} of {_BLOCKS * calls} calls")
    timer = f"ranks-{'queue' if ahead else 'host'}-{ranks.cache}-m{_BARRIERS}"
    meter = Meter(timer, lambda: None, floor_us(grid_us, 1), note="; ".join(notes))
    return meter, Blocks(tuple(us for us, _, _ in blocks), 0)


def _block(within: Within, ranks: TimedRanks, calls: int, grid_us: float) -> tuple[float, list[int], int]:
    """The median over `calls` calls of the slowest rank's time, µs; per rank the number of calls in which it was the
    slowest; the number of calls in which a host was behind its device."""
    by_rank = ranks.exchange("the times of a block", [ranks.time(within)[:2] for _ in range(calls)])
    turns = list(zip(*by_rank, strict=True))  # call -> rank -> (µs, ahead)
    slowest = [max(range(len(turn)), key=lambda rank: turn[rank][0]) for turn in turns]
    worst = [max(us for us, _ in turn) for turn in turns]
    behind = sum(not all(ahead for _, ahead in turn) for turn in turns)
    return max(statistics.median(worst), grid_us), [slowest.count(rank) for rank in range(len(by_rank))], behind
