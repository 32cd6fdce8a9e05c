"""What perfguard reads of a case: one quantity family a file, found by being here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from perfguard.metrics.subject import Subject
from perfguard.records import Reading

if TYPE_CHECKING:
    from perfguard.hardware.device import Device


class Metric(Protocol):
    """What a metric module has. `METRIC`, of one with TIMED only: the name of the one time that it reads. `LAST`, if it
    is there and true: it is read after all other exact ones, because it leaves the process other than it was."""

    TIMED: bool
    METRIC: str

    def read(self, subject: Subject, device: Device) -> list[Reading]:
        """The family's readings of `subject`; an empty list where it has none on this device.

        Raises:
            Exception: whatever the subject's `run` raises.
        """


def all_metrics() -> tuple[Metric, ...]:
    """The metric modules: exact ones before timed ones, because counting may disturb times; LAST ones behind those of
    their kind; then by name.

    What is judged so is the first timed reading of a case: CPU time on a CPU, else device time.
    """
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    metrics = [module for module in modules if hasattr(module, "read")]
    metrics.sort(key=lambda module: (module.TIMED, getattr(module, "LAST", False), module.__name__))
    return cast(tuple[Metric, ...], tuple(metrics))


def read_exact(subject: Subject, device: Device) -> list[Reading]:
    """The exact readings of `subject`."""
    return _read([metric for metric in all_metrics() if not metric.TIMED], subject, device)


def read_timed(subject: Subject, device: Device, skipped: Collection[str] = ()) -> list[Reading]:
    """The timed readings of `subject`, but for those named in `skipped`."""
    wanted = [metric for metric in all_metrics() if metric.TIMED and metric.METRIC not in skipped]
    return _read(wanted, subject, device)


def _read(metrics: Sequence[Metric], subject: Subject, device: Device) -> list[Reading]:
    readings = []
    for metric in metrics:
        readings += metric.read(subject, device)
        subject.put_back()
    return readings
