"""Instructions that the host executes for a call: as good a measure as its time on a quiet machine.

Read if the machine gives its users performance counters; otherwise there is only host time. On a CPU the work of the
kernels is included, on one thread: threads that wait for each other would count their waiting.
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

# Variation of Python's own work with the hash seed, addresses, and the list of modules.
_TOLERANCE = 0.25
_FLOOR = 50_000.0

_MOST_CALLS = 10
_MOST_US = 50_000.0


def read(subject: Subject, device: Device) -> list[Reading]:
    """`host_instructions` of the cheapest of up to ten calls; nothing if they cannot be counted."""
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
    """The least count of all calls. A backward pass on a GPU runs in autograd's threads, so all threads count there."""
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
                device.synchronize()  # not counted, since waiting spins
                if count is not None:
                    counts.append(count)
                if device.now_us() - started > _MOST_US:
                    break
    finally:
        torch.set_num_threads(before)
        counters.close()
    return min(counts, default=None)
