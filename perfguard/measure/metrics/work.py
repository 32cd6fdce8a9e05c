"""The counted work of interpreted kernels, which without a GPU is the only sign of a kernel that does more than before.

`kernel_work` has the parts `loads`, `stores` and `atomics`, which count unmasked elements, and `products`, the
multiplications of dots, including padding. They are sums over all kernels, whose names may change. `programs` of each
kernel is shown beside it, but not gated, because other tiles have other numbers of programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import EITHER, Limits
from perfguard.model.records import Better, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False
TESTS = True

# Other tiles read edges again and pad differently. If a kernel is bound by its accesses or its products, a twentieth is
# about the least change that a time on a GPU shows.
_TOLERANCE = 0.05
_MOST_NAMED = 2  # More kernels than this are not named before a part.
_RANK = 20  # Launches and memory come later in an explanation.

LIMITS = {
    "kernel_work": Limits(Better.LOWER, tolerance=_TOLERANCE, portable=EITHER),
    "programs": Limits(Better.LOWER, gated=False, portable=EITHER),
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`kernel_work` and `programs` of one warm call, or of a test; empty if no kernel was interpreted."""
    if device.asynchronous:
        return []
    work = subject.activity(device).work
    if not work:
        return []
    parts, programs, kernels = dict[str, int](), dict[str, int | float | str](), dict[str, list[str]]()
    for (kernel, what), number in sorted(work.items()):
        if what == "programs":
            programs[kernel] = number
        else:
            parts[what] = parts.get(what, 0) + number
            kernels.setdefault(what, []).append(kernel)
    named = {what: f"{', '.join(each)} {what}" for what, each in kernels.items() if len(each) <= _MOST_NAMED}
    return [
        LIMITS["kernel_work"].reading("kernel_work", Unit.COUNT, {**parts}, portable=True, rank=_RANK, lines=named),
        LIMITS["programs"].reading("programs", Unit.COUNT, programs, portable=True, rank=_RANK, details="kernel_work"),
    ]
