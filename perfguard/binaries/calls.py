"""A guarded call's kernels on every target, for as long as the call is being read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfguard.binaries.compiling import Compiler
from perfguard.binaries.recording import Recorder, knows_triton, record, record_elsewhere
from perfguard.binaries.records import Facts, Launch, Pass, Recording
from perfguard.binaries.targets import TARGETS, Target, target_of

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

# Makes the guarded call with other keyword arguments, forward and backward; tells which pass begins.
Follow = Callable[[Mapping[str, Any], Callable[[Pass], None]], None]
Configurations = Sequence[Mapping[str, Any]] | Callable[[], Sequence[Mapping[str, Any]]]

RECORDING_SECONDS = 120.0


@dataclass(frozen=True)
class Kernel:
    """A kernel of a call on a target. `name` tells configurations and specialisations apart: `rows`, `rows@1`."""

    name: str
    launch: Launch
    facts: Facts


@dataclass(frozen=True)
class OnTarget:
    """What a call is on one target."""

    target: Target
    recording: Recording
    kernels: dict[Pass, list[Kernel]]


@dataclass
class Binaries:
    """Reads the binaries of guarded calls.

    Attributes:
        names: the targets that are asked for.
    """

    names: tuple[str, ...]
    compiler: Compiler
    _last: tuple[object, list[OnTarget]] | None = field(default=None)

    def of(self, follow: Follow, configurations: Configurations, device: Device) -> list[OnTarget]:
        """What a call launches on every target; none where Triton has no part in it.

        On a GPU the target is the GPU's own architecture, and the kernels are those that it runs.

        Args:
            follow: makes the call. One object stands for one call: asked again, the answer is the same.
            configurations: keyword arguments that choose a configuration each, in addition to the plain call.
        """
        if not knows_triton():
            return []
        if self._last is None or self._last[0] is not follow:
            self._last = follow, self._examine(follow, configurations, device)
        return self._last[1]

    def _examine(self, follow: Follow, configurations: Configurations, device: Device) -> list[OnTarget]:
        def trace(recorder: Recorder) -> None:
            def enter(direction: Pass) -> None:
                recorder.direction = direction

            follow({}, enter)
            for number, chosen in enumerate(configurations() if callable(configurations) else configurations):
                recorder.configuration = number
                follow(chosen, enter)

        if device.torch_device.type == "cpu":
            targets = [target_of(name) for name in self.names]
            recordings = [record_elsewhere(trace, target, RECORDING_SECONDS) for target in targets]
        else:
            own = TARGETS.get(device.identity.architecture)
            targets = [] if own is None else [own]
            recordings = [record(trace, target) for target in targets]
        return self._compiled(list(zip(targets, map(_distinct, recordings), strict=True)))

    def _compiled(self, recorded: list[tuple[Target, Recording]]) -> list[OnTarget]:
        wanted = [(target.name, launch) for target, recording in recorded for launch in recording.launches]
        facts = self.compiler.facts(wanted)
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


def _distinct(recording: Recording) -> Recording:
    """Each specialisation once in each pass; a configuration that is the one chosen is told by that."""
    seen: dict[tuple[str, str, str, str], Launch] = {}
    for launch in recording.launches:
        seen.setdefault((launch.direction, launch.file, launch.function, launch.data), launch)
    return Recording(list(seen.values()), list(dict.fromkeys(recording.tunings)), recording.problem)


def _named(launches: Sequence[Launch], direction: Pass) -> list[tuple[str, Launch]]:
    counts: dict[str, int] = {}
    named = []
    for launch in launches:
        if launch.direction == direction:
            name = launch.kernel if launch.configuration is None else f"{launch.kernel}@{launch.configuration}"
            counts[name] = counts.get(name, 0) + 1
            named.append((name if counts[name] == 1 else f"{name}/{counts[name]}", launch))
    return named
