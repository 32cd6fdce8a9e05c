"""All readings of a subject, in the order of the runner."""

from __future__ import annotations

from perfguard.measure.devices.device import Device
from perfguard.measure.metrics import read_exact, read_timed
from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Reading


def read_all(subject: Subject, device: Device) -> list[Reading]:
    """Exact ones first."""
    return read_exact(subject, device) + read_timed(subject, device)
