"""A guarded call's kernels on every target, kept while the call is being read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from perfguard._compat.triton_internals import knows_triton
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.binaries.forked_recorder import record_elsewhere
from perfguard.measure.binaries.launch_recorder import Followed, Recorder, record_here
from perfguard.measure.binaries.launch_records import Facts, Launch, Pass, Recording
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import TARGETS, Target, target_of

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
    """A call on one target: its recording and its kernels."""

    target: Target
    recording: Recording
    kernels: dict[Pass, list[Kernel]]


@dataclass
class Binaries:
    """Reads the binaries of guarded calls.

    Attributes:
        names: the requested targets.
    """

    names: tuple[str, ...]
    compiler: Compiler
    _begun: tuple[Followed, list[tuple[Target, Recording]]] | None = field(default=None)
    _last: tuple[Followed, list[OnTarget]] | None = field(default=None)
    _sources: Sources = field(default_factory=Sources)

    def begin(self, followed: Followed, device: Device) -> None:
        """Follow a call whose first result was right, and compile its kernels while the rest is checked. Not on a GPU,
        where following the call means calling it."""
        if knows_triton() and device.holds_cpu_tensors:
            recorded = self._follow(followed, device)
            self._begun = followed, recorded
            self.compiler.begin(_wanted(recorded))

    def leave(self) -> None:
        """End a call. Compilations that were begun but not requested, since the result was wrong, are stopped: they
        would disturb the next case's times."""
        self._begun = None
        self.compiler.leave()

    def of(self, followed: Followed, device: Device) -> list[OnTarget]:
        """The launches of a call on every target; empty if Triton is not loaded. Cached for the last call.

        On a GPU the only target is its own architecture, and the kernels are those that it runs.
        """
        if not knows_triton():
            return []
        if self._last is None or self._last[0] is not followed:
            self._last = followed, self._examine(followed, device)
        return self._last[1]

    def _examine(self, followed: Followed, device: Device) -> list[OnTarget]:
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] is followed:
            return self._compiled(begun[1])
        return self._compiled(self._follow(followed, device))

    def _follow(self, followed: Followed, device: Device) -> list[tuple[Target, Recording]]:
        def trace(recorder: Recorder) -> None:
            recorder.follow(followed)

        if device.holds_cpu_tensors:
            targets = [target_of(name) for name in self.names]
            recordings = record_elsewhere(trace, targets, RECORDING_SECONDS, self._sources)
        else:
            own = TARGETS.get(device.identity.architecture)
            targets = [] if own is None else [own]
            recordings = [record_here(trace, target, self._sources) for target in targets]
        return list(zip(targets, map(_distinct, recordings), strict=True))

    def _compiled(self, recorded: list[tuple[Target, Recording]]) -> list[OnTarget]:
        facts = self.compiler.facts(_wanted(recorded))
        return [
            OnTarget(
                target,
                recording,
                {
                    direction: [
                        Kernel(name, launch, facts[target.name, launch])
                        for name, launch in _named(recording.launches, direction)
                    ]
                    for direction in ("forward", "backward")
                },
            )
            for target, recording in recorded
        ]


def _wanted(recorded: list[tuple[Target, Recording]]) -> list[tuple[str, Launch]]:
    return [(target.name, launch) for target, recording in recorded for launch in recording.launches]


def _distinct(recording: Recording) -> Recording:
    """The recording with each specialisation once per pass. A chosen launch notes the number of its configuration."""
    seen: dict[tuple[str, str, str, str], Launch] = {}
    for launch in recording.launches:
        key = _identity(launch)
        if key in seen and seen[key].configuration is None and seen[key].twin is None:
            seen[key] = msgspec.structs.replace(seen[key], twin=launch.configuration)
        seen.setdefault(key, launch)
    walked = {_identity(launch): launch for launch in recording.walked}
    tunings = dict.fromkeys(recording.tunings)
    return msgspec.structs.replace(
        recording, launches=list(seen.values()), walked=list(walked.values()), tunings=list(tunings)
    )


def _identity(launch: Launch) -> tuple[str, str, str, str]:
    return launch.direction, launch.file, launch.function, launch.data


def _named(launches: Sequence[Launch], direction: Pass) -> list[tuple[str, Launch]]:
    counts: dict[str, int] = {}
    named = []
    for launch in launches:
        if launch.direction == direction:
            name = launch.kernel if launch.configuration is None else f"{launch.kernel}@{launch.configuration}"
            counts[name] = counts.get(name, 0) + 1
            named.append((name if counts[name] == 1 else f"{name}/{counts[name]}", launch))
    return named
