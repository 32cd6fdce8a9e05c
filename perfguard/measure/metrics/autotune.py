"""The configuration of each kernel of a call, the origin of that choice, and the number of tunings.

On a target that is compiled for, the reading is the configuration that would be launched there: a row of a table, with
its number if the call names its configurations, or that a tuner is to choose. On a GPU tuners have chosen: the readings
are their choice, the distance to the second best, and the seconds of tuning. docs/binaries.md.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perfguard._compat.triton_internals import Tuned, tuners_of
from perfguard.measure.binaries.call_binaries import OnTarget
from perfguard.measure.binaries.launch_records import Launch, Pass
from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Parts, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False

# Options that a configuration sets besides the constants of the kernel.
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "matrix_instr_nonkdim")

LIMITS_OF_TARGETS = {
    "compilations": Limits(Better.LOWER),
    "configuration": Limits(Better.SAME, gated=False),
    "entry": Limits(Better.SAME),
    "tunings": Limits(Better.LOWER),
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """For each target `configuration`, not gated. Gated are `entry`, the entry taken from the table that the call
    names, and `tunings`, how often the call, or its walk, makes tuners choose. On a GPU also `autotune`,
    `autotune_spread` and `autotune_seconds`, which explain a time and are not gated."""
    if subject.binaries is None or subject.followed is None:
        return []
    readings = []
    for found in subject.binaries.of(subject.followed, device):
        readings += _of_target(found, subject.direction)
    if device.asynchronous and readings:
        readings += _of_tuners(tuners_of(subject.run))
    return readings


def _of_target(found: OnTarget, direction: Pass) -> list[Reading]:
    launches = [kernel for kernel in found.kernels[direction] if kernel.launch.configuration is None]
    tunings = [tuning for tuning in found.recording.tunings if tuning.direction == direction]
    chosen: Parts = {kernel.name: _described(kernel.launch) for kernel in launches}
    chosen |= {each.kernel: f"tuned: one of {each.configurations}" for each in tunings if each.configurations > 1}
    if not chosen:
        return []
    target = found.target.name
    counts: Parts = {}
    for tuning in tunings:
        if tuning.configurations > 1:
            counts[tuning.kernel] = int(counts.get(tuning.kernel, 0)) + 1
    readings = [Reading(f"{target}.configuration", Unit.TEXT, chosen, better=Better.SAME, gated=False, target=target)]
    entries = found.recording.entries
    taken: Parts = {
        kernel.name: entries[kernel.launch.twin]
        for kernel in launches
        if kernel.launch.twin is not None and kernel.launch.twin < len(entries) and entries[kernel.launch.twin]
    }
    if taken:
        readings.append(Reading(f"{target}.entry", Unit.TEXT, taken, better=Better.SAME, target=target))
    compiled: Parts = {}
    for launch in found.recording.walked:
        if launch.direction == direction:
            compiled[launch.kernel] = int(compiled.get(launch.kernel, 0)) + 1
    if compiled:
        readings.append(Reading(f"{target}.compilations", Unit.COUNT, compiled, target=target, drifts=True))
    if counts:
        readings.append(Reading(f"{target}.tunings", Unit.COUNT, counts, target=target))
    return readings


def _described(launch: Launch) -> str:
    """`BLOCK=1024 num_warps=4; configuration 0 of 3`."""
    data = json.loads(launch.data)
    names = list(data["signature"])
    constants = {
        names[path[0]]: value
        for path, value in zip(data["constant_keys"], data["constant_vals"], strict=True)
        if len(path) == 1 and isinstance(value, int) and names[path[0]].isupper()
    }
    options = {name: data["options"][name] for name in _OPTIONS if data["options"].get(name) not in (None, 0)}
    text = " ".join(f"{name}={value}" for name, value in (constants | options).items())
    if launch.twin is None:
        return text
    return f"{text}; configuration {launch.twin}"


def _of_tuners(tuned: list[Tuned]) -> list[Reading]:
    """The choices that the tuners of this process made for the call."""
    if not tuned:
        return []

    def reading(metric: str, unit: Unit, parts: Parts) -> Reading:
        return Reading(metric, unit, parts, better=Better.SAME, gated=False, drifts=True)

    spreads: Parts = {each.kernel: each.spread for each in tuned if each.spread is not None}
    seconds: Parts = {each.kernel: each.seconds * 1e6 for each in tuned if each.seconds is not None}
    readings = [reading("autotune", Unit.TEXT, {each.kernel: each.chosen for each in tuned})]
    if spreads:
        readings.append(reading("autotune_spread", Unit.COUNT, spreads))
    if seconds:
        readings.append(reading("autotune_time_us", Unit.MICROSECONDS, seconds))
    return readings
