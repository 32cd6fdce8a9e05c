"""torch.compile: whether it is loaded, its counters and its settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from perfguard._compat.private import Private, privates

_DYNAMO = "torch._dynamo"

_TABLE = "keeping wrapped allocators out of the compiler's table of torch's functions"

RULES = Private("torch._dynamo.trace_rules", "get_torch_obj_rule_map", _TABLE)
CLEAR_RULES = Private("torch._dynamo.trace_rules", "clear_lru_cache", _TABLE)
FRAMES = Private("torch._dynamo.convert_frame", "FRAME_COUNTER", "knowing whether anything was compiled")
RESET = Private(_DYNAMO, "reset", "forgetting what was compiled, between two walks")
COUNTERS = Private("torch._dynamo.utils", "counters", "counting cached graphs and library calls")
METRICS = Private("torch._inductor.metrics", "", "counting generated kernels")
COMPILE_FX = Private("torch._inductor.compile_fx", "", "knowing whether inductor has been used")
PATCH_INDUCTOR = Private("torch._inductor.config", "patch", "bypassing inductor's caches")
FUNCTORCH = Private("torch._functorch.config", "", "repeating a backward pass, and bypassing the cache of graphs")
CACHE_FOLDER = Private("torch._inductor.runtime.cache_dir_utils", "triton_cache_dir", "finding inductor's binaries")
CACHE_KEY = Private("torch._inductor.runtime.runtime_utils", "triton_hash_to_path_key", "finding inductor's binaries")

#: The logger of torch's structured trace.
TRACE_LOGGER = "torch.__trace"

#: Configuration modules of the compiler, by the name that users know.
SETTINGS = {
    name: Private(module, "", "reporting settings that a call leaves changed")
    for name, module in {
        "dynamo": "torch._dynamo.config",
        "inductor": "torch._inductor.config",
        "functorch": "torch._functorch.config",
        "fx": "torch.fx.experimental._config",
    }.items()
}

NAMES = (
    Private("torch._dynamo.trace_rules", "get_torch_obj_rule_map.cache_info", _TABLE),
    *SETTINGS.values(),
    *(Private(each.module, "_config", each.used_for) for each in SETTINGS.values()),
    Private("torch._functorch.config", "donated_buffer", "repeating a backward pass"),
    *privates(
        "torch._functorch.config",
        "bypassing the cache of graphs",
        "patch enable_autograd_cache enable_remote_autograd_cache",
    ),
    *privates("torch._inductor.config", "bypassing inductor's caches", "fx_graph_cache fx_graph_remote_cache"),
    Private("torch._inductor.metrics", "generated_kernel_count", "counting generated kernels"),
    Private("torch._logging._internal", "trace_log", f"the trace of compilations, logged to {TRACE_LOGGER}"),
)


def is_compiler_loaded() -> bool:
    """Whether torch.compile is loaded. A process without it has compiled nothing."""
    return _DYNAMO in sys.modules


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled functions eagerly while inside: nothing is compiled, and no variant counts towards torch's limit."""
    import torch

    return torch.compiler.set_stance("force_eager") if is_compiler_loaded() else nullcontext()


def has_compiled() -> bool:
    """Whether torch.compile has looked at the code of any function in this process."""
    return bool(FRAMES.loaded())


def load_compiler() -> None:
    """Import torch.compile."""
    RESET.get()


def forget_compiled() -> None:
    """Reset torch's compiler to its state in a fresh process, if it is loaded. Disk caches are kept."""
    reset = RESET.loaded()
    if reset is not None:
        reset()


def knows_torch_functions() -> bool:
    """Whether torch.compile's table of torch functions is built (a custom operator's call is enough)."""
    rules = RULES.loaded()
    return rules is not None and rules.cache_info().currsize > 0


def forget_torch_functions() -> None:
    """Clear torch.compile's table of torch functions."""
    CLEAR_RULES.get()()


def settings_of(module: Any) -> Mapping[str, Any]:
    """The entries of a configuration module by name. An entry has the default, the user's value, and more."""
    entries: Mapping[str, Any] = getattr(module, "_config", {})
    return entries


def is_inductors(kind: type) -> bool:
    """Whether objects of this type are kernels that inductor launches itself."""
    return kind.__name__.startswith("StaticallyLaunched") and kind.__module__.startswith("torch._inductor.")
