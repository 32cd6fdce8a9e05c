"""Time of a call that several ranks make together, each on its own device: the longest of their times.

Ids: `ranks-queue-cold-m12`, `ranks-queue-warm-m12`; `ranks-host-…` where hosts cannot be kept ahead of the devices, as
in a call that waits for its device: its time includes the hosts'. `m`: how often devices meet before the call.

Before each call all hosts meet, each lets its device sleep until every host has enqueued its part, and the devices meet
in exchanges of one number on the stream that is timed. Each device then times its own part by two events; clocks of
two devices are never compared. What is left is the spread in which devices leave the last of these. Another such
exchange, timed in the same way, shows it, with the time of the smallest exchange: no call of several ranks is shorter.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from perfguard.measure.gc_pause import collector_paused
from perfguard.measure.timers.queue import event_grid_us
from perfguard.measure.timers.timing import Blocks, Cache, floor_us

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

    @contextmanager
    def together(
        self,
        part: AbstractContextManager[object] | None = None,
        done: Callable[[bool, float], object] = lambda *_: None,
    ) -> Iterator[None]:
        """All devices begin what is enqueued inside at the same moment, as nearly as they can.

        Args:
            part: held around it, and around nothing else.
            done: called with whether this host had enqueued everything before its device began, and how long it took
                for that, µs.
        """
        device = self.device
        device.synchronize()
        self.meet_hosts()
        started = device.now_us()
        device.sleep(self.sleep_us)
        asleep = device.event()
        asleep.record()
        if self.cache == "cold":
            device.flush_cache()
        for _ in range(_MEETINGS):
            self.meet_devices()
        with part or nullcontext():
            yield
        done(not asleep.query(), device.now_us() - started)

    def time(self, within: Within) -> tuple[float, bool]:
        """This device's time of one call, µs, and whether its host was ahead."""
        start, end = self.device.event(), self.device.event()
        ahead: list[bool] = []

        @contextmanager
        def between() -> Iterator[None]:
            start.record()
            yield
            end.record()

        within(self.together(between(), lambda was, _: ahead.append(was)))
        self.device.synchronize()
        return start.elapsed_us(end), ahead[0]


@dataclass(frozen=True)
class Timed:
    """A call's time, and that of an exchange of one number, in blocks.

    Attributes:
        timer: the method's id.
        ranks: ready for further calls.
        floor_us: the smallest change that the timer resolves.
        notes: what a reader must know: which rank takes the longest, whether hosts were ahead.
    """

    timer: str
    call: Blocks
    least: Blocks
    ranks: Ranks
    floor_us: float
    notes: list[str]


def measure(within: Within, ranks: Ranks, seconds: float) -> Timed:
    """The time of a call. The same on all ranks, which all make equally many calls.

    Args:
        within: makes the call, and holds the given context during the part that is timed.
        seconds: limit for the timed calls, as far as they all take as long as the first.
    """
    device = ranks.device
    with collector_paused():
        enqueued_us: list[float] = []
        for _ in range(_WARM_UPS):
            started = device.now_us()
            within(ranks.together(done=lambda _, host_us: enqueued_us.append(host_us)))
            device.synchronize()
        told = ranks.exchange("the time of a call", [enqueued_us[-1], device.now_us() - started])
        host_us, call_us = (max(each[place] for each in told) for place in (0, 1))
        ranks = replace(ranks, sleep_us=min(_LONGEST_SLEEP_US, max(_SHORTEST_SLEEP_US, 2 * host_us)))
        trials = ranks.exchange("whether hosts are ahead", [ranks.time(within)[1] for _ in range(_TRIALS)])
        ahead = all(any(own) for own in trials)
        calls = int(1e6 * seconds / (_BLOCKS * (call_us + ranks.sleep_us)))
        calls = max(_LEAST_CALLS, min(_MOST_CALLS, calls))
        grid_us = max(ranks.exchange("the step of the clock", event_grid_us(device)))
        blocks = [_block(within, ranks, calls, grid_us) for _ in range(_BLOCKS)]
        least, _, _ = _block(partial(_meeting, ranks), ranks, calls, grid_us)
    slowest = max(range(len(told)), key=lambda rank: sum(block[1][rank] for block in blocks))
    behind = sum(block[2] for block in blocks)
    notes = [f"rank {slowest} takes the longest"]
    if not ahead:
        notes.append("hosts wait for their devices during the call: the time includes theirs")
    elif behind:
        notes.append(f"a host was behind its device in {behind} of {_BLOCKS * calls} calls")
    return Timed(
        f"ranks-{'queue' if ahead else 'host'}-{ranks.cache}-m{_MEETINGS}",
        Blocks(tuple(block[0] for block in blocks), 0),
        Blocks((least,), 0),
        ranks,
        floor_us(grid_us, 1),
        notes,
    )


def _block(within: Within, ranks: Ranks, calls: int, grid_us: float) -> tuple[float, list[int], int]:
    """The median over `calls` calls of the time of the slowest rank, µs; how often each rank was the slowest; in how
    many calls a host was behind its device."""
    everyone = ranks.exchange("the times of a block", [ranks.time(within) for _ in range(calls)])
    turns = list(zip(*everyone, strict=True))  # call -> rank -> (µs, ahead)
    slowest = [max(range(len(turn)), key=lambda rank: turn[rank][0]) for turn in turns]
    worst = [max(us for us, _ in turn) for turn in turns]
    behind = sum(not all(ahead for _, ahead in turn) for turn in turns)
    return max(statistics.median(worst), grid_us), [slowest.count(rank) for rank in range(len(everyone))], behind


def _meeting(ranks: Ranks, around: AbstractContextManager[object]) -> None:
    with around:
        ranks.meet_devices()
