"""Whether a graph can capture the call: what a user may replay without host cost, and how perfguard times it best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.metrics.subject import Subject
from perfguard.records import Better, Reading
from perfguard.timing.graph import obstacle
from perfguard.timing.timing import Workload
from perfguard.units import Unit

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = False


def read(subject: Subject, device: Device) -> list[Reading]:
    """`capturable`, "yes" or "no" with the reason as its note; nothing on a device that captures nothing.

    So a candidate that waits for the device all of a sudden has CHANGED, and does not just get another timer.
    """
    if not device.captures:
        return []
    reason = obstacle(Workload(subject.run, copies=subject.copies), device)
    answer = "no" if reason else "yes"
    return [Reading("capturable", Unit.TEXT, answer, better=Better.SAME, drifts=True, note=reason)]
