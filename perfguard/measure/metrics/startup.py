"""Seconds from the start of Python to a call's first result, with nothing compiled or tuned before, and the part that
torch.compile takes: with empty caches, with kept ones, for one layer more.

Each reading needs its own processes, so it is opt-in: `perfguard(…, cold_start=True)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

METRIC = "cold_start_us"


def read(subject: Subject, device: Device) -> list[Reading]:
    """The readings of the cold processes (`perfguard.session.cold_start`); nothing unless the case requests them."""
    return [] if subject.cold is None else subject.cold()
