"""Properties of a call's Triton kernels on every target that is compiled for, here or elsewhere (docs/binaries.md).

Each reading has a value for every kernel, `rows`, and for every configuration that was not chosen, `rows@1`. On a
target that is compiled for, `configuration` is the one that would be launched there: a row of a table, with its number
if the call names its configurations, or one that a tuner is to choose. On a GPU `autotune` is what tuners have chosen.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from perfguard._compat.triton_internals import tuned_configurations
from perfguard.measure.binaries.call_binaries import Kernel, OnTarget
from perfguard.measure.binaries.kernel_facts import Facts, unfit
from perfguard.measure.binaries.launch_recorder import Launch
from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import KERNEL_TIME, Limits
from perfguard.model.records import Better, Parts, Pass, Reading, Value
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False
TESTS = True

# Instructions are counted in the code, not as executed: an added prologue is no finding, but half the width is.
_TOLERANCE = 0.1

LIMITS = {"autotune": Limits(Better.SAME, gated=False)}

LIMITS_OF_TARGETS = {
    "asked": Limits(Better.SAME),
    "binary": Limits(Better.SAME, gated=False, covers=(KERNEL_TIME,)),
    "compilations": Limits(Better.LOWER),
    "configuration": Limits(Better.SAME, gated=False),
    "entry": Limits(Better.SAME),
    # Deliberate float64 is accepted once. Records from before this metric count as having none.
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
    "tunings": Limits(Better.LOWER),
    "unchecked": Limits(Better.SAME),
    "unfit": Limits(Better.LOWER),
}

_FACTS: dict[str, Callable[[Facts], int | float | str]] = {
    "spills": lambda facts: facts.spills,
    "stack_bytes": lambda facts: facts.stack_bytes,
    "resident_warps": lambda facts: facts.resident_warps or 0,
    "load_bits": lambda facts: facts.load_bits,
    "store_bits": lambda facts: facts.store_bits,
    "fp64": lambda facts: facts.fp64,
    "special": lambda facts: " ".join(facts.special) or "none",
    "registers": lambda facts: facts.registers,
    "shared_bytes": lambda facts: facts.shared_bytes,
    "instructions": lambda facts: facts.instructions,
    "mix": lambda facts: ", ".join(f"{count} {kind}" for kind, count in facts.mix.items()),
    "binary": lambda facts: facts.binary,
}

# Options that a configuration sets besides the constants of the kernel.
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim")


def read(subject: Subject, device: Device) -> list[Reading]:
    """The readings of every target: of the kernels that the pass launches, that it cannot be followed, or that it
    launches none, which is reported only where some are recorded. On a GPU also `autotune`, which explains a time."""
    if subject.test is not None:
        timed = [KERNEL_TIME] if device.asynchronous else []
        return [each for found in subject.test.binaries for each in _of_kernels(found, found.kernels, timed)]
    if subject.binaries is None or subject.call is None:
        return []
    readings = []
    for found in subject.binaries.of(subject.call, device):
        kernels = [kernel for kernel in found.kernels if kernel.launch.direction == subject.direction]
        readings += _of_kernels(found, kernels)
        readings += _of_choices(found, kernels, subject.direction)
        if device.holds_cpu_tensors and any(not kernel.facts.error for kernel in kernels):
            # A GPU of its own runs them: its launches, fills, copies and syncs are counted, and numbers are checked.
            readings += _of_what_a_gpu_would_show(found, kernels, subject.direction)
    if device.asynchronous and readings:
        chosen: Parts = dict(tuned_configurations(subject.run))
        if chosen:
            readings.append(LIMITS["autotune"].reading("autotune", Unit.TEXT, chosen, drifts=True))
    return readings


def _reading(
    found: OnTarget, metric: str, value: Value, *, drifts: bool = True, covers: Sequence[str] = (), **others: Any
) -> Reading:
    limits, target = LIMITS_OF_TARGETS[metric], found.target.name
    text = limits.better is Better.SAME or metric == "unfit"
    unit = Unit.TEXT if text else Unit.BYTES if metric.endswith("_bytes") else Unit.COUNT
    name = f"{target}.{metric}"
    return limits.reading(name, unit, value, target=target, drifts=drifts, covers=list(covers), **others)


def _of_kernels(found: OnTarget, kernels: Sequence[Kernel], timed: Sequence[str] = ()) -> list[Reading]:
    """What the compiler made of the kernels. `timed`: times that cannot have moved if their code did not."""
    target, problem = found.target.name, found.recording.problem
    if not kernels and not problem:
        # A call may fall back to torch's operators where nobody looks: on a chip that is not here.
        return [_reading(found, "asked", {}, note=f"{target}: no Triton kernel is launched there any more")]
    problems: Parts = {kernel.name: reason for kernel in kernels if (reason := unfit(kernel.facts, found.target))}
    if problem:
        problems["call"] = problem
    note = "; ".join(f"{target}: {name}: {reason}" for name, reason in problems.items())
    readings = [_reading(found, "unfit", problems, note=note)]
    compiled = [kernel for kernel in kernels if not kernel.facts.error]
    if not compiled:
        return readings
    readings += [
        _reading(
            found,
            metric,
            {kernel.name: of(kernel.facts) for kernel in compiled},
            covers=timed if metric == "binary" else (),
        )
        for metric, of in _FACTS.items()
    ]
    readings.append(_reading(found, "asked", {kernel.name: _asked(kernel) for kernel in compiled}))
    sectors: Parts = {kernel.name: used for kernel in compiled if (used := kernel.facts.sector_bytes)}
    return [*readings, *([_reading(found, "sector_bytes", sectors)] if sectors else [])]


def _asked(kernel: Kernel) -> str:
    """`1 load volatile, 3 wait_barrier; any rows`."""
    any_value = ["any " + " ".join(kernel.launch.unspecialised)] if kernel.launch.unspecialised else []
    return "; ".join(filter(None, [kernel.facts.asked, *any_value])) or "none"


def _of_choices(found: OnTarget, kernels: Sequence[Kernel], direction: Pass) -> list[Reading]:
    """The configurations that would be launched, the entries of the call's table that they are taken from, how many
    specialisations the walk compiles, and how often the call or its walk makes tuners choose."""
    chosen = [kernel for kernel in kernels if kernel.launch.configuration is None]
    tunings = [each for each in found.recording.tunings if each.direction == direction and each.configurations > 1]
    described: Parts = {kernel.name: _described(kernel.launch) for kernel in chosen}
    described |= {each.kernel: f"tuned: one of {each.configurations}" for each in tunings}
    if not described:
        return []
    entries: Parts = {}
    for kernel in chosen:
        number = kernel.launch.twin
        if number is not None and any(found.recording.entries[number : number + 1]):
            entries[kernel.name] = found.recording.entries[number]
    compilations: Parts = {**Counter(each.kernel for each in found.recording.walked if each.direction == direction)}
    tuned: Parts = {**Counter(each.kernel for each in tunings)}
    return [
        _reading(found, "configuration", described, drifts=False),
        *([_reading(found, "entry", entries, drifts=False)] if entries else []),
        *([_reading(found, "compilations", compilations)] if compilations else []),
        *([_reading(found, "tunings", tuned, drifts=False)] if tuned else []),
    ]


def _described(launch: Launch) -> str:
    """`BLOCK=1024 num_warps=4; configuration 0`; a constant of several values, a tuple, as `sizes=1024,4`."""
    data = json.loads(launch.data)
    names = list(data["signature"])
    constants = {
        names[path[0]]: ",".join(map(str, value)) if isinstance(value, list) else value
        for path, value in zip(data["constant_keys"], data["constant_vals"], strict=True)
        if len(path) == 1 and (isinstance(value, list) or (isinstance(value, int) and names[path[0]].isupper()))
    }
    options = {name: data["options"][name] for name in _OPTIONS if data["options"].get(name) not in (None, 0)}
    text = " ".join(f"{name}={value}" for name, value in (constants | options).items())
    return text if launch.twin is None else f"{text}; configuration {launch.twin}"


def _of_what_a_gpu_would_show(found: OnTarget, kernels: Sequence[Kernel], direction: Pass) -> list[Reading]:
    """Torch's fills, copies and reads beside the kernels: on a GPU they are launches, and waits of the host. Then
    hashes of code and arguments of kernels that cannot be run here, so that their results are unchecked."""
    counted = Counter(name.removeprefix("aten.") for name in found.recording.memory_operators.get(direction, ()))
    text = ", ".join(f"{count} {name}" for name, count in sorted(counted.items())) or "none"
    readings = [_reading(found, "memory_operators", text)]
    hashes: Parts = {}
    for kernel in kernels:
        if not (kernel.launch.interpretable or kernel.launch.configuration is not None or kernel.facts.error):
            arguments = found.recording.arguments.get(direction, {}).get(kernel.launch.kernel, [])
            code = "\n".join([kernel.facts.written, *arguments])
            hashes[kernel.name] = hashlib.sha256(code.encode()).hexdigest()[:12]
    return [*readings, *([_reading(found, "unchecked", hashes)] if hashes else [])]
