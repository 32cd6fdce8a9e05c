"""Fingerprints of the code of a call's Triton kernels (docs/binaries.md).

Nothing is compiled for a target here. `code` shows whether the record was made of the same kernels. If not, the base's
kernels are compared with the working tree's (`perfguard.measure.binaries.comparison`), whose limits are declared here.
On a GPU `autotune` holds the configurations that tuners have chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfguard._compat.triton_internals import tuned_configurations
from perfguard.measure.binaries import comparison
from perfguard.measure.binaries.call_binaries import OnTarget, of_pass
from perfguard.measure.binaries.kernel_code import code_of, places_of
from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import EITHER, KERNEL_TIME, Limits
from perfguard.model.records import Better, Parts, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False
TESTS = True

LIMITS = {
    "autotune": Limits(Better.SAME, gated=False),
    "code": Limits(Better.SAME, gated=False, stored=True, covers=(KERNEL_TIME,), portable=EITHER),
    "configuration": comparison.CONFIGURATION,
}
LIMITS_OF_TARGETS = comparison.LIMITS_OF_TARGETS


def read(subject: Subject, device: Device) -> list[Reading]:
    """The readings of the launches of a pass or a test; empty if nothing was followed. A call without kernels has an
    empty `code`, which is reported only if the record has some code."""
    followed = _followed(subject, device)
    if not followed or subject.binaries is None:
        return []
    code: Parts = {**code_of(followed, subject.binaries.compiler, subject.known_code, new=subject.binaries.records)}
    on_gpu = device.asynchronous
    covers = [KERNEL_TIME] if on_gpu and subject.test is not None else []
    shown = {"portable": device.holds_cpu_tensors, "covers": covers, "lines": places_of(followed)}
    readings = [LIMITS["code"].reading("code", Unit.TEXT, code, **shown)]
    if on_gpu and code and subject.test is None:
        tuned: Parts = {**tuned_configurations(subject.run)}
        if tuned:
            readings.append(LIMITS["autotune"].reading("autotune", Unit.TEXT, tuned, drifts=True))
    return readings


def _followed(subject: Subject, device: Device) -> Sequence[OnTarget]:
    if subject.test is not None:
        return subject.test.binaries
    if subject.binaries is None or subject.call is None:
        return []
    return of_pass(subject.binaries.of(subject.call, device), subject.direction)
