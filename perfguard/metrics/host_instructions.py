"""Instructions that a call costs the host: what its time would say on a quiet machine.

Read where the machine has performance counters for its users; elsewhere host time alone speaks. On a CPU the work of
the kernels is part of it, on one thread: threads that wait for each other count their waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.collector import collector_paused
from perfguard.hardware import instructions
from perfguard.metrics.subject import Subject
from perfguard.records import Reading
from perfguard.units import Unit

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = False

METRIC = "host_instructions"

# What another hash seed, another address or a longer list of modules changes in Python's own work.
_TOLERANCE = 0.25
_FLOOR = 50_000.0

_MOST_CALLS = 10
_MOST_US = 50_000.0


def read(subject: Subject, device: Device) -> list[Reading]:
    """`host_instructions` of the cheapest of up to ten calls; nothing where they cannot be counted."""
    if not subject.timed or not instructions.available():
        return []
    subject.warm_up(device)
    value = _least(subject, device)
    if value is None:
        return []
    return [
        Reading(
            METRIC,
            Unit.COUNT,
            value,
            tolerance=_TOLERANCE,
            floor=_FLOOR,
            drifts=True,
            rank=60,
            details="host_time_us",
        )
    ]


def _least(subject: Subject, device: Device) -> int | None:
    """Of a backward pass on a GPU autograd's own threads do the work, so that all threads count there."""
    import torch

    before = torch.get_num_threads()
    counters = instructions.Counters(instructions.threads_of_this_process() if device.asynchronous else [0])
    counts = []
    try:
        if not device.asynchronous:
            torch.set_num_threads(1)
        started = device.now_us()
        with collector_paused():
            for _ in range(_MOST_CALLS):
                count = counters.count(subject.run)
                device.synchronize()  # outside: waiting spins
                if count is not None:
                    counts.append(count)
                if device.now_us() - started > _MOST_US:
                    break
    finally:
        torch.set_num_threads(before)
        counters.close()
    return min(counts, default=None)
