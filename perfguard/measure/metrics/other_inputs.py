"""The cost of layouts and sizes that no test has. The call is followed on them, but not run.

`other_inputs` has these parts, and a higher value is worse:
- `copies (transposed argument 0)`: copies that torch makes of, or for, that input; `(sizes)`: the most for any size.
- `host reads (…)`, `launches (…)`: the most for any layout, and for any size.
- `operators (frozen argument 1)`: operators and launches where that input needs no gradient; `(frozen parameters)`:
  where no parameter of a module does.
- `refused (argument 0 as bfloat16)`: 1 if torch's operators refuse inputs of that dtype, which the reference takes.
- `compilations of K (argument 0 dim 0)`: specialisations of a kernel over a few sizes of that dimension; `tunings of …`
  are the keys that its tuner looks up. Above one, a constant of the kernel depends on the size.
- `grid axis of K (argument 0 dim 0)`: 0 if that size makes the first axis of the grid grow, and 1 if another axis
  grows, which ends at 65,535 programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import EITHER, Limits
from perfguard.model.records import Better, Parts, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False

LIMITS = {"other_inputs": Limits(Better.LOWER, portable=EITHER)}

_MOST_NOTES = 6
_RANK = 40  # Metrics of the given inputs come first in an explanation.


def read(subject: Subject, device: Device) -> list[Reading]:
    """`other_inputs`, with the highest value over all targets; empty if the call has no derived inputs."""
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
    more = f"; and {len(notes) - _MOST_NOTES} more" if len(notes) > _MOST_NOTES else ""
    return [
        LIMITS["other_inputs"].reading(
            "other_inputs",
            Unit.COUNT,
            parts,
            portable=device.holds_cpu_tensors,
            rank=_RANK,
            drifts=True,
            note="; ".join([*notes][:_MOST_NOTES]) + more,
        )
    ]
