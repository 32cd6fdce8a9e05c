"""Seconds from the start of Python to a call's first result, with nothing compiled or tuned before, and how many of
them torch.compile takes: with empty caches, with kept ones, for one layer more.

Processes of their own for each reading, so a case asks for it: `perfguard(…, cold_start=True)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.metrics.subject import Subject
from perfguard.records import Reading

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = True

METRIC = "cold_start_us"


def read(subject: Subject, device: Device) -> list[Reading]:
    """What the cold processes read (`perfguard.coldstart`); nothing unless the case asks for it."""
    return [] if subject.cold is None else subject.cold()
