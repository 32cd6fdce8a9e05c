"""Every block of a model compiled by itself, in place: one graph for each kind of block, however many there are.

Whole blocks, router, dispatch and combine included; embedding, final norm and head stay eager, and a loss is compiled
apart by whoever owns it. Nothing of the process is configured: `fullgraph=True` alone makes the compiler take scalars
and sizes that depend on data into the graph (pytorch #163121), and a switch left on would change every other compiled
function too (torchtitan #2741).

Follows torchtitan's `apply_compile` (models/llama3/infra/parallelize.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn


def apply_compile(model: nn.Module, *, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each block of `model.layers` in place: module identity, parameter names, copies and pickles stay as
    they were (copies are not compiled). A block that is compiled already is left as it is, so pipeline stages and
    vision encoders may call this again.

    Args:
        model: has `layers`: a ModuleList, ModuleDict or Sequential, with one block or more.
        backend: of torch.compile.

    Raises:
        ValueError: `model` has no blocks.
        torch._dynamo.exc.InvalidBackend: no backend of that name; nothing is compiled then.
    """
    for block in blocks_of(model):
        if block._compiled_call_impl is None:
            block.compile(backend=backend, fullgraph=True)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The modules in `model.layers`, in order."""
    layers = getattr(model, "layers", None)
    if layers is None:
        raise ValueError(f"model: a {type(model).__name__} has no `layers`; give a model with its blocks in `layers`")
    blocks = list(layers.values() if isinstance(layers, Mapping | nn.ModuleDict) else layers)
    if not blocks:
        raise ValueError(
            f"model: `layers` of this {type(model).__name__} is empty; give a model with one block or more"
        )
    return blocks
