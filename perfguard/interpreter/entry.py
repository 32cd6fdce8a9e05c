"""Replaces names of Triton's interpreter while a guarded or observed call runs, and restores them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from perfguard._compat import triton_interpreter as names
from perfguard._compat.private import Private
from perfguard._compat.triton_internals import forget_driver, in_configuration
from perfguard.interpreter.running import RUNNING, NotInterpreted, OutsideMemory, StrictRunImpossible
from perfguard.model.errors import PerfguardError

Replacement = Callable[..., Any]

_TRUE = ("1", "true", "on", "y", "yes")  # Triton reads its variables so.
_entered: list[bool] = []  # Holds one item for each active `interpreting`.


def is_interpreting() -> bool:
    """Whether Triton interprets kernels that are defined from now on."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in _TRUE


@contextmanager
def interpreting() -> Iterator[None]:
    """Interpret kernels with this package while inside. Nothing changes if Triton's interpreter is not loaded."""
    loaded = "triton" in sys.modules and (names.INTERPRETER.loaded() is not None or is_interpreting())
    enters = loaded and not _entered
    put_back = _enter() if enters else lambda: None
    _entered.extend([True] * enters)
    RUNNING.forget()
    try:
        yield
    finally:
        RUNNING.forget()
        if enters:
            _entered.clear()
            put_back()


def interpret_here() -> Callable[[], None]:
    """Interpret kernels with this package from now on, in this process; returns a function that restores Triton."""
    if _entered:
        return lambda: None
    put_back = _enter()
    _entered.append(True)

    def leave() -> None:
        _entered.clear()
        put_back()

    return leave


def _enter() -> Callable[[], None]:
    from perfguard.interpreter.host import HostDriver

    shared = names.SHARED.get()
    before = [(private, private.set(value)) for private, value in _replacements()]
    builder, shared.__class__ = type(shared), _builder()
    interpreter = names.INTERPRETER.get()
    for name, function in _helpers().items():  # Rewritten kernels find them there.
        setattr(interpreter, name, function)

    def put_back() -> None:
        forget_driver(HostDriver)
        shared.__class__ = builder
        for private, value in reversed(before):
            private.set(value)

    return put_back


@functools.cache
def _builder() -> Any:
    from perfguard.interpreter.builder import Builder

    return Builder


@functools.cache
def _helpers() -> dict[str, Replacement]:
    from perfguard.interpreter.sources import INVERT, JOIN, LOOP_INDICES, invert, join, loop_indices

    return {JOIN: join, INVERT: invert, LOOP_INDICES: loop_indices}


@functools.cache
def _replacements() -> list[tuple[Private, Any]]:
    """(name, replacement), made once, since some of the replacements cache results."""
    from triton import language

    from perfguard.interpreter.host import driver_or_host, reported_on_a_gpu, warmed
    from perfguard.interpreter.reductions import reduced, scanned
    from perfguard.interpreter.sources import rewriter
    from perfguard.interpreter.speed import quicker

    patch, launch = _patched_once_a_launch(language)
    return [
        *quicker(language),
        (names.PATCH, patch),
        (names.LAUNCH, launch),
        (names.CONVERT, _converted),
        (names.ARGUMENT, _as_argument(language)),
        (names.REDUCE, reduced),
        (names.SCAN, scanned),
        (names.REWRITER, rewriter()),
        (names.REWRITTEN, {}),
        (names.TUNE, _in_first_configuration()),
        (names.COMPILED_LAUNCH, _named_if_gluon()),
        (names.CREATE_DRIVER, driver_or_host()),
        (names.WARM, warmed()),
        (names.REPORT, reported_on_a_gpu()),
    ]


def _converted(given: Any, kind: Any, wanted: Any, rounding: Any) -> Any:
    """The replacement of Triton's conversion between formats of floats."""
    handle = names.HANDLE.get()(given, kind)
    return names.SHARED.get().create_fp_to_fp(handle, wanted, rounding).data


def _as_argument(language: Any) -> Replacement:
    """Converts arguments that are floats to float32 as Triton's compiler does, which affects the type of products."""
    convert, handle = names.ARGUMENT.get(), names.HANDLE.get()

    def as_argument(given: Any) -> Any:
        if type(given) is not float:
            return convert(given)
        return language.tensor(handle(np.array([given], dtype=np.float32), language.float32), language.float32)

    return as_argument


def _patched_once_a_launch(language: Any) -> tuple[Replacement, Replacement]:
    """Replaces the functions of triton.language once per launch. The interpreter does so again at each call of a device
    function (such as `tl.max`), although only the first has an effect. Triton 3.9 restores only what the launch itself
    replaced, so that kernels compiled later in this process would use the rest."""
    from perfguard.interpreter.libraries import replace_libraries
    from perfguard.interpreter.speed import Language

    run, whole = names.LAUNCH.get(), Language(language)
    met: set[int] = set()  # The ids of globals whose libraries are replaced.
    undone: list[Callable[[], None]] = []

    def patch_once(function: Any) -> Any:
        first = not met
        if id(function.__globals__) not in met:
            met.add(id(function.__globals__))
            undone.append(replace_libraries(function.__globals__))
        if first:
            whole.replace()
        return whole

    def run_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        met.clear()
        undone.clear()
        self.grid = _as_tuples(self.grid)
        RUNNING.begin(self.fn.__name__, _spans((*args, *kwargs.values())))
        try:
            result = run(self, *args, **kwargs)
            RUNNING.end()
            return result
        finally:
            for undo in reversed(undone):
                undo()

    return patch_once, run_afresh


def _as_tuples(grid: Any) -> Any:
    """A grid whose dimensions are a tuple, as the interpreter needs them; a device takes a list as well."""
    return (lambda arguments: tuple(grid(arguments))) if callable(grid) else tuple(grid)


def _spans(arguments: Any) -> tuple[Any, Any] | None:
    """The first and last addresses of the storages of a launch, ascending; None if any is on another device."""
    from perfguard._compat.torch_utils import is_fake  # It imports torch, which the fixture of a suite may lack.

    ends: dict[int, int] = {}
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop()
        if isinstance(argument, tuple | list):
            waiting += argument
        elif hasattr(argument, "untyped_storage"):
            if is_fake(type(argument)):  # A fake implementation launches the kernel, as that of a `triton_op` does.
                raise NotInterpreted("a launch on tensors without data")
            if argument.device.type != "cpu":
                return None
            storage = argument.untyped_storage()
            content = RUNNING.content_of(storage.data_ptr()) if RUNNING.content_of is not None else None
            start, end = content or (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
            ends[start] = max(ends.get(start, 0), end)
        elif hasattr(argument, "base"):  # This is a descriptor, or a tensor that is read as another type.
            waiting.append(argument.base)
        elif hasattr(argument, "data_ptr"):
            return None
    starts = sorted(ends)
    return np.array(starts, dtype=np.uint64), np.array([ends[start] for start in starts], dtype=np.uint64)


def _in_first_configuration() -> Replacement:
    """Runs a tuner's first configuration, since timing needs a driver. The others are checked beside the call."""
    tune, interpreted = names.TUNE.get(), names.INTERPRETER.get().InterpretedFunction

    def run(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = tuner.fn
        while not isinstance(kernel, interpreted):
            if not hasattr(kernel, "fn"):
                return tune(tuner, *args, **kwargs)
            kernel = kernel.fn
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        try:
            left = tuner.prune_configs(kwargs) if tuner.early_config_prune else tuner.configs
        except RuntimeError:  # The pruning needs a driver.
            left = tuner.configs
        return in_configuration(tuner, next(iter(left), tuner.configs[0]), args, kwargs)

    return run


def _named_if_gluon() -> Replacement:
    from perfguard.interpreter.host import NoDevice

    launch = names.COMPILED_LAUNCH.get()

    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return launch(kernel, *args, **kwargs)
        except NoDevice:
            pass
        if kernel.is_gluon():
            raise NotInterpreted(f"{kernel.fn.__name__}, a kernel of Gluon,")
        raise RuntimeError("0 active drivers ([]). There should only be one.")  # This is Triton's own error.

    return run


def interpreter_error(error: BaseException | None) -> PerfguardError | None:
    """The interpreter's own error inside `error`, however Triton has wrapped it; None if there is none."""
    met: set[int] = set()
    while error is not None and id(error) not in met:
        if isinstance(error, NotInterpreted | StrictRunImpossible | OutsideMemory):
            return error
        met.add(id(error))
        error = error.__cause__ or error.__context__
    return None
