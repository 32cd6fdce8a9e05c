"""Kinds of operators: copies, reads by the host, operators of libraries; a mode for calls whose kernels do not run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from perfguard._compat.torch_internals import DISPATCH_KEY, OVERLOAD, call_of, own_implementation
from perfguard._compat.torch_utils import DispatchMode, is_fake
from perfguard.tensors.asserted import refuse_asserted

_OVERLOAD = OVERLOAD.get()
COMPOSITE = DISPATCH_KEY.get().CompositeImplicitAutograd

# Operators that only move bytes: to another layout, dtype or device.
COPIES = {"aten.clone", "aten.copy_", "aten._to_copy", "aten.contiguous"}

# The host needs the result of these operators, or its shape. On a device with a queue, each waits for all prior work.
READS = {
    "aten._local_scalar_dense", "aten.equal", "aten.nonzero", "aten.nonzero_numpy", "aten.masked_select",
    "aten.repeat_interleave", "aten._unique", "aten._unique2", "aten.unique_dim", "aten.unique_consecutive",
    "aten.unique_dim_consecutive", "aten.bincount", "aten._linalg_check_errors",
}  # fmt: skip
# The host needs these results if an index is a mask.
_INDEXED = {"aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index"}
# The host needs these results if the operator copies to the host.
_TRANSFERS = {"aten._to_copy", "aten.copy_"}

_FRESH = ("empty", "new_empty")  # These operators leave their result uninitialised.
_FILLS = {
    f"aten.{name}" for name in (
        "zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones",
        "full", "full_like", "new_full", "fill_",
    )
}  # fmt: skip
#: Operators that fill, copy or read memory.
MEMORY = COPIES | _FILLS | READS

# These operators do not touch data: marks for torch and for its profiler, and a query of fake tensors.
_BOOKKEEPING = {
    "_c10d_functional._wrap_tensor_autograd", "prim.device", "profiler._record_function_enter_new",
    "profiler._record_function_exit",
}  # fmt: skip

_SCALARS = {int, float, bool, str, type(None), torch.device, torch.dtype}  # They are no tensors and hold none.

_TORCH_NAMESPACES = {"aten", "prim"}  # Operators of other namespaces belong to libraries.


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties of an operator that do not depend on its arguments.

    Attributes:
        operator: the operator itself. While it is referenced, no other operator has its address.
        run: the function that the operator calls.
        name: the name with its overload, e.g. `aten.mul.Tensor`.
        packet: the name without its overload.
        named: whether it reads or writes data.
        copies: whether it only moves bytes.
        may_read: whether the host may need its result (`host_reads`).
        library: whether it belongs to no namespace of torch.
        higher_order: whether it takes functions, as torch.cond does.
        composite: whether it is one of torch's that autograd splits into others.
    """

    operator: Any
    run: Callable[..., Any]
    name: str
    packet: str
    named: bool = True
    copies: bool = False
    may_read: bool = False
    library: bool = False
    higher_order: bool = False
    composite: bool = False


KINDS: dict[int, Kind] = {}  # The key is the operator's address, because its hash is slow.


def kind_of(func: Any) -> Kind:
    """The kind of an operator that is not in `KINDS` yet. It is stored there."""
    if isinstance(func, _OVERLOAD):
        kind = _kind_of_overload(func)
    else:
        name = f"higher_order.{func.name()}"
        kind = Kind(func, func, name, name, higher_order=True)
    KINDS[id(func)] = kind
    return kind


def _kind_of_overload(func: Any) -> Kind:
    packet = str(func.overloadpacket)
    return Kind(
        func,
        run=call_of(func),
        name=str(func).removesuffix(".default"),
        packet=packet,
        named=packet not in _BOOKKEEPING,
        copies=packet in COPIES,
        may_read=packet in READS | _INDEXED | _TRANSFERS,
        library=func.namespace not in _TORCH_NAMESPACES,
        composite=func.namespace == "aten" and func.has_kernel_for_dispatch_key(COMPOSITE),
    )


def host_reads(kind: Kind, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the host needs an operator's result: always, or if an index is a mask, or if it leaves the device."""
    return (
        kind.packet in READS
        or (kind.packet in _INDEXED and _indexes_by_mask(args))
        or (kind.packet in _TRANSFERS and _is_blocking_transfer(kind, args, kwargs))
    )


def _indexes_by_mask(args: tuple[Any, ...]) -> bool:
    """Whether an indexing operator has a mask as index, so that the host must count the mask's ones.

    Writing a single value needs no count: `x[mask] = 0` is a fill.
    """
    indices = args[1] if len(args) > 1 else ()
    if len(args) > 2 and args[2].numel() == 1 and not (len(args) > 3 and args[3]):
        return False
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _is_blocking_transfer(kind: Kind, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether a copy transfers data to the host and waits for it."""
    if kind.packet == "aten._to_copy":
        target = options.get("device")
        to_host = target is not None and torch.device(target).type == "cpu"
        return to_host and args[0].device.type != "cpu" and not options.get("non_blocking", False)
    waits = not (args[2] if len(args) > 2 else options.get("non_blocking", False))
    return bool(args[0].device.type == "cpu" and args[1].device.type != "cpu" and waits)


def computes_shapes(types: Iterable[type], given: Sequence[torch.Tensor], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator computes only shapes, on fake tensors or on the meta device. torch caches the shapes of fake
    tensors, so the number of these operators depends on earlier calls."""
    if types and any(is_fake(each) for each in types):
        return True
    if given:
        return all(tensor.is_meta for tensor in given)
    device = kwargs.get("device")
    return device is not None and _is_meta(device)


@functools.cache
def _is_meta(device: Any) -> bool:
    return torch.device(device).type == "meta"


def tensors_in(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments or results, which nest only in lists and tuples."""
    tensors = []
    for value in values:
        kind = type(value)
        if kind is torch.Tensor:
            tensors.append(value)
        elif kind in _SCALARS:
            continue
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_in(value)
    return tensors


class Unwritten(DispatchMode):
    """Fills uninitialised memory with zeros; with `on_the_host`, operators for a GPU run on the host.

    The kernels do not run, so their outputs would be uninitialised. Indices among them would be invalid and would
    differ in every run.
    """

    def __init__(self, on_the_host: bool, note: Callable[[str], None] = lambda name: None) -> None:
        """`note` is called with each operator that is no view, e.g. `aten.clone`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_the_host = on_the_host
        self.note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        own = own_implementation(func)
        if own is not None:  # Calls within a user's operator are followed, too.
            with self:
                return own(*args, **kwargs)
        if not func.is_view:
            self.note(str(func.overloadpacket))
        device = kwargs.get("device")
        if self.on_the_host and isinstance(device, torch.device) and device.type != "meta":
            kwargs["device"] = torch.device("cpu")
        if self.on_the_host and kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        refuse_asserted(func, args, kwargs)
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__.startswith(_FRESH) and isinstance(result, torch.Tensor):
            result.zero_()
        return result
