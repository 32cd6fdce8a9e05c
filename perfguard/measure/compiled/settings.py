"""The compiler's process-wide settings: those that a call leaves changed, and the one that lets a backward pass repeat.

A leaked setting changes every other compiled function of the process: `capture_scalar_outputs`, set for one layer,
broke a loss that was compiled separately (torchtitan #2741).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from perfguard._compat.torch_compiler import FUNCTORCH, SETTINGS, is_compiler_loaded, settings_of

T = TypeVar("T")

_MISSING = object()


def settings() -> dict[str, str]:
    """Every setting that differs from torch's default, e.g. {"dynamo.capture_scalar_outputs": "False -> True"}.

    Besides the compiler's own these are deterministic algorithms, float32 matmul precision and default dtype, which
    also affect compilation. Imports no module of the compiler.
    """
    changed: dict[str, str] = {}
    for name, module in SETTINGS.items():
        for key, entry in settings_of(module.loaded()).items():  # A module that is not imported is unchanged.
            default, value = getattr(entry, "default", None), _value(entry)
            if value is not _MISSING and value != default:
                changed[f"{name}.{key}"] = f"{default!r} -> {value!r}"
    return {**changed, **_switches()}


def _value(entry: Any) -> Any:
    """The user's value; `_MISSING` if there is none. Values set by the environment or by torch are ignored, since they
    are the same for every test of a process."""
    value = getattr(entry, "user_override", _MISSING)
    value = value.get() if hasattr(value, "get") and hasattr(value, "reset") else value  # in a ContextVar
    # torch marks an unset value by an object, so a value of any other type counts as unset.
    return value if isinstance(value, bool | int | float | str | list | tuple | dict | set | type(None)) else _MISSING


def _switches() -> dict[str, str]:
    import torch

    usual = {
        "torch.deterministic_algorithms": (False, torch.are_deterministic_algorithms_enabled()),
        "torch.float32_matmul_precision": ("highest", torch.get_float32_matmul_precision()),
        "torch.default_dtype": (torch.float32, torch.get_default_dtype()),
    }
    return {name: f"{default} -> {value}" for name, (default, value) in usual.items() if default != value}


def left_changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The differences, sorted, e.g. `dynamo.capture_scalar_outputs: False -> True`."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [f"{name}: {after[name] if name in after else f'{before[name]}, now the default'}" for name in names]


# By default a compiled backward pass may overwrite tensors saved by the forward pass, and refuses to run with
# `retain_graph=True`. perfguard times a backward pass by repeating it.
_DONATED = "donated_buffer"


@contextlib.contextmanager
def replayable() -> Iterator[None]:
    """Make backward passes that are compiled inside repeatable, if the compiler is loaded."""
    if not is_compiler_loaded():
        yield
        return
    with FUNCTORCH.get().patch({_DONATED: False}):  # The patch is part of the caches' key.
        yield


def replayed(run: Callable[[], T]) -> Callable[[], T]:
    """Make `run`, a backward pass through compiled graphs, work with `retain_graph=True`.

    A compiled pass reads the setting whenever it runs, possibly in a thread of autograd. A value is visible only in the
    thread that set it, but a default is visible in all threads.
    """
    config = FUNCTORCH.get()
    entry = settings_of(config)[_DONATED]

    def again() -> T:
        default, value = entry.default, getattr(config, _DONATED)
        entry.default = False
        setattr(config, _DONATED, False)
        try:
            return run()
        finally:
            setattr(config, _DONATED, value)
            entry.default = default

    return again
