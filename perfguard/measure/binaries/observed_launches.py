"""The kernels that an observed test launches, compiled for targets: in Triton's interpreter, or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfguard._compat.triton_internals import OF_LAUNCHES
from perfguard.measure.binaries.call_binaries import Binaries, Kernel, OnTarget, named_launches
from perfguard.measure.binaries.compiler import Compiler
from perfguard.measure.binaries.launch_recorder import Launch, Recorder, Recording, compiled_form
from perfguard.measure.binaries.targets import Target, target_of

if TYPE_CHECKING:
    from perfguard.measure.devices.activity import Seen
    from perfguard.measure.devices.device import Device


class ObservedLaunches:
    """Follows each launch in the interpreter once more, without running it, on every target. On a GPU nothing is
    followed: its kernels are seen as they are launched."""

    def __init__(self, binaries: Binaries, device: Device) -> None:
        self._compiler = binaries.compiler
        self._own = binaries.own_target(device)
        targets = [target_of(name) for name in binaries.names] if device.holds_cpu_tensors else []
        self._recorders = [Recorder(target, binaries.sources) for target in targets]
        self._problems: dict[str, str] = {}  # kernel -> why its launch could not be followed

    def note(self, kernel: Any, args: Sequence[Any], grid: Sequence[int], kwargs: Mapping[str, Any]) -> None:
        """Note a launch in the interpreter."""
        for each in OF_LAUNCHES:  # a first launch imports it, and must do so as the interpreter's
            each.get()
        for recorder in self._recorders:
            with recorder.recording_launches():
                try:
                    compiled_form(kernel).run(*args, grid=grid, warmup=False, **kwargs)
                except Exception as error:  # what the interpreter accepts, a compiler may not
                    first_line = str(error).strip().partition("\n")[0]
                    self._problems[kernel.fn.__name__] = f"{type(error).__name__}: {first_line}"

    def compiled(self, seen: Seen) -> list[OnTarget]:
        """The launched kernels on every target; none for a test that launches none."""
        if self._own is not None:
            return _of_gpu(seen.compiled, self._own, self._compiler)
        found = []
        for recorder in self._recorders:
            launches = list({launch.specialisation: launch for launch in recorder.recording.launches}.values())
            if launches or self._problems:
                found.append((recorder.target, launches))
        facts = self._compiler.facts([(target.name, launch) for target, launches in found for launch in launches])
        problem = "; ".join(f"{kernel}: {why}" for kernel, why in self._problems.items())
        return [
            OnTarget(
                target,
                Recording(problem=problem),
                [Kernel(name, launch, facts[target.name, launch]) for name, launch in named_launches(launches)],
            )
            for target, launches in found
        ]


def _of_gpu(kernels: Sequence[Any], target: Target, compiler: Compiler) -> list[OnTarget]:
    """The kernels that Triton has compiled for the GPU that runs them, in the order of their first launch."""
    if not kernels:
        return []
    launches = [Launch(module="", file="", function=kernel.name, data=kernel.hash) for kernel in kernels]
    facts = compiler.facts_of(target, {kernel.hash: kernel for kernel in kernels})
    named = named_launches(launches)
    return [OnTarget(target, Recording(), [Kernel(name, each, facts[each.data]) for name, each in named])]
