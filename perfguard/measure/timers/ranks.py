"""Time of a call that several ranks make together, each on its own device: the longest of their times.

Ids: `ranks-queue-cold-m12`, `ranks-queue-warm-m12`; `ranks-host-…` if a host cannot be kept ahead of its device, as in
a call that waits for its device: the time then includes the host's. `m`: how often devices meet before the call.

Before each call all hosts meet, each lets its device sleep until every host has enqueued its part, and the devices meet
in exchanges of one number on the stream that is timed. Each device then times its own part by two events; clocks of
two devices are never compared. The devices leave the last of these exchanges within some µs of each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from perfguard.measure.gc_pause import collector_paused
from perfguard.measure.timers.queue import event_grid_us
from perfguard.measure.timers.timing import Blocks, Cache, Meter, floor_us

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device, Within

_WARM_UPS = 3
_TRIALS = 3  # a host that is ahead of its device in none of them waits for it
_BLOCKS = 5
_LEAST_CALLS, _MOST_CALLS = 3, 20  # of a block
_SHORTEST_SLEEP_US, _LONGEST_SLEEP_US = 500.0, 100_000.0
# Two H200s that had slept for 60 ms exchanged one number in 111 to 217 us four times, and in 9 us from then on; after
# 20 ms at once (docs/results.md). A call in a training step finds its links at work.
_MEETINGS = 12


class _Turn(NamedTuple):
    """One call on one rank.

    Attributes:
        us: time on the device.
        ahead: whether the host had enqueued everything before its device began.
        host_us: time in which the host enqueued it.
    """

    us: float
    ahead: bool
    host_us: float


@dataclass(frozen=True)
class Ranks:
    """The ranks that make a call, as one of them sees them.

    Attributes:
        device: this rank's.
        exchange: everyone's data, by rank.
        meet_hosts: returns once every host has called it.
        meet_devices: enqueues an exchange that no device leaves before all have come to it.
        cache: state of the last-level cache when a timed call starts.
        sleep_us: how long devices sleep while hosts enqueue.
    """

    device: Device
    exchange: Callable[[str, object], list[Any]]
    meet_hosts: Callable[[], object]
    meet_devices: Callable[[], object]
    cache: Cache = "cold"
    sleep_us: float = _SHORTEST_SLEEP_US

    def time(self, within: Within) -> _Turn:
        """One call, whose timed part all devices begin at the same moment, as nearly as they can."""
        device, turns = self.device, list[tuple[bool, float]]()
        asleep, start, end = device.event(), device.event(), device.event()

        @contextmanager
        def together() -> Iterator[None]:
            device.synchronize()
            self.meet_hosts()
            began_us = device.now_us()
            device.sleep(self.sleep_us)
            asleep.record()
            if self.cache == "cold":
                device.flush_cache()
            for _ in range(_MEETINGS):
                self.meet_devices()
            start.record()
            yield
            end.record()
            turns.append((not asleep.query(), device.now_us() - began_us))

        within(together())
        device.synchronize()
        return _Turn(start.elapsed_us(end), *turns[0])


def measure(within: Within, ranks: Ranks, seconds: float) -> tuple[Meter, Blocks]:
    """The time of a call, in blocks, and how it was measured. The same on all ranks, which all make equally many calls.

    The meter's note names the rank that takes the longest, and tells whether hosts were ahead of their devices. It
    makes no further blocks.

    Args:
        within: makes the call, and holds the given context during the part that is timed.
        seconds: limit for the timed calls, as far as they all take as long as the first.
    """
    device = ranks.device
    with collector_paused():
        for _ in range(_WARM_UPS):
            started_us = device.now_us()
            warm = ranks.time(within)
        everyone = ranks.exchange("the time of a call", [warm.host_us, device.now_us() - started_us])
        host_us, call_us = (max(times) for times in zip(*everyone, strict=True))
        ranks = replace(ranks, sleep_us=min(_LONGEST_SLEEP_US, max(_SHORTEST_SLEEP_US, 2 * host_us)))
        trials = ranks.exchange("whether hosts are ahead", [ranks.time(within).ahead for _ in range(_TRIALS)])
        ahead = all(any(own) for own in trials)
        calls = int(1e6 * seconds / (_BLOCKS * (call_us + ranks.sleep_us)))
        calls = max(_LEAST_CALLS, min(_MOST_CALLS, calls))
        grid_us = max(ranks.exchange("the step of the clock", event_grid_us(device)))
        blocks = [_block(within, ranks, calls, grid_us) for _ in range(_BLOCKS)]
    slowest = max(range(len(everyone)), key=lambda rank: sum(counts[rank] for _, counts, _ in blocks))
    behind = sum(count for _, _, count in blocks)
    notes = [f"rank {slowest} takes the longest"]
    if not ahead:
        notes.append("hosts wait for their devices during the call: the time includes theirs")
    elif behind:
        notes.append(f"a host was behind its device in {behind} of {_BLOCKS * calls} calls")
    timer = f"ranks-{'queue' if ahead else 'host'}-{ranks.cache}-m{_MEETINGS}"
    meter = Meter(timer, lambda: None, floor_us(grid_us, 1), note="; ".join(notes))
    return meter, Blocks(tuple(us for us, _, _ in blocks), 0)


def _block(within: Within, ranks: Ranks, calls: int, grid_us: float) -> tuple[float, list[int], int]:
    """The median over `calls` calls of the time of the slowest rank, µs; how often each rank was the slowest; in how
    many calls a host was behind its device."""
    everyone = ranks.exchange("the times of a block", [ranks.time(within)[:2] for _ in range(calls)])
    turns = list(zip(*everyone, strict=True))  # call -> rank -> (µs, ahead)
    slowest = [max(range(len(turn)), key=lambda rank: turn[rank][0]) for turn in turns]
    worst = [max(us for us, _ in turn) for turn in turns]
    behind = sum(not all(ahead for _, ahead in turn) for turn in turns)
    return max(statistics.median(worst), grid_us), [slowest.count(rank) for rank in range(len(everyone))], behind
