"""The compiler's process-wide settings, so that one that a call leaves changed is named.

A setting that stays behind changes every other compiled function of the process: `capture_scalar_outputs`, set for one
layer, made a loss fail that was compiled apart (torchtitan #2741).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

# Configuration modules of the compiler, by the name that users know. One that was never imported was never changed.
_MODULES = {
    "dynamo": "torch._dynamo.config",
    "inductor": "torch._inductor.config",
    "functorch": "torch._functorch.config",
    "fx": "torch.fx.experimental._config",
}
_MISSING = object()


def settings() -> dict[str, str]:
    """Every setting that is not as torch has it by default, e.g. {"dynamo.capture_scalar_outputs": "False -> True"}.

    Besides the compiler's own: deterministic algorithms, float32 matmul precision and default dtype, which decide what
    is compiled. Imports nothing.
    """
    found: dict[str, str] = {}
    for name, module in _MODULES.items():
        config = sys.modules.get(module)
        for key, entry in getattr(config, "_config", {}).items():
            default, value = getattr(entry, "default", None), _value(entry)
            if value is not _MISSING and value != default:
                found[f"{name}.{key}"] = f"{default!r} -> {value!r}"
    return {**found, **_switches()}


def _value(entry: Any) -> Any:
    """What the user has set; `_MISSING` where it is left to torch. The environment and torch itself set defaults too,
    which are the same for every test of a process."""
    value = getattr(entry, "user_override", _MISSING)
    value = value.get() if hasattr(value, "get") and hasattr(value, "reset") else value  # a ContextVar
    # torch marks what was never set by an object of its own; anything that is no plain value is that.
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
    """`dynamo.capture_scalar_outputs: False -> True` for what differs, sorted."""
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    return [f"{name}: {after[name] if name in after else f'{before[name]}, now the default'}" for name in names]
