"""Properties of a call's Triton kernels on every target that is compiled for, here or elsewhere (docs/binaries.md).

Each reading has a value for every kernel, `rows`, and for every configuration that was not chosen, `rows@1`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.binaries.call_binaries import Kernel, OnTarget
from perfguard.measure.binaries.launch_records import Facts, Pass
from perfguard.measure.binaries.targets import unfit
from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Parts, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False

# Instructions are counted in the code, not as executed: an added prologue is no finding, but half the width is.
_TOLERANCE = 0.1

LIMITS_OF_TARGETS = {
    "asked": Limits(Better.SAME),
    "binary": Limits(Better.SAME, gated=False),
    "fp64": Limits(Better.LOWER, tolerance=_TOLERANCE, unrecorded=0),
    "instructions": Limits(Better.LOWER, gated=False),
    "load_bits": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "memory_operators": Limits(Better.SAME, unrecorded="none"),
    "mix": Limits(Better.SAME, gated=False),
    "registers": Limits(Better.LOWER, gated=False),
    "resident_warps": Limits(Better.HIGHER),
    "sector_bytes": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "shared_bytes": Limits(Better.LOWER, gated=False),
    "special": Limits(Better.SAME),
    "spills": Limits(Better.LOWER),
    "stack_bytes": Limits(Better.LOWER),
    "store_bits": Limits(Better.HIGHER, tolerance=_TOLERANCE),
    "unchecked": Limits(Better.SAME),
    "unfit": Limits(Better.LOWER),
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """The readings of every target: of the kernels that the pass launches, that it cannot be followed, or that it
    launches none, which is told only where some are recorded."""
    if subject.binaries is None or subject.followed is None:
        return []
    readings = []
    for found in subject.binaries.of(subject.followed, device):
        kernels = found.kernels[subject.direction]
        readings += _of_target(found, kernels)
        if device.holds_cpu_tensors and any(not kernel.facts.error for kernel in kernels):
            # A GPU of its own runs them: its launches, fills, copies and syncs are counted, and numbers are checked.
            readings += [*_of_memory(found, subject.direction), *_unchecked(found, kernels)]
    return readings


def _of_target(found: OnTarget, kernels: list[Kernel]) -> list[Reading]:
    problem = found.recording.problem
    target = found.target.name
    if not kernels and not problem:
        return [_none_asked(target)]
    reasons = {kernel.name: unfit(kernel.facts, found.target) for kernel in kernels}
    problems: Parts = {name: reason for name, reason in reasons.items() if reason}
    if problem:
        problems["call"] = problem
    note = "; ".join(f"{target}: {name}: {reason}" for name, reason in problems.items())
    binaries = [kernel for kernel in kernels if not kernel.facts.error]

    def reading(
        metric: str,
        of: Callable[[Facts], int | float | str],
        better: Better = Better.LOWER,
        unit: Unit = Unit.COUNT,
        gated: bool = True,
        tolerance: float = 0.0,
        unrecorded: int | str | None = None,
    ) -> Reading:
        return Reading(
            f"{target}.{metric}",
            unit,
            {kernel.name: of(kernel.facts) for kernel in binaries},
            better=better,
            gated=gated,
            tolerance=tolerance,
            target=target,
            drifts=True,
            unrecorded=unrecorded,
        )

    first = Reading(f"{target}.unfit", Unit.TEXT, problems, target=target, drifts=True, note=note)
    if not binaries:
        return [first]
    used = reading(
        "sector_bytes",
        lambda facts: facts.sector_bytes,
        better=Better.HIGHER,
        unit=Unit.BYTES,
        tolerance=_TOLERANCE,
    )
    assert isinstance(used.value, dict)
    asked = reading("asked", lambda facts: facts.asked, better=Better.SAME, unit=Unit.TEXT)
    asked = msgspec.structs.replace(asked, value={kernel.name: _asked(kernel) for kernel in binaries})
    used = msgspec.structs.replace(used, value={name: value for name, value in used.value.items() if value})
    return [
        first,
        reading("spills", lambda facts: facts.spills),
        reading("stack_bytes", lambda facts: facts.stack_bytes, unit=Unit.BYTES),
        reading("resident_warps", lambda facts: facts.resident_warps or 0, better=Better.HIGHER),
        reading("load_bits", lambda facts: facts.load_bits, better=Better.HIGHER, tolerance=_TOLERANCE),
        reading("store_bits", lambda facts: facts.store_bits, better=Better.HIGHER, tolerance=_TOLERANCE),
        *([used] if used.value else []),
        # Deliberate float64 is accepted once. Records from before this metric count as having none.
        reading("fp64", lambda facts: facts.fp64, tolerance=_TOLERANCE, unrecorded=0),
        reading("special", lambda facts: " ".join(facts.special) or "none", better=Better.SAME, unit=Unit.TEXT),
        asked,
        reading("registers", lambda facts: facts.registers, gated=False),
        reading("shared_bytes", lambda facts: facts.shared_bytes, unit=Unit.BYTES, gated=False),
        reading("instructions", lambda facts: facts.instructions, gated=False),
        reading("mix", _mix, better=Better.SAME, unit=Unit.TEXT, gated=False),
        reading("binary", lambda facts: facts.binary, better=Better.SAME, unit=Unit.TEXT, gated=False),
    ]


def _none_asked(target: str) -> Reading:
    """A call may fall back to torch's operators where nobody looks: on a chip that is not here."""
    note = f"{target}: no Triton kernel is launched there any more"
    name = f"{target}.asked"
    return Reading(name, Unit.TEXT, {}, better=Better.SAME, target=target, drifts=True, note=note)


def _asked(kernel: Kernel) -> str:
    """`1 load volatile, 3 wait_barrier; any rows`."""
    any_value = ["any " + " ".join(kernel.launch.unspecialised)] if kernel.launch.unspecialised else []
    return "; ".join(filter(None, [kernel.facts.asked, *any_value])) or "none"


def _of_memory(found: OnTarget, direction: Pass) -> list[Reading]:
    """Torch's fills, copies and reads beside the kernels: on a GPU they are launches, and waits of the host."""
    counted = Counter(name.removeprefix("aten.") for name in found.recording.memory_operators.get(direction, ()))
    text = ", ".join(f"{count} {name}" for name, count in sorted(counted.items())) or "none"
    target = found.target.name
    metric = f"{target}.memory_operators"
    return [Reading(metric, Unit.TEXT, text, better=Better.SAME, target=target, drifts=True, unrecorded="none")]


def _unchecked(found: OnTarget, kernels: list[Kernel]) -> list[Reading]:
    """Hashes of code and arguments of kernels that cannot be run here, so that their results are unchecked."""
    target = found.target.name
    hashes: Parts = {}
    for kernel in kernels:
        if not (kernel.launch.interpretable or kernel.launch.configuration is not None or kernel.facts.error):
            arguments = found.recording.arguments.get(kernel.launch.direction, {}).get(kernel.launch.kernel, [])
            text = "\n".join([kernel.facts.written, *arguments])
            hashes[kernel.name] = hashlib.sha256(text.encode()).hexdigest()[:12]
    if not hashes:
        return []
    return [Reading(f"{target}.unchecked", Unit.TEXT, hashes, better=Better.SAME, target=target, drifts=True)]


def _mix(facts: Facts) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in facts.mix.items())
