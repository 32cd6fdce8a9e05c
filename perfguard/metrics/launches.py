"""What a call sets going: kernels launched on a device with a queue, operators dispatched on a CPU.

On a GPU `launches` (count, gated) and `kernels` (names in order, explains it); on a CPU `operators` and
`operator_names`, which are the same on every CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.metrics.subject import Subject
from perfguard.records import Better, Reading
from perfguard.units import Unit

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = False


def read(subject: Subject, device: Device) -> list[Reading]:
    """The count, of which any rise fails, and the names; both of a warm call."""
    subject.run()  # compiling and autotuning launch kernels of their own
    device.synchronize()
    names = device.launches(subject.run)
    count, listed = ("launches", "kernels") if device.asynchronous else ("operators", "operator_names")
    portable = not device.asynchronous
    return [
        Reading(count, Unit.COUNT, len(names), better=Better.LOWER, portable=portable, drifts=True),
        Reading(listed, Unit.TEXT, names, better=Better.SAME, gated=False, portable=portable, drifts=True),
    ]
