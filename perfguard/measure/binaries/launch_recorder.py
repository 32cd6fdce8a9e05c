"""Records every launch that a call makes on a target, without running any of them."""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

from perfguard._compat.torch_compiler import is_compiler_loaded
from perfguard._compat.triton_internals import AUTOTUNER, FUNCTION, INTERPRETED, KNOBS, TARGET, driven_by
from perfguard.measure.binaries.asked_for import unspecialised
from perfguard.measure.binaries.launch_records import Launch, Pass, Recording, Tuning
from perfguard.measure.binaries.source_hash import Sources
from perfguard.measure.binaries.targets import Target

Trace = Callable[["Recorder"], None]  # makes the calls, and sets their pass and configuration in the recorder


class Followed(Protocol):
    """A call that a recorder can follow. `entering` is called with each pass that begins."""

    def once(self, kwargs: Mapping[str, Any], entering: Callable[[Pass], None]) -> None:
        """Call once, with `kwargs` overriding its own."""

    def walk(self, entering: Callable[[Pass], None]) -> None:
        """Call with each of its further inputs, if it has any."""

    def configurations(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Pairs of a table entry's name, or "", and the keyword arguments that choose a configuration."""


class Recorder:
    """Replaces Triton's launchers while `recording`. Each launch is recorded with `direction` and `configuration`."""

    def __init__(self, target: Target, sources: Sources | None = None) -> None:
        self.target = target
        self.direction: Pass = "forward"
        self.configuration: int | None = None
        self.launches: list[Launch] = []
        self.walked: list[Launch] = []
        self.tunings: list[Tuning] = []
        self.entries: list[str] = []
        self.memory_operators: dict[Pass, list[str]] = {}
        self.arguments: dict[Pass, dict[str, list[str]]] = {}
        self._plain = True  # True during the plain call, without configuration and walk
        self._sources = sources or Sources()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record launches instead of making them while inside; autotuned kernels in each of their configurations."""
        function, runtime = FUNCTION.get(), KNOBS.get()
        launch = function.run

        def launched(kernel: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
            self._note_arguments(kernel, args, grid, kwargs)
            return launch(kernel, *args, grid=grid, **kwargs)

        def interpreted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return compiled_form(kernel).run(*args, **kwargs)

        def tuned(tuner: Any, *args: Any, **kwargs: Any) -> None:
            self._tune(tuner, args, kwargs)

        before = runtime.jit_cache_hook
        with driven_by(Driver(self.target)):
            runtime.jit_cache_hook = self._note
            try:
                with (
                    mock.patch.object(function, "run", launched),
                    mock.patch.object(INTERPRETED.get(), "run", interpreted),
                    mock.patch.object(AUTOTUNER.get(), "run", tuned),
                    mock.patch.dict(os.environ),
                ):
                    os.environ.pop("TRITON_INTERPRET", None)
                    yield
            finally:
                runtime.jit_cache_hook = before

    def follow(self, followed: Followed) -> None:
        """Follow the plain call, its walk and its configurations."""

        def enter(direction: Pass) -> None:
            self.direction = direction

        followed.once({}, enter)
        self._plain = False
        plain = list(self.launches)
        followed.walk(enter)
        if len(self.launches) > len(plain):
            self.walked, self.launches = self.launches, plain
        found, tunings = list(self.launches), list(self.tunings)
        configurations = followed.configurations()  # may make calls to find the configurations
        self.launches = found
        for number, (name, chosen) in enumerate(configurations):
            self.configuration = number
            self.entries.append(name)
            followed.once(chosen, enter)
        self.tunings = tunings

    def _note(self, *, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        """Triton's hook before a compilation. True skips the compilation and the launch."""
        function = fn.jit_function.fn
        file = inspect.getsourcefile(function) or ""
        self.launches.append(
            Launch(
                module=fn.module,
                file=os.path.abspath(file),
                function=fn.name,
                data=canonical(compile["specialization_data"]),
                direction=self.direction,
                configuration=self.configuration,
                source=self._sources.hash_of(fn.module),
                unspecialised=unspecialised(fn.jit_function.params),
                interpretable=_is_interpretable(fn.jit_function),
            )
        )
        return True

    def note_operator(self, name: str) -> None:
        """Record an operator of torch's that fills, copies or reads memory."""
        if self._plain:
            self.memory_operators.setdefault(self.direction, []).append(name)

    def _note_arguments(self, kernel: Any, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> None:
        if not self._plain or _is_interpretable(kernel):
            return
        bound = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        size = grid(bound) if callable(grid) else grid
        text = f"grid={tuple(size)} " + " ".join(f"{name}={_described(value)}" for name, value in bound.items())
        self.arguments.setdefault(self.direction, {}).setdefault(kernel.fn.__name__, []).append(text)

    def _tune(self, tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        given = {**tuner.nargs, **kwargs}
        key = [str(given[name]) for name in tuner.keys if name in given]
        key += [
            str(value.dtype) for name, value in given.items() if name in tuner.arg_names and hasattr(value, "dtype")
        ]
        configurations = tuner.configs
        if tuner.early_config_prune:
            kept = tuner.early_config_prune(tuner.configs, tuner.nargs, **kwargs)
            configurations = [configuration for configuration in tuner.configs if configuration in kept]
        self.tunings.append(
            Tuning(tuner.base_fn.__name__, ", ".join(key), len(configurations), direction=self.direction)
        )
        outer = self.configuration
        for number, configuration in enumerate(tuner.configs):
            if configuration in configurations:
                self.configuration = number if len(tuner.configs) > 1 else outer
                if configuration.pre_hook is not None:
                    configuration.pre_hook({**given, **configuration.all_kwargs()})
                tuner.fn.run(*args, **kwargs, **configuration.all_kwargs())
        self.configuration = outer
        tuner.nargs = None  # as after Triton's own run


def _is_interpretable(kernel: Any) -> bool:
    return not kernel.is_gluon()


def _described(value: Any) -> str:
    """A kernel's argument without its address: a number, or shape, strides and tile of a tensor or descriptor."""
    if isinstance(value, int | float | str | None):
        return repr(value)
    parts = (getattr(value, name, None) for name in ("dtype", "shape", "strides", "block_shape"))
    stride = value.stride() if callable(getattr(value, "stride", None)) else None
    return "/".join(str(tuple(part) if isinstance(part, list | tuple) else part) for part in (*parts, stride) if part)


_forms: dict[int, tuple[Any, Any]] = {}  # id of an interpreted kernel -> the kernel, its compiled form


def compiled_form(kernel: Any) -> Any:
    """The kernel that Triton would compile for an interpreted one. Cached, as its source has to be found and parsed."""
    if id(kernel) not in _forms:
        _forms[id(kernel)] = kernel, FUNCTION.get()(kernel.fn, **kernel.kwargs)
    return _forms[id(kernel)][1]


def canonical(data: str) -> str:
    """The specialisation without its key: equal text for equal work."""
    described = json.loads(data)
    described.pop("key", None)
    return json.dumps(described)


class Driver:
    """A driver for Triton's launchers that answers for an absent device."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.utils = SimpleNamespace(get_device_properties=self._properties)

    def get_current_target(self) -> Any:
        arch = int(self.target.name.removeprefix("sm_")) if self.target.backend == "cuda" else self.target.name
        return TARGET.get()(self.target.backend, arch, self.target.warp_width)

    def get_current_device(self) -> str:
        return f"perfguard-{self.target.name}"  # key under which a kernel keeps its back end

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def _properties(self, device: Any = 0) -> dict[str, int]:
        return {
            "max_shared_mem": self.target.block_shared_bytes,
            "multiprocessor_count": self.target.processors,
            "warpSize": self.target.warp_width,
            "max_num_regs": self.target.registers or 65536,
        }


def record_here(trace: Trace, target: Target, sources: Sources | None = None) -> Recording:
    """The launches of `trace` on the GPU of its inputs, which is a `target`."""
    return record(trace, target, sources, on_the_host=False)


def record(trace: Trace, target: Target, sources: Sources | None, *, on_the_host: bool) -> Recording:
    """What `trace` launches on a `target`, real or pretended; operators run on the host, or where their inputs lie."""
    from perfguard.measure.binaries.pretended_gpu import Unwritten

    recorder = Recorder(target, sources)
    unwritten = Unwritten(on_the_host, recorder.note_operator)
    problem = ""
    with unwritten, recorder.recording(), _uncompiled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an earlier call has already warned
        try:
            trace(recorder)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    return Recording(
        recorder.launches,
        recorder.walked,
        recorder.tunings,
        problem,
        recorder.entries,
        recorder.memory_operators,
        recorder.arguments,
    )


def _uncompiled() -> AbstractContextManager[Any]:
    """Run compiled functions eagerly while inside: the compiler's kernels are not followed, but the functions' own
    launches are."""
    import torch

    return torch.compiler.set_stance("force_eager") if is_compiler_loaded() else nullcontext()
