"""The launches of an observed test, in Triton's interpreter (followed for all targets) or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfguard._compat.triton_internals import IMPORTED_BY_LAUNCHES, specialisation_of
from perfguard.measure.binaries.call_binaries import Binaries, OnTarget, distinct
from perfguard.measure.binaries.launch_recorder import (
    UNKNOWN,
    Launch,
    LaunchRecorder,
    Recording,
    compiled_form,
    source_file,
)
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import target_of

if TYPE_CHECKING:
    from perfguard.measure.devices.activity import ObservedActivity
    from perfguard.measure.devices.device import Device


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
            launches = [_of_gpu(kernel, self._sources) for kernel in seen.compiled]
            return [OnTarget(self._own.name, Recording(launches))] if launches else []
        problem = "; ".join(f"{kernel}: {why}" for kernel, why in self._problems.items())
        return [
            OnTarget(each.target.name, distinct(Recording(each.recording.launches, problem=problem)))
            for each in self._recorders
            if each.recording.launches or problem
        ]


def _of_gpu(kernel: Any, sources: Sources) -> Launch:
    """The launch of a kernel that Triton has compiled for the present GPU."""
    from perfguard.measure.devices.fingerprints import machine_code

    compiled_from = specialisation_of(kernel)
    source = "" if compiled_from is None else sources.hash_of(compiled_from[0].module)
    if compiled_from is None or not source:  # Generated code has no module.
        return Launch("", "", kernel.name, UNKNOWN, source=machine_code(kernel.kernel) or kernel.hash)
    function, data = compiled_from
    line = function.fn.__code__.co_firstlineno
    return Launch(function.module, source_file(function), function.fn.__qualname__, data, source=source, line=line)
