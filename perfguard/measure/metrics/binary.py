"""Readings of launches that are followed on targets: fingerprints of a call's Triton kernels (docs/binaries.md), and
the cost of layouts and sizes that no test has.

Nothing is compiled for a target here. `code` shows whether the record was made of the same kernels. If not, the base's
kernels are compared with the working tree's (`perfguard.measure.binaries.comparison`), whose limits are declared here.
On a GPU `autotune` holds the configurations that tuners have chosen.

`other_inputs` has these parts, and a higher value is worse:
- `copies (transposed argument 0)`: copies that torch makes of, or for, that input; `(sizes)`: the most for any size.
- `host reads (…)`, `launches (…)`: the most for any layout, and for any size.
- `operators (frozen argument 1)`: operators and launches if that input needs no gradient; `(frozen parameters)`: if no
  parameter of a module does; `(without grad)`, `(under autocast)`: in that mode, under autocast with its casts.
- `saved bytes (frozen argument 1)`: bytes that are kept for the backward pass then, without a module's parameters.
- `refused (argument 0 as bfloat16)`: 1 if torch's operators refuse inputs of that dtype, which the reference takes.
- `compilations of K (argument 0 dim 0)`: specialisations of a kernel over a few sizes of that dimension; `tunings of …`
  are the keys that its tuner looks up. Above one, a constant of the kernel depends on the size.
- `specialised sizes of K (argument 0 dim 0)`: 1 if a number that changes with that size is one by which Triton
  specialises, as it does unless `do_not_specialize` names it.
- `grid axis of K (argument 0 dim 0)`: 0 if that size makes the first axis of the grid grow, and 1 if another axis
  grows, which ends at 65,535 programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfguard._compat.triton_internals import tuned_configurations
from perfguard.measure.binaries import comparison
from perfguard.measure.binaries.call_binaries import OnTarget, of_pass
from perfguard.measure.binaries.kernel_code import code_of, places_of
from perfguard.measure.metrics.subject import Subject, listed
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
    "other_inputs": Limits(Better.LOWER, portable=EITHER),
}
LIMITS_OF_TARGETS = comparison.LIMITS_OF_TARGETS

_MOST_NOTES = 6
_OTHERS_RANK = 40  # Metrics of the given inputs come first in an explanation.


def read(subject: Subject, device: Device) -> list[Reading]:
    """The readings of a pass or a test; empty if nothing was followed. A call without kernels has an empty `code`,
    which is reported only if the record has some code."""
    return [*_code(subject, device), *_other_inputs(subject, device)]


def _code(subject: Subject, device: Device) -> list[Reading]:
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


def _other_inputs(subject: Subject, device: Device) -> list[Reading]:
    """`other_inputs`, with the highest value over all targets; empty for tests and calls without derived inputs."""
    if subject.binaries is None or subject.call is None:
        return []
    parts: Parts = {}
    notes: dict[str, None] = {}
    for recording in subject.binaries.followed(subject.call, device):
        own_parts = recording.others.get(subject.direction, {})
        parts |= {part: max(number, int(parts.get(part, 0))) for part, number in own_parts.items()}
        notes |= dict.fromkeys(recording.other_notes.get(subject.direction, ()))
    if not parts:
        return []
    note = listed(notes, _MOST_NOTES)
    shown = {"portable": device.holds_cpu_tensors, "rank": _OTHERS_RANK, "drifts": True, "note": note}
    return [LIMITS["other_inputs"].reading("other_inputs", Unit.COUNT, parts, **shown)]
