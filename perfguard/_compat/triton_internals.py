"""Triton: its launchers and hooks, the interpreter, compiled kernels, autotuners, the driver of a target."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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

_PLAIN = (bool, int, float, str, list, tuple, type(None))

#: What a launch imports when it is made first: processes that fork import it before.
OF_LAUNCHES = (
    Private("triton.compiler", "", "starting processes that have the compiler loaded"),
    Private("triton.experimental.gluon", "", "starting processes that have Gluon loaded"),
)

NAMES = (
    *OF_LAUNCHES,
    *privates("triton.runtime.jit", _FOLLOW, "JITFunction.run JITFunction.is_gluon"),
    Private("triton.runtime.jit", "JITFunction.preload", "compiling a kernel that another process has launched"),
    Private("triton.compiler.compiler", "ASTSource.make_ir", _FRONT_END),
    Private("triton.experimental.gluon._runtime", "GluonASTSource.make_ir", _FRONT_END),
    Private("triton._C.libtriton", "ir.module.str_nodebug", _FRONT_END),
    *privates("triton.runtime", _DRIVE, "driver.set_active driver._active"),
    *privates("triton.runtime.autotuner", _TUNERS, "Autotuner.run Autotuner.prune_configs"),
    Private("triton.runtime.interpreter", "InterpretedFunction.run", _INTERPRET),
    Private("triton.compiler.compiler", "CompiledKernel.launch_metadata", "reading the scalars of a launch"),
    Private("triton.knobs", "runtime.jit_cache_hook", _FOLLOW),
    *privates("triton.knobs", "listing launches", "runtime.launch_enter_hook.add runtime.launch_enter_hook.remove"),
    Private("triton.knobs", "nvidia.nvdisasm.path", "reading the instructions of a cubin"),
    Private("triton.knobs", "nvidia.cuobjdump.path", "reading the resources of a cubin"),
    Private("triton.language.standard", "cdiv", "knowing whether Triton was imported as an interpreter"),
)


def knows_triton() -> bool:
    """Whether Triton is loaded. A process that never imported it launches none of its kernels."""
    return "triton" in sys.modules


@contextmanager
def driven_by(driver: object) -> Iterator[None]:
    """Launch and compile by this driver while inside."""
    active = DRIVER.get()
    before = active._active
    active.set_active(driver)
    try:
        yield
    finally:
        active._active = before


class _Made(BaseException):
    """Ends a compilation once there is a first IR; nothing of Triton's handles it."""


def first_ir(kernel: Any, data: str, begins: Callable[[], None]) -> str:
    """The IR that Triton's front end makes of a kernel (a JITFunction) before any pass, without locations.

    Args:
        data: the specialisation, as `JITFunction.preload` reads it.
        begins: called before the front end reads the kernel.

    Raises:
        Exception: the front end's own.
    """
    sources = SOURCE.get(), GLUON_SOURCE.get()
    with ExitStack() as stack:
        for source in sources:
            stack.enter_context(mock.patch.object(source, "make_ir", _made_by(source.make_ir, begins)))
        try:
            compiled = kernel.preload(data)
        except _Made as made:
            return str(made)
    raise RuntimeError(f"{compiled} was compiled without a first IR: TRITON_ALWAYS_COMPILE is not set")


def _made_by(make_ir: Any, begins: Callable[[], None]) -> Any:
    def made(*args: Any, **kwargs: Any) -> Any:
        begins()
        raise _Made(make_ir(*args, **kwargs).str_nodebug())

    return made


def is_compiled(kind: type) -> bool:
    """Whether objects of this type are kernels that Triton compiled."""
    return kind.__name__ == "CompiledKernel" and kind.__module__.startswith("triton.")


def specialisation_of(compiled: Any) -> tuple[Any, str] | None:
    """The function (JITFunction) that Triton compiled, and its specialisation as `JITFunction.preload` reads it; None
    if it was not compiled from a function."""
    source = compiled.src
    if not isinstance(source, SOURCE.get()):
        return None
    function, metadata = source.fn, compiled.metadata
    options = {name: value for name, value in metadata._asdict().items() if isinstance(value, _PLAIN)}
    # A warp-specialised kernel's metadata count all of its warps; its code names those that were asked for.
    warps = re.search(r'"ttg\.num-warps" = (\d+)', compiled.asm.get("ttgir", ""))
    options |= {"num_warps": int(warps[1])} if warps else {}
    constants = {path: _as_data(value) for path, value in source.constants.items()}
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
    """A constant as Triton writes it into the data of a specialisation."""
    kind = type(constant).__name__
    if kind == "JITFunction":
        return {"jit_function": f"{constant.module}:{constant.fn.__qualname__}"}
    return str(constant) if kind == "dtype" else {"constexpr": constant.value} if kind == "constexpr" else constant


def was_imported_as_interpreter() -> bool:
    """Whether Triton's own functions are for its interpreter. Its other modules must then be imported like that."""
    standard = importlib.import_module("triton.language.standard")
    return not isinstance(standard.cdiv, FUNCTION.get())


def silent_interpreter() -> AbstractContextManager[object]:
    """Within it Triton's interpreter, which computes with NumPy, warns as little of overflows as a GPU does: under
    `-W error` what old memory holds would decide whether a kernel raises. For this thread alone."""
    numpy: Any = sys.modules.get("numpy")
    return numpy.errstate(all="ignore") if numpy else nullcontext()


@contextmanager
def launches_noted(note: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call `note` with the compiled kernel and the grid of every launch by Triton's launcher while inside."""
    kind: Any = COMPILED.loaded()
    chain: Any = getattr(KNOBS.loaded(), "launch_enter_hook", None)
    original = getattr(kind, "launch_metadata", None)
    if original is None or not hasattr(chain, "add"):
        yield
        return

    def launch_metadata(kernel: Any, grid: Any, stream: Any, *args: Any) -> Any:
        note(kernel, grid)
        return original(kernel, grid, stream, *args)

    def listening(metadata: Any) -> None:
        """Without a hook, some launchers describe no launch."""

    chain.add(listening)
    try:
        with mock.patch.object(kind, "launch_metadata", launch_metadata):
            yield
    finally:
        chain.remove(listening)


def tuned_configurations(run: Callable[[], object]) -> dict[str, str]:
    """Kernel -> the configuration that its tuner has chosen, of those that `run` reaches. It must have run before."""
    with tuners_met() as tuners:
        run()
    return {tuner.base_fn.__name__: str(tuner.best_config) for tuner in tuners}


@contextmanager
def tuners_met() -> Iterator[list[Any]]:
    """List the autotuners with several configurations as they are called while inside, each once."""
    met: list[Any] = []
    if not knows_triton():
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


def pinned(number: int) -> AbstractContextManager[Any]:
    """Run every autotuned kernel in its configuration of this number while inside, or in its last if it has fewer."""

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return in_configuration(tuner, tuner.configs[min(number, len(tuner.configs) - 1)], args, kwargs)

    return mock.patch.object(AUTOTUNER.get(), "run", run)


def choices_held() -> AbstractContextManager[Any]:
    """Run every autotuned kernel in what its tuner first chose while inside, or if its own pruning forbids that for the
    arguments, in the first that is left. Tuning for each new size would compile and time all configurations."""
    if not knows_triton():
        return nullcontext()
    launch = AUTOTUNER.get().run

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = next(iter(tuner.cache.values()), None)
        if chosen is None:
            return launch(tuner, *args, **kwargs)
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        left = tuner.prune_configs(kwargs)
        return in_configuration(tuner, chosen if chosen in left or not left else left[0], args, kwargs)

    return mock.patch.object(AUTOTUNER.get(), "run", run)


def in_configuration(tuner: Any, configuration: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch a tuner's kernel in one of its configurations."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    whole = {**tuner.nargs, **kwargs, **configuration.all_kwargs()}
    if configuration.pre_hook is not None:
        configuration.pre_hook(whole)
    tuner.best_config = configuration
    return tuner.fn.run(*args, **kwargs, **configuration.all_kwargs())
