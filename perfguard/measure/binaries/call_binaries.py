"""The launches of a guarded call or of an observed test on every target, which are followed but not compiled."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from perfguard._compat.triton_internals import IMPORTED_BY_LAUNCHES, is_triton_loaded, specialisation_of
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.binaries.kernel_facts import machine_code
from perfguard.measure.binaries.launch_recorder import (
    UNKNOWN,
    Launch,
    LaunchRecorder,
    Recording,
    Tuning,
    compiled_form,
    record,
    source_file,
)
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import TARGETS, Target, target_of
from perfguard.model.call import Call
from perfguard.model.records import Pass

if TYPE_CHECKING:
    from perfguard.measure.devices.activity import ObservedActivity
    from perfguard.measure.devices.device import Device

RECORDING_SECONDS = 120.0


class OnTarget(Struct, frozen=True):
    """The launches of a call (both passes) or of an observed test on the target with this name.

    One process can write it as JSON, and another can read it (`msgspec.json`, type `list[OnTarget]`). Its launches name
    files of the followed tree, which must exist when they are compiled.
    """

    target: str
    recording: Recording


@dataclass
class Binaries:
    """Follows guarded calls.

    Attributes:
        records: whether kernels without a record get a whole fingerprint, which takes a compilation; otherwise their
            fingerprint has only the source.
    """

    names: tuple[str, ...]  # the requested targets
    compiler: Compiler  # makes the first IR of kernels whose fingerprint needs it
    _last: tuple[Call, list[OnTarget]] | None = None
    _host: tuple[Call, list[Recording]] | None = None
    sources: Sources = field(default_factory=Sources)
    records: bool = True

    def of(self, call: Call, device: Device) -> list[OnTarget]:
        """The launches of a call on every target; empty if Triton is not loaded. Kept for the call's other pass.

        On a GPU the only target is its own architecture. Nothing is compiled.
        """
        if not is_triton_loaded():
            return []
        if self._last is None or self._last[0] is not call:
            self._last = call, self._followed(call, device)
        return self._last[1]

    def followed(self, call: Call, device: Device) -> list[Recording]:
        """The recordings of `of`. A call without Triton kernels on a CPU is followed on its derived inputs only, in a
        separate process, because state that it keeps may change."""
        if is_triton_loaded() or not device.holds_cpu_tensors or not call.others:
            return [each.recording for each in self.of(call, device)]
        if self._host is None or self._host[0] is not call:
            from perfguard.measure.binaries.absent_gpu import record_elsewhere

            self._host = call, record_elsewhere(call, [None], RECORDING_SECONDS, self.sources)
        return self._host[1]

    def own_target(self, device: Device) -> Target | None:
        """The architecture of a GPU, if it is known."""
        return None if device.holds_cpu_tensors else TARGETS.get(device.identity.architecture)

    def _followed(self, call: Call, device: Device) -> list[OnTarget]:
        if device.holds_cpu_tensors:
            from perfguard.measure.binaries.absent_gpu import record_elsewhere

            targets = [target_of(name) for name in self.names]
            recordings = record_elsewhere(call, targets, RECORDING_SECONDS, self.sources)
        else:
            from perfguard.measure.binaries.other_inputs import follow_others

            own = self.own_target(device)
            targets = [] if own is None else [own]
            recordings = [record(call, target, self.sources, on_the_host=False) for target in targets]
            for target, recording in zip(targets, recordings, strict=True):
                follow_others(call, target, self.sources, recording, on_the_host=False)
            for recording in recordings:  # The GPU itself counts operators, and runs every kernel.
                recording.memory_operators, recording.arguments = {}, {}
        return [OnTarget(target.name, distinct(each)) for target, each in zip(targets, recordings, strict=True)]


def of_pass(on_targets: Sequence[OnTarget], direction: Pass) -> list[OnTarget]:
    """The part of recordings that belongs to one pass. The pass "test" has all of them."""
    if direction == "test":
        return list(on_targets)
    return [OnTarget(each.target, _part(each.recording, direction)) for each in on_targets]


def _part(recording: Recording, direction: Pass) -> Recording:
    return msgspec.structs.replace(
        recording,
        launches=[each for each in recording.launches if each.direction == direction],
        walked=[each for each in recording.walked if each.direction == direction],
        tunings=[each for each in recording.tunings if each.direction == direction],
        memory_operators={name: each for name, each in recording.memory_operators.items() if name == direction},
        arguments={name: each for name, each in recording.arguments.items() if name == direction},
    )


def distinct(recording: Recording) -> Recording:
    """The recording with each specialisation once per pass. A chosen launch gets the number of its configuration."""
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


def named(launches: Sequence[Launch], renamed: Mapping[str, str] | None = None) -> list[tuple[str, Launch]]:
    """The launches in order, with names that distinguish configurations and specialisations: `rows`, `rows@1`,
    `rows/2`. `renamed` holds other names for kernels."""
    counts: Counter[tuple[Pass, str]] = Counter()
    launches_by_name = []
    for launch in launches:
        name = (renamed or {}).get(launch.kernel, launch.kernel)
        name = name if launch.configuration is None else f"{name}@{launch.configuration}"
        counts[launch.direction, name] += 1
        count = counts[launch.direction, name]
        launches_by_name.append((name if count == 1 else f"{name}/{count}", launch))
    return launches_by_name


class ObservedLaunches:
    """Follows each launch of the interpreter once more, without running it, on every target. On a GPU nothing is
    followed, because the launches themselves are observed."""

    def __init__(self, binaries: Binaries, device: Device) -> None:
        self._own = binaries.own_target(device)
        self._sources = binaries.sources
        targets = [target_of(name) for name in binaries.names] if device.holds_cpu_tensors else []
        self._recorders = [LaunchRecorder(target, binaries.sources) for target in targets]
        self._problems: dict[str, str] = {}  # kernel -> why its launch could not be followed

    def note(self, kernel: Any, args: Sequence[Any], grid: Sequence[int], kwargs: Mapping[str, Any]) -> None:
        """Follow a launch of the interpreter on every target."""
        for each in IMPORTED_BY_LAUNCHES:  # The first launch must import these as the interpreter does.
            each.get()
        for recorder in self._recorders:
            with recorder.recording_launches():
                try:
                    compiled_form(kernel).run(*args, grid=grid, warmup=False, **kwargs)
                except Exception as error:  # A compiler may refuse a launch that the interpreter accepts.
                    first_line = str(error).strip().partition("\n")[0]
                    self._problems[kernel.fn.__name__] = f"{type(error).__name__}: {first_line}"

    def followed(self, seen: ObservedActivity) -> list[OnTarget]:
        """The launches on every target; empty for a test without launches. Nothing is compiled."""
        if self._own is not None:
            launches = dict.fromkeys(_of_gpu(kernel, tuner, self._sources) for kernel, tuner in seen.compiled)
            tunings = dict.fromkeys(_tuning_of(tuner) for _, tuner in seen.compiled if tuner is not None)
            return [OnTarget(self._own.name, Recording([*launches], tunings=[*tunings]))] if launches else []
        problem = "; ".join(f"{kernel}: {why}" for kernel, why in self._problems.items())
        return [
            OnTarget(each.target.name, distinct(Recording(each.recording.launches, problem=problem)))
            for each in self._recorders
            if each.recording.launches or problem
        ]


def _of_gpu(kernel: Any, tuner: Any | None, sources: Sources) -> Launch:
    """The launch of a kernel that Triton has compiled for the present GPU; of a tuned kernel, the launch in its tuner's
    first configuration, since another process may choose another one."""
    compiled_from = specialisation_of(kernel, None if tuner is None else tuner.configs[0])
    source = "" if compiled_from is None else sources.hash_of(compiled_from[0].module)
    if compiled_from is None or not source:  # Generated code has no module.
        return Launch("", "", kernel.name, UNKNOWN, source=machine_code(kernel.kernel) or kernel.hash)
    function, data = compiled_from
    line = function.fn.__code__.co_firstlineno
    return Launch(function.module, source_file(function), function.fn.__qualname__, data, source=source, line=line)


def _tuning_of(tuner: Any) -> Tuning:
    """A tuner of an observed test. Its key is its table of configurations, of which a launch shows only one."""
    table = hashlib.sha256(str([str(each) for each in tuner.configs]).encode()).hexdigest()[:8]
    return Tuning(tuner.base_fn.__name__, table, len(tuner.configs))
