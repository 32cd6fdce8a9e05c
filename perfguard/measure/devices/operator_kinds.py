"""Operators by what matters of them: copies, reads of the host, libraries' own."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from perfguard._compat.torch_internals import OpOverload

# Operators that only move bytes: to another layout, dtype or device.
COPIES = {"aten.clone", "aten.copy_", "aten._to_copy", "aten.contiguous"}

# Operators whose result or its shape the host needs. On a device with a queue, each waits for all work before it.
READS = {
    "aten._local_scalar_dense", "aten.equal", "aten.nonzero", "aten.nonzero_numpy", "aten.masked_select",
    "aten.repeat_interleave", "aten._unique", "aten._unique2", "aten.unique_dim", "aten.unique_consecutive",
    "aten.unique_dim_consecutive", "aten.bincount", "aten._linalg_check_errors",
}  # fmt: skip
# … and those that do so if an index is a mask.
_INDEXED = {"aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index"}
# … and those that do so if they copy to the host.
_LEAVING = {"aten._to_copy", "aten.copy_"}

_TORCH_S = {"aten", "prim"}  # operators of other namespaces belong to libraries


@dataclass(frozen=True)
class Kind:
    """What is known of an operator before it is called.

    Attributes:
        name: `aten.mul.Tensor`.
        packet: the name without its overload.
        copies: whether it only moves bytes.
        reads: whether the host needs its result: always, or if an index is a mask (`indexes`), or if it leaves the
            device (`leaves`).
        library: whether it belongs to no namespace of torch.
    """

    name: str
    packet: str
    copies: bool
    reads: bool
    indexes: bool
    leaves: bool
    library: bool


@functools.cache
def kind_of(func: OpOverload[..., Any]) -> Kind:
    packet = str(func.overloadpacket)
    return Kind(
        name=str(func).removesuffix(".default"),
        packet=packet,
        copies=packet in COPIES,
        reads=packet in READS,
        indexes=packet in _INDEXED,
        leaves=packet in _LEAVING,
        library=func.namespace not in _TORCH_S,
    )


def indexes_by_mask(args: tuple[Any, ...]) -> bool:
    """Whether an indexing operator has a mask as index, so that the host must count its ones.

    A single value needs no count: `x[mask] = 0` is a fill.
    """
    indices = args[1] if len(args) > 1 else ()
    if len(args) > 2 and args[2].numel() == 1 and not (len(args) > 3 and args[3]):
        return False
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def leaves_device(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Whether a copy transfers data to the host and waits for it."""
    options = kwargs or {}
    if kind.packet == "aten._to_copy":
        target = options.get("device")
        there = target is not None and torch.device(target).type == "cpu"
        return there and args[0].device.type != "cpu" and not options.get("non_blocking", False)
    waits = not (args[2] if len(args) > 2 else options.get("non_blocking", False))
    return bool(args[0].device.type == "cpu" and args[1].device.type != "cpu" and waits)


def tensors_in(values: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results, which nest in lists and tuples alone."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(tuple(value))
    return found
