"""Follow a call to every launch that it makes on a target, and run none of them."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

import msgspec

from perfguard.binaries.asking import unspecialised
from perfguard.binaries.records import Launch, Pass, Recording, Tuning
from perfguard.binaries.sources import Described, Sources
from perfguard.binaries.targets import Target

Trace = Callable[["Recorder"], None]  # makes the calls, and tells the recorder which they are


class Followed(Protocol):
    """A call that makes itself for whoever watches. `entering` is told which pass begins."""

    def once(self, kwargs: Mapping[str, Any], entering: Callable[[Pass], None]) -> None:
        """With `kwargs` laid over its own."""

    def walk(self, entering: Callable[[Pass], None]) -> None:
        """On each of its further inputs, if it has any."""

    def configurations(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Names of a table's entries, or nothing, and the keyword arguments that choose a configuration each."""


class Recorder:
    """Takes the place of Triton's launchers while `recording`. `direction` and `configuration` go with each launch."""

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
        self._plain = True  # the plain call, no configuration and no walk
        self._sources = sources or Sources()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within, launches are noted and not made. An autotuned kernel is noted in each of its configurations."""
        from triton import knobs
        from triton.runtime import JITFunction, autotuner, driver, interpreter

        launch = JITFunction.run

        def launched(kernel: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
            self._note_arguments(kernel, args, grid, kwargs)
            return launch(kernel, *args, grid=grid, **kwargs)

        def interpreted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return compiled_form(kernel).run(*args, **kwargs)

        def tuned(tuner: Any, *args: Any, **kwargs: Any) -> None:
            self._tune(tuner, args, kwargs)

        before, active = knobs.runtime.jit_cache_hook, driver._active
        driver.set_active(Driver(self.target))
        knobs.runtime.jit_cache_hook = self._note
        try:
            with (
                mock.patch.object(JITFunction, "run", launched),
                mock.patch.object(interpreter.InterpretedFunction, "run", interpreted),
                mock.patch.object(autotuner.Autotuner, "run", tuned),
                mock.patch.dict(os.environ),
            ):
                os.environ.pop("TRITON_INTERPRET", None)
                yield
        finally:
            knobs.runtime.jit_cache_hook = before
            driver._active = active

    def follow(self, followed: Followed) -> None:
        """The plain call, its configurations, its walk."""

        def enter(direction: Pass) -> None:
            self.direction = direction

        followed.once({}, enter)
        self._plain = False
        plain = list(self.launches)
        followed.walk(enter)
        if len(self.launches) > len(plain):
            self.walked, self.launches = self.launches, plain
        found, tunings = list(self.launches), list(self.tunings)
        configurations = followed.configurations()  # may try which there are
        self.launches = found
        for number, (name, chosen) in enumerate(configurations):
            self.configuration = number
            self.entries.append(name)
            followed.once(chosen, enter)
        self.tunings = tunings

    def _note(self, *, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        """Triton's hook in front of a compilation; True: it need not be done, and nothing is launched."""
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
        """One of torch's, that fills, copies or reads memory."""
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
        tuner.nargs = None  # as Triton leaves it


def _is_interpretable(kernel: Any) -> bool:
    return not kernel.is_gluon()


def _described(value: Any) -> str:
    """A kernel's argument without its address: a number, or shapes, strides and tile of a tensor or descriptor."""
    if isinstance(value, int | float | str | None):
        return repr(value)
    parts = (getattr(value, name, None) for name in ("dtype", "shape", "strides", "block_shape"))
    stride = value.stride() if callable(getattr(value, "stride", None)) else None
    return "/".join(str(tuple(part) if isinstance(part, list | tuple) else part) for part in (*parts, stride) if part)


_forms: dict[int, tuple[Any, Any]] = {}  # id of an interpreted kernel -> itself, as a compiler's input


def compiled_form(kernel: Any) -> Any:
    """What an interpreted kernel would be if it were compiled. Made once: its source is searched for and parsed."""
    from triton.runtime.jit import JITFunction

    if id(kernel) not in _forms:
        _forms[id(kernel)] = kernel, JITFunction(kernel.fn, **kernel.kwargs)
    return _forms[id(kernel)][1]


def canonical(data: str) -> str:
    """The specialisation without what only names it: the same text for the same work."""
    described = json.loads(data)
    described.pop("key", None)
    return json.dumps(described)


class Driver:
    """What Triton's launchers ask of a device, answered for one that is not here."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.utils = SimpleNamespace(get_device_properties=self._properties)

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        arch = int(self.target.name.removeprefix("sm_")) if self.target.backend == "cuda" else self.target.name
        return GPUTarget(self.target.backend, arch, self.target.warp_width)

    def get_current_device(self) -> str:
        return f"perfguard-{self.target.name}"  # a kernel keeps its back end by this

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


def record_elsewhere(
    trace: Trace, targets: Sequence[Target], seconds: float, sources: Sources | None = None
) -> list[Recording]:
    """What `trace` would launch on each of `targets`, which need not be here.

    The calls are made in forked processes, so that nothing that they learn of the pretended device stays; as many at
    once as there are cores.

    Args:
        seconds: after which a process is given up.
        sources: what is known of modules already; it then knows those of the launches, too.
    """
    _import_what_launches_need()
    sources = sources or Sources()
    waiting = list(targets)
    children = [_Child(trace, waiting.pop(0), sources) for _ in targets[: len(os.sched_getaffinity(0))]]
    recordings = []
    while children:
        answer = children.pop(0).answer(seconds)
        recordings.append(answer.recording)
        _learn(answer, sources)
        if waiting:
            children.append(_Child(trace, waiting.pop(0), sources))
    return recordings


class _Answer(msgspec.Struct, frozen=True):
    """`read`: modules that the child was the first to read; it may have been the only one to load them."""

    recording: Recording
    read: dict[str, Described] = {}


def _learn(answer: _Answer, sources: Sources) -> None:
    """What a child found out of modules and kernels died with it; the next ones need not find it out again."""
    from triton.runtime.interpreter import InterpretedFunction

    sources.known.update(answer.read)
    for module, function in {(launch.module, launch.function) for launch in answer.recording.launches}:
        kernel = getattr(sys.modules.get(module), function, None)
        if type(kernel) is InterpretedFunction:
            compiled_form(kernel)


class _Child:
    """A process that follows the call on one target."""

    def __init__(self, trace: Trace, target: Target, sources: Sources) -> None:
        self._started = time.monotonic()
        self._answers, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads do not survive: the child starts none
            self._process = os.fork()
        if self._process == 0:
            os.close(self._answers)
            _answer(trace, target, write, sources)
        os.close(write)

    def answer(self, seconds: float) -> _Answer:
        """It is given up so long after its start."""
        with os.fdopen(self._answers, "rb") as answers:
            data = _read_all(answers.fileno(), self._process, self._started + seconds)
        _, status = os.waitpid(self._process, 0)
        if data:
            return msgspec.json.decode(data, type=_Answer)
        code = os.waitstatus_to_exitcode(status)
        late = code == -signal.SIGKILL
        problem = f"took longer than {seconds:g} s" if late else f"its process ended with {code}"
        return _Answer(Recording(problem=problem))


@functools.cache
def _import_what_launches_need() -> None:
    """Here and once, not in each child: the compiler's front, and what torch's custom operators, if there are any,
    import when called.

    Where Triton was imported to interpret, the rest of it can be imported in no other way.
    """
    from torch._library.custom_ops import OPDEFS
    from triton.language import standard
    from triton.runtime import JITFunction

    interpreted = {} if isinstance(standard.cdiv, JITFunction) else {"TRITON_INTERPRET": "1"}
    names = ["triton.compiler", "triton.experimental.gluon", *(["torch._dynamo"] if OPDEFS else [])]
    names.append("perfguard.binaries.pretending")  # under pytest it is looked up anew where it is imported
    with mock.patch.dict(os.environ, interpreted):
        for name in names:
            importlib.import_module(name)


def _answer(trace: Trace, target: Target, write: int, sources: Sources) -> None:
    """The child's whole life."""
    import torch

    from perfguard.binaries.pretending import pretended

    gc.disable()  # a collection would write to, and so copy, all memory that is shared with the parent
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    try:
        torch.set_num_threads(1)  # the parent's pool of threads is not here
        with pretended(target):
            known = set(sources.known)
            recording = _record(trace, target, sources, on_the_host=True)
        read = {name: described for name, described in sources.known.items() if name not in known}
        with os.fdopen(write, "wb") as answer:
            answer.write(msgspec.json.encode(_Answer(recording, read)))
    finally:
        os._exit(0)


def _read_all(pipe: int, child: int, end: float) -> bytes:
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
            return b""
        part = os.read(pipe, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)


def record_here(trace: Trace, target: Target, sources: Sources | None = None) -> Recording:
    """What `trace` launches on the GPU that its inputs lie on, which is a `target`."""
    return _record(trace, target, sources, on_the_host=False)


def _record(trace: Trace, target: Target, sources: Sources | None, *, on_the_host: bool) -> Recording:
    from perfguard.binaries.pretending import Unwritten

    recorder = Recorder(target, sources)
    unwritten = Unwritten(on_the_host, recorder.note_operator)
    problem = ""
    with unwritten, recorder.recording(), _uncompiled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call was made before, and warned then
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
    """Within, compiled functions run as they are written: what the compiler makes of them is not followed, what they
    launch by themselves is."""
    import torch

    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def knows_triton() -> bool:
    """Whether Triton is loaded: what never imported it launches none of its kernels."""
    return "triton" in sys.modules
