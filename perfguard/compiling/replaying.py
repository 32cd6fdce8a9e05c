"""Backward passes of compiled graphs that can run again and again over one forward pass.

As it comes, a compiled backward pass may write over what forward saved ("donated buffers"), and refuses to run with
`retain_graph=True`. perfguard times a backward pass by repeating it, so it compiles it without.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_SETTING = "donated_buffer"


@contextlib.contextmanager
def replayable() -> Iterator[None]:
    """Within, what is compiled can be replayed. Nothing where nothing is compiled: the compiler is not even loaded."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    import torch._functorch.config

    with torch._functorch.config.patch({_SETTING: False}):  # the key of caches heeds a patch
        yield


def replayed(run: Callable[[], T], outputs: Sequence[torch.Tensor]) -> Callable[[], T]:
    """`run`, a backward pass from `outputs`, as compiled graphs allow it with `retain_graph=True`; as it is where none
    of them has a part in it, so that an eager pass costs the same whatever else the process compiled.

    A compiled pass looks at the setting whenever it runs, perhaps in a thread of autograd's. A value is seen in the
    thread that set it only, the default in all.
    """
    if not any("CompiledFunction" in node.name() for node in _nodes(outputs)):
        return run
    import torch._functorch.config as config

    entry = config._config[_SETTING]  # type: ignore[attr-defined]

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
