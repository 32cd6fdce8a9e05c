"""Triton: its launchers and hooks, the interpreter, compiled kernels, autotuners, the driver of a target."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from types import ModuleType
from typing import Any
from unittest import mock

from perfguard._compat.private import Private, privates

_FOLLOW = "following launches without running them"
_DRIVE = "compiling for a target that is not present"
_TUNERS = "following tuners and their choices"
_FRONT_END = "reading a kernel's first IR"
_INTERPRET = "following kernels in Triton's interpreter"

FUNCTION = Private("triton.runtime.jit", "JITFunction", _FOLLOW)
AUTOTUNER = Private("triton.runtime.autotuner", "Autotuner", _TUNERS)
DRIVER = Private("triton.runtime", "driver", _DRIVE)
TARGET = Private("triton.backends.compiler", "GPUTarget", _DRIVE)
KNOBS = Private("triton.knobs", "runtime", "hooks before a compilation and a launch")
NVDISASM = Private("triton.knobs", "nvidia.nvdisasm", "reading the instructions of a cubin")
CUOBJDUMP = Private("triton.knobs", "nvidia.cuobjdump", "reading the resources of a cubin")
INTERPRETED = Private("triton.runtime.interpreter", "InterpretedFunction", _INTERPRET)
COMPILED = Private("triton.compiler.compiler", "CompiledKernel", "reading the scalars of a launch")
SOURCE = Private("triton.compiler.compiler", "ASTSource", _FRONT_END)
GLUON_SOURCE = Private("triton.experimental.gluon._runtime", "GluonASTSource", _FRONT_END)

_OF_THE_BINARY = ("hash", "shared", "tmem_size")  # Metadata that the compiler adds to the options.
_PLAIN = (bool, int, float, str, list, tuple, type(None))

#: The first launch imports these modules. A process imports them before it forks.
IMPORTED_BY_LAUNCHES = (
    Private("triton.compiler", "", "starting processes that have the compiler loaded"),
    Private("triton.experimental.gluon", "", "starting processes that have Gluon loaded"),
)

NAMES = (
    *IMPORTED_BY_LAUNCHES,
    *privates("triton.runtime.jit", _FOLLOW, "JITFunction.run JITFunction.is_gluon"),
    Private("triton.compiler.compiler", "ASTSource.make_ir", _FRONT_END),
    Private("triton.experimental.gluon._runtime", "GluonASTSource.make_ir", _FRONT_END),
    Private("triton._C.libtriton", "ir.module.str_nodebug", _FRONT_END),
    *privates("triton.runtime", _DRIVE, "driver.set_active driver._active driver._default"),
    *privates("triton.runtime.autotuner", _TUNERS, "Autotuner.run Autotuner.prune_configs Autotuner._bench"),
    Private("triton.runtime.interpreter", "InterpretedFunction.run", _INTERPRET),
    Private("triton.compiler.compiler", "CompiledKernel.launch_metadata", "reading the scalars of a launch"),
    Private("triton.knobs", "runtime.jit_cache_hook", _FOLLOW),
    *privates("triton.knobs", "listing launches", "runtime.launch_enter_hook.add runtime.launch_enter_hook.remove"),
    Private("triton.knobs", "nvidia.nvdisasm.path", "reading the instructions of a cubin"),
    Private("triton.knobs", "nvidia.cuobjdump.path", "reading the resources of a cubin"),
    Private("triton.language.standard", "cdiv", "knowing whether Triton was imported as an interpreter"),
)


def is_triton_loaded() -> bool:
    """Whether Triton is imported. A process without it launches no Triton kernel."""
    return "triton" in sys.modules


@contextmanager
def driven_by(driver: object) -> Iterator[None]:
    """Make `driver` Triton's active driver while inside."""
    active = DRIVER.get()
    before = active._active
    active.set_active(driver)
    try:
        yield
    finally:
        active._active = before


def forget_driver(kind: type) -> None:
    """Let Triton search for a driver again if it has found one of this type."""
    active = DRIVER.get()
    for name in ("_active", "_default"):
        if isinstance(getattr(active, name), kind):
            setattr(active, name, None)


def source_of(kernel: Any, data: Mapping[str, Any]) -> Any:
    """The source for `triton.compile` of a kernel (JITFunction) with a specialisation (`data`), as Triton's hook before
    a compilation describes it."""
    constants = {
        tuple(path): _constant_of(value)
        for path, value in zip(data["constant_keys"], data["constant_vals"], strict=True)
    }
    attributes = {tuple(path): value for path, value in zip(data["attrs_keys"], data["attrs_vals"], strict=True)}
    signature = {name: _as_tuple(kind) for name, kind in data["signature"].items()}
    kind = GLUON_SOURCE if kernel.is_gluon() else SOURCE
    return kind.get()(kernel, signature, constants, attributes)


def _constant_of(value: Any) -> Any:
    """A constant from its description by Triton (`_as_data`)."""
    from triton import language

    if language.dtype.is_dtype(value):
        return language.dtype(value)
    if isinstance(value, dict) and "constexpr" in value:
        return language.constexpr(_as_tuple(value["constexpr"]))
    if isinstance(value, dict) and "jit_function" in value:
        module, _, name = value["jit_function"].partition(":")
        return function_in(importlib.import_module(module), name)
    return _as_tuple(value)


def _as_tuple(value: Any) -> Any:
    """Turn JSON's lists into tuples, at all depths; other values are returned unchanged."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def function_in(module: ModuleType, name: str) -> Any:
    """The kernel (JITFunction) with this qualified name, without wrappers such as an autotuner or heuristics."""
    kernel = attrgetter(name)(module)
    while not isinstance(kernel, FUNCTION.get()):
        kernel = kernel.fn
    return kernel


def compiled_for(target: Any, source: Any, options: Mapping[str, Any]) -> Any:
    """Compile a source for a target (GPUTarget), which may be absent.

    Raises:
        Exception: raised by the compiler.
    """
    import triton

    return triton.compile(source, target=target, options={name: _as_tuple(value) for name, value in options.items()})


class _FirstIrMade(BaseException):
    """Ends a compilation after the first IR. Triton does not catch BaseException."""


def first_ir(target: Any, source: Any, options: Mapping[str, Any], begins: Callable[[], None]) -> str:
    """The IR of a source after Triton's front end and before any pass, without locations.

    Args:
        begins: called before the front end reads the kernel.

    Raises:
        Exception: raised by the front end.
    """
    make_ir = source.make_ir

    def made(*args: Any, **kwargs: Any) -> Any:
        begins()
        raise _FirstIrMade(make_ir(*args, **kwargs).str_nodebug())

    source.make_ir = made
    try:
        compiled = compiled_for(target, source, options)
    except _FirstIrMade as ir:
        return str(ir)
    raise RuntimeError(f"{compiled} was compiled without a first IR: TRITON_ALWAYS_COMPILE is not set")


def is_compiled(kind: type) -> bool:
    """Whether objects of this type are kernels that Triton compiled."""
    return kind.__name__ == "CompiledKernel" and kind.__module__.startswith("triton.")


def specialisation_of(compiled: Any, configuration: Any = None) -> tuple[Any, str] | None:
    """The function (JITFunction) that Triton compiled, and its specialisation as `source_of` reads it; None if it was
    not compiled from a function.

    Args:
        configuration: of a tuner (Config), whose constants and options take the place of those that it chose.
    """
    source = compiled.src
    if not isinstance(source, SOURCE.get()):
        return None
    function, metadata = source.fn, compiled.metadata
    options = {
        name: value
        for name, value in metadata._asdict().items()
        if isinstance(value, _PLAIN) and name not in _OF_THE_BINARY
    }
    # The metadata of a warp-specialised kernel count all warps; its code has the requested number.
    warps = re.search(r'"ttg\.num-warps" = (\d+)', compiled.asm.get("ttgir", ""))
    options |= {"num_warps": int(warps[1])} if warps else {}
    constants = {path: _as_data(value) for path, value in source.constants.items()}
    if configuration is not None:
        paths = {name: (place,) for place, name in enumerate(source.signature)}
        for name, value in configuration.all_kwargs().items():
            if paths.get(name) in constants:
                constants[paths[name]] = _as_data(value)
            elif name in options:
                options[name] = value
    described = {
        "name": function._fn_name,
        "signature": source.signature,
        "constant_keys": list(constants),
        "constant_vals": list(constants.values()),
        "attrs_keys": list(source.attrs),
        "attrs_vals": list(source.attrs.values()),
        "options": options,
        "target": vars(metadata.target),
    }
    return function, json.dumps(described)


def _as_data(constant: Any) -> Any:
    """Describe a constant as Triton does in the data of a specialisation."""
    kind = type(constant).__name__
    if kind == "JITFunction":
        return {"jit_function": f"{constant.module}:{constant.fn.__qualname__}"}
    return str(constant) if kind == "dtype" else {"constexpr": constant.value} if kind == "constexpr" else constant


def was_imported_as_interpreter() -> bool:
    """Whether Triton was imported for its interpreter. Its other modules must then be imported in the same way."""
    standard = importlib.import_module("triton.language.standard")
    return not isinstance(standard.cdiv, FUNCTION.get())


def silent_interpreter() -> AbstractContextManager[object]:
    """Silence NumPy's overflow warnings in this thread while inside. Triton's interpreter computes with NumPy, so under
    `-W error` the content of uninitialised memory would decide whether a kernel raises."""
    numpy: Any = sys.modules.get("numpy")
    return numpy.errstate(all="ignore") if numpy else nullcontext()


@contextmanager
def launches_noted(note: Callable[[Any, Any, Sequence[Any]], None]) -> Iterator[None]:
    """Call `note` with kernel, grid and arguments of each launch by Triton's launcher while inside. Inductor's static
    launcher does not report its launches."""
    kind: Any = COMPILED.loaded()
    chain: Any = getattr(KNOBS.loaded(), "launch_enter_hook", None)
    original = getattr(kind, "launch_metadata", None)
    if original is None or not hasattr(chain, "add"):
        yield
        return

    def launch_metadata(kernel: Any, grid: Any, stream: Any, *args: Any) -> Any:
        metadata = original(kernel, grid, stream, *args)  # This loads the kernel.
        note(kernel, grid, args)
        return metadata

    def listening(metadata: Any) -> None:
        """Do nothing: some launchers describe a launch only if there is a hook."""

    chain.add(listening)
    try:
        with mock.patch.object(kind, "launch_metadata", launch_metadata):
            yield
    finally:
        chain.remove(listening)


def tuned_configurations(run: Callable[[], object]) -> dict[str, str]:
    """Kernel -> chosen configuration, for each tuner that `run` reaches. `run` must have been called before."""
    with tuners_called() as tuners:
        run()
    return {tuner.base_fn.__name__: str(tuner.best_config) for tuner in tuners}


@contextmanager
def tuners_called() -> Iterator[list[Any]]:
    """List each autotuner with several configurations that is called inside, once."""
    met: list[Any] = []
    if not is_triton_loaded():
        yield met
        return
    autotuner = AUTOTUNER.get()
    launch = autotuner.run

    def noted(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        result = launch(tuner, *args, **kwargs)
        if len(tuner.configs) > 1 and not any(tuner is each for each in met):
            met.append(tuner)
        return result

    with mock.patch.object(autotuner, "run", noted):
        yield met


@contextmanager
def tuners_noted(
    launching: Callable[[Any], AbstractContextManager[None]], timing: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Enter `launching(tuner)` around each launch through a tuner (Autotuner) with several configurations while inside,
    and `timing()` around each configuration that it times to choose one, and around its hook."""
    kind = AUTOTUNER.get()
    launch = kind.run

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            with timing():
                return function(*args, **kwargs)

        return called

    def noted(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if len(tuner.configs) < 2:
            return launch(tuner, *args, **kwargs)
        # After the last trial this hook zeroes what the trials have written.
        with launching(tuner), mock.patch.object(tuner, "pre_hook", timed(tuner.pre_hook)):
            return launch(tuner, *args, **kwargs)

    with mock.patch.object(kind, "run", noted), mock.patch.object(kind, "_bench", timed(kind._bench)):
        yield


def pinned(number: int) -> AbstractContextManager[Any]:
    """Run every autotuned kernel in the configuration with this number while inside, or in its last if it has fewer."""

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return in_configuration(tuner, tuner.configs[min(number, len(tuner.configs) - 1)], args, kwargs)

    return mock.patch.object(AUTOTUNER.get(), "run", run)


def tuning_frozen() -> AbstractContextManager[Any]:
    """Run every autotuned kernel in its tuner's first choice while inside, or in the first configuration after pruning
    if pruning removes that choice. Tuning for each new size would compile and time all configurations."""
    if not is_triton_loaded():
        return nullcontext()
    launch = AUTOTUNER.get().run

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = next(iter(tuner.cache.values()), None)
        if chosen is None:
            return launch(tuner, *args, **kwargs)
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        allowed = tuner.prune_configs(kwargs)
        return in_configuration(tuner, chosen if chosen in allowed or not allowed else allowed[0], args, kwargs)

    return mock.patch.object(AUTOTUNER.get(), "run", run)


def in_configuration(tuner: Any, configuration: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch a tuner's kernel in one of its configurations."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    arguments = {**tuner.nargs, **kwargs, **configuration.all_kwargs()}
    if configuration.pre_hook is not None:
        configuration.pre_hook(arguments)
    tuner.best_config = configuration
    return tuner.fn.run(*args, **kwargs, **configuration.all_kwargs())
