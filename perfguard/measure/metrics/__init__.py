"""The metrics of a case, with one family of quantities per file.

Every module in this folder that has a metric's names is a metric. Importing it loads no torch, because the job that
comments on a pull request gathers limits, and has no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import Limits
from perfguard.model.modules import modules_in
from perfguard.model.records import Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


class Metric(Protocol):
    """The interface of a metric module. Modules with TIMED read times, except those that `subject.skipped` names.

    Optional names: `TESTS` is true if the module also reads observed tests (`subject.test`). `LAST` is true if it is
    read after all other exact modules, because it changes the process. `LIMITS` are the most lenient limits of its
    metrics by name. `LIMITS_OF_TARGETS` are those of metrics that are read per target (`sm_90.spills`), by the name
    after the target.
    """

    TIMED: bool

    def read(self, subject: Subject, device: Device) -> list[Reading]:
        """The family's readings of `subject`; empty if it has none on this device.

        Raises:
            Exception: raised by the subject's `run`.
        """


@functools.cache  # Every case needs it.
def all_metrics() -> tuple[Metric, ...]:
    """The metric modules: exact before timed ones, because counting may disturb times; LAST ones behind others of their
    kind; then by name."""
    metrics = modules_in(__name__, "TIMED", "read")
    metrics.sort(key=lambda module: (module.TIMED, getattr(module, "LAST", False)))
    return cast(tuple[Metric, ...], tuple(metrics))


@functools.cache
def all_limits() -> Mapping[str, Limits]:
    """Metric -> limits that its file declares."""
    return _declared("LIMITS")


@functools.cache
def all_limits_of_targets() -> Mapping[str, Limits]:
    """Limits of the metrics that are read per target, by their name after the target."""
    return _declared("LIMITS_OF_TARGETS")


def _declared(name: str) -> dict[str, Limits]:
    limits: dict[str, Limits] = {}
    for metric in all_metrics():
        limits |= getattr(metric, name, {})
    return limits


def read_exact(subject: Subject, device: Device) -> list[Reading]:
    """The exact readings of `subject`."""
    return _read(False, subject, device)


def read_timed(subject: Subject, device: Device, skipped: Collection[str] = ()) -> list[Reading]:
    """The timed readings of `subject`, except those in `skipped`. The first reading is the judged one."""
    return _read(True, replace(subject, skipped=skipped), device)


def _read(timed: bool, subject: Subject, device: Device) -> list[Reading]:
    readings = []
    for metric in all_metrics():
        if timed == metric.TIMED and (subject.test is None or getattr(metric, "TESTS", False)):
            readings += metric.read(subject, device)
            subject.put_back()
    return readings
