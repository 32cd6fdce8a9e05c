"""The metrics of a case, with one family of quantities per file. Metric modules are found by being in this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


class Metric(Protocol):
    """The interface of a metric module. Modules with TIMED also have `METRIC`, the name of the one time that they read.
    An optional true `LAST`: the module is read after all other exact ones, because it changes the process."""

    TIMED: bool
    METRIC: str

    def read(self, subject: Subject, device: Device) -> list[Reading]:
        """The family's readings of `subject`; empty if it has none on this device.

        Raises:
            Exception: raised by the subject's `run`.
        """


def all_metrics() -> tuple[Metric, ...]:
    """The metric modules: exact ones before timed ones, because counting may disturb times; LAST ones behind the others
    of their kind; then by name.

    So the first timed reading of a case is the judged one: CPU time on a CPU, else device time.
    """
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    metrics = [module for module in modules if hasattr(module, "read")]
    metrics.sort(key=lambda module: (module.TIMED, getattr(module, "LAST", False), module.__name__))
    return cast(tuple[Metric, ...], tuple(metrics))


def read_exact(subject: Subject, device: Device) -> list[Reading]:
    """The exact readings of `subject`."""
    return _read([metric for metric in all_metrics() if not metric.TIMED], subject, device)


def read_timed(subject: Subject, device: Device, skipped: Collection[str] = ()) -> list[Reading]:
    """The timed readings of `subject`, except those named in `skipped`."""
    wanted = [metric for metric in all_metrics() if metric.TIMED and metric.METRIC not in skipped]
    return _read(wanted, subject, device)


def _read(metrics: Sequence[Metric], subject: Subject, device: Device) -> list[Reading]:
    readings = []
    for metric in metrics:
        readings += metric.read(subject, device)
        subject.put_back()
    return readings
