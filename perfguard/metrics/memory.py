"""Memory that a call needs at its peak, above what was allocated before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.metrics.subject import Subject
from perfguard.records import Better, Reading
from perfguard.units import Unit

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = False

_TOLERANCE = 0.005

# On a GPU libraries keep workspaces and the allocator rounds large blocks, so less than 1 MiB is no finding.
_FLOOR_BYTES = 2**20

# On a CPU allocations are counted to the byte and cases are small: a temporary of one page is a real one.
_CPU_FLOOR_BYTES = 2**12


def read(subject: Subject, device: Device) -> list[Reading]:
    """`peak_memory_bytes` of a warm call: allocated, not reserved; outputs count, inputs do not."""
    subject.run()  # what compiling and autotuning allocate is not the call's
    device.synchronize()
    return [
        Reading(
            "peak_memory_bytes",
            Unit.BYTES,
            device.peak_bytes(subject.run),
            better=Better.LOWER,
            tolerance=_TOLERANCE,
            floor=float(_FLOOR_BYTES if device.asynchronous else _CPU_FLOOR_BYTES),
        )
    ]
