"""A guarded call's kernels on every target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from perfguard._compat.triton_internals import knows_triton
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.binaries.kernel_facts import Facts
from perfguard.measure.binaries.launch_recorder import Launch, Recording, record
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import TARGETS, Target, target_of
from perfguard.model.call import Call
from perfguard.model.records import Pass

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

RECORDING_SECONDS = 120.0


@dataclass(frozen=True)
class Kernel:
    """A kernel of a call on a target. `name` includes configuration and specialisation: `rows`, `rows@1`, `rows/2`."""

    name: str
    launch: Launch
    facts: Facts


@dataclass(frozen=True)
class OnTarget:
    """A call on one target: its recording and the kernels of both passes."""

    target: Target
    recording: Recording
    kernels: list[Kernel]


@dataclass
class Binaries:
    """Reads the binaries of guarded calls.

    Attributes:
        names: the requested targets.
    """

    names: tuple[str, ...]
    compiler: Compiler
    _last: tuple[Call, list[OnTarget]] | None = None
    sources: Sources = field(default_factory=Sources)

    def of(self, call: Call, device: Device) -> list[OnTarget]:
        """The launches of a call on every target; empty if Triton is not loaded. Kept for the call's other pass.

        On a GPU the only target is its own architecture, and the kernels are those that it runs.
        """
        if not knows_triton():
            return []
        if self._last is None or self._last[0] is not call:
            self._last = call, self._read(call, device)
        return self._last[1]

    def own_target(self, device: Device) -> Target | None:
        """The architecture of a GPU, if it is known."""
        return None if device.holds_cpu_tensors else TARGETS.get(device.identity.architecture)

    def _read(self, call: Call, device: Device) -> list[OnTarget]:
        if device.holds_cpu_tensors:
            from perfguard.measure.binaries.absent_gpu import record_elsewhere

            targets = [target_of(name) for name in self.names]
            recordings = record_elsewhere(call, targets, RECORDING_SECONDS, self.sources)
        else:
            own = self.own_target(device)
            targets = [] if own is None else [own]
            recordings = [record(call, target, self.sources, on_the_host=False) for target in targets]
        recorded = list(zip(targets, map(_distinct, recordings), strict=True))
        facts = self.compiler.facts([(target.name, launch) for target, found in recorded for launch in found.launches])
        return [
            OnTarget(
                target,
                found,
                [Kernel(name, launch, facts[target.name, launch]) for name, launch in named_launches(found.launches)],
            )
            for target, found in recorded
        ]


def _distinct(recording: Recording) -> Recording:
    """The recording with each specialisation once per pass. A chosen launch notes the number of its configuration."""
    seen: dict[tuple[str, ...], Launch] = {}
    for launch in recording.launches:
        first = seen.setdefault(launch.specialisation, launch)
        if first is not launch and first.configuration is None and first.twin is None:
            seen[launch.specialisation] = msgspec.structs.replace(first, twin=launch.configuration)
    walked = {launch.specialisation: launch for launch in recording.walked}
    return msgspec.structs.replace(
        recording,
        launches=list(seen.values()),
        walked=list(walked.values()),
        tunings=list(dict.fromkeys(recording.tunings)),
    )


def named_launches(launches: Sequence[Launch]) -> list[tuple[str, Launch]]:
    """The launches in order, with names that distinguish configurations and specialisations."""
    counts: Counter[tuple[Pass, str]] = Counter()
    named = []
    for launch in launches:
        name = launch.kernel if launch.configuration is None else f"{launch.kernel}@{launch.configuration}"
        counts[launch.direction, name] += 1
        count = counts[launch.direction, name]
        named.append((name if count == 1 else f"{name}/{count}", launch))
    return named
