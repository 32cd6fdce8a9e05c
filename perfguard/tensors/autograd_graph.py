"""The autograd graph behind tensors, and the tensors that its nodes hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def tree_tensors(tree: object) -> list[torch.Tensor]:
    """The tensors in any nesting of containers."""
    import torch

    from perfguard._compat import torch_utils

    return [leaf for leaf in torch_utils.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def graph_nodes(outputs: Iterable[torch.Tensor]) -> Iterator[torch.autograd.graph.Node]:
    """Every node of the autograd graph behind `outputs`, once."""
    waiting, seen = [output.grad_fn for output in outputs], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield node


def tensors_held_by(value: object, above: frozenset[int] = frozenset()) -> Iterator[torch.Tensor]:
    """Tensors in an attribute of an autograd context, which may contain sets, dataclasses, and itself."""
    import torch

    inner: Iterable[object] = ()
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) in above:
        return
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        inner = value
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, each.name) for each in fields(value)]
    for each in inner:
        yield from tensors_held_by(each, above | {id(value)})


def has_storage(tensor: torch.Tensor) -> bool:
    import torch

    from perfguard._compat import torch_utils

    return tensor.layout is torch.strided and torch_utils.is_plain(tensor)


_RAW = "_raw_saved_"
_names: dict[type, list[str]] = {}  # type of a node -> its attributes of saved tensors


def saved_tensors(outputs: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that the graph behind `outputs` holds, each with its node, e.g. `MulBackward0.self`.

    No saved tensor is unpacked, so checkpoints recompute nothing. Tensors that hooks have packed, or that an earlier
    backward pass has freed, are not listed.
    """
    import torch

    from perfguard._compat.torch_internals import below_transforms

    for node in graph_nodes(outputs):
        if type(node) not in _names:
            _names[type(node)] = [name for name in dir(type(node)) if name.startswith(_RAW)]
        for attribute in _names[type(node)]:
            saved = getattr(node, attribute, None)
            for each in saved if isinstance(saved, list | tuple) else [saved]:
                tensor = getattr(each, "data", None)
                tensor = below_transforms(tensor) if isinstance(tensor, torch.Tensor) else None
                if tensor is not None and has_storage(tensor):
                    yield f"{node.name()}.{attribute.removeprefix(_RAW)}", tensor
        for tensor in map(below_transforms, tensors_held_by(getattr(node, "__dict__", {}))):
            if has_storage(tensor):
                yield f"{node.name()}, on its context", tensor
