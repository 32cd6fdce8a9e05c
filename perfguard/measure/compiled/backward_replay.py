"""Backward passes of compiled graphs that can be repeated over one forward pass.

By default a compiled backward pass may overwrite tensors saved by the forward pass ("donated buffers"), and refuses to
run with `retain_graph=True`. perfguard times a backward pass by repeating it, so it compiles without donated buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from perfguard._compat.torch_compiler import FUNCTORCH, is_compiler_loaded, settings_of

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_SETTING = "donated_buffer"


@contextlib.contextmanager
def replayable() -> Iterator[None]:
    """Compile backward passes that can be repeated while inside. Does nothing if the compiler is not loaded."""
    if not is_compiler_loaded():
        yield
        return
    with FUNCTORCH.get().patch({_SETTING: False}):  # a patch is part of the caches' key
        yield


def replayed(run: Callable[[], T], outputs: Sequence[torch.Tensor]) -> Callable[[], T]:
    """`run`, a backward pass from `outputs`, made to work with `retain_graph=True` if compiled graphs are part of it.
    An eager pass is returned unchanged, so that its cost does not depend on what else the process compiled.

    A compiled pass reads the setting whenever it runs, possibly in a thread of autograd's. A value is visible only in
    the thread that set it, the default in all threads.
    """
    if not any("CompiledFunction" in node.name() for node in _nodes(outputs)):
        return run
    config = FUNCTORCH.get()
    entry = settings_of(config)[_SETTING]

    def again() -> T:
        default, value = entry.default, getattr(config, _SETTING)
        entry.default = False
        setattr(config, _SETTING, False)
        try:
            return run()
        finally:
            setattr(config, _SETTING, value)
            entry.default = default

    return again


def _nodes(outputs: Sequence[torch.Tensor]) -> Iterator[torch.autograd.graph.Node]:
    """Every node of the graph behind `outputs`, once."""
    waiting, seen = [output.grad_fn for output in outputs], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield node
