"""Memory that a forward pass keeps for the backward pass, by unique storage.

Autograd passes saved tensors to `saved_tensors_hooks`. Tensors that a custom function keeps on its context are found by
walking the graph. A storage counts once and as a whole, however many tensors share it: a view pins all of it. Tensors
that a checkpoint will recompute are not kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfguard._compat.torch_internals import storage_address
from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import EITHER, Limits
from perfguard.model.records import Better, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.device import Device

TIMED = False

_RANK = 54

LIMITS = {
    "saved_activation_bytes": Limits(Better.LOWER, portable=EITHER),
    "saved_input_bytes": Limits(Better.LOWER, portable=EITHER),
}

Kind = Literal["activation", "input", "weight"]


@dataclass(frozen=True)
class Saved:
    """One kept storage: its kind, its bytes, and a text on the first tensor saved in it."""

    kind: Kind
    bytes: int
    text: str


def read(subject: Subject, device: Device) -> list[Reading]:
    """For a forward pass with a backward one: `saved_activation_bytes` and `saved_input_bytes`, which fail on any rise;
    `saved_weight_bytes`, which exist anyway; and `saved_tensors`, the list that explains them.

    Activations are made by the call, inputs are passed to it, weights are a module's parameters and inputs that are
    `nn.Parameter`s. Tensors saved by torch.compile count as well, with an unknown producer.
    """
    if subject.direction != "forward":
        return []
    subject.warm_up(device)
    storages = saved_by(subject)
    if storages is None:
        return []
    portable = not device.asynchronous
    readings = [
        Reading(
            f"saved_{kind}_bytes",
            Unit.BYTES,
            sum(each.bytes for each in storages if each.kind == kind),
            gated=kind != "weight",
            portable=portable,
            drifts=True,
            rank=_RANK,
        )
        for kind in ("activation", "input", "weight")
    ]
    told = [each.text for each in storages if each.kind != "weight"]
    named = Reading(
        "saved_tensors",
        Unit.TEXT,
        told,
        better=Better.SAME,
        gated=False,
        portable=portable,
        drifts=True,
        rank=_RANK,
        details="saved_activation_bytes",
    )
    return [*readings, named]


def saved_by(subject: Subject) -> list[Saved] | None:
    """The storages kept for the lifetime of the outputs, in the order of saving; None without a graph."""
    import torch

    if not subject.differentiated and not any(tensor.grad_fn for tensor in _tensors_in([subject.run()], set())):
        return None  # skips imports of a dispatch mode, which take seconds in every process
    ledger = _Ledger(subject)
    producers = _producers(ledger)
    with torch.autograd.graph.saved_tensors_hooks(ledger.pack, _Handle.unpacked), producers:
        outputs = subject.run()
    ledger.add_kept_on_contexts(_nodes(outputs))
    return ledger.alive()


class _Handle:
    """Placeholder in the graph for a saved tensor, with the lifetime of the graph."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()  # an undetached tensor would form a cycle with the graph

    def unpacked(self) -> torch.Tensor:
        """The tensor, for the backward pass."""
        return self.tensor


class _Ledger:
    """The kind and maker of each storage, and the tensors saved in it."""

    def __init__(self, subject: Subject) -> None:
        import torch

        self.handles: list[weakref.ref[_Handle]] = []
        self.kept: list[_Handle] = []  # for tensors on contexts, which have no handle in the graph
        self.kinds: dict[int, Kind] = {}
        self.makers: dict[int, str] = {}
        given = [tensor for tensor in _tensors_in(subject.args, set()) if _has_storage(tensor)]
        for position, tensor in enumerate(given):
            self.kinds[_key(tensor)] = "weight" if isinstance(tensor, torch.nn.Parameter) else "input"
            self.makers[_key(tensor)] = f"input {position}"
        for tensor in filter(_has_storage, subject.weights):
            self.kinds[_key(tensor)] = "weight"

    def made(self, tensor: torch.Tensor, maker: str) -> None:
        """Replace the entry of a storage, whose address may have belonged to a freed tensor."""
        self.makers[_key(tensor)] = maker
        self.kinds.pop(_key(tensor), None)

    def pack(self, tensor: torch.Tensor) -> _Handle:
        handle = _Handle(tensor)
        self.handles.append(weakref.ref(handle))
        return handle

    def add_kept_on_contexts(self, nodes: Iterable[Any]) -> None:
        for node in nodes:
            for tensor in _tensors_in(list(getattr(node, "__dict__", {}).values()), set()):
                self.kept.append(_Handle(tensor))
                self.handles.append(weakref.ref(self.kept[-1]))

    def alive(self) -> list[Saved]:
        found: dict[int, Saved] = {}
        for reference in self.handles:
            handle = reference()
            if handle is None or not _has_storage(handle.tensor):
                continue
            tensor, key = handle.tensor, _key(handle.tensor)
            count = tensor.untyped_storage().nbytes()
            if key not in found and count:
                found[key] = Saved(self.kinds.get(key, "activation"), count, self._text(tensor, key, count))
        return list(found.values())

    def _text(self, tensor: torch.Tensor, key: int, count: int) -> str:
        shape = ",".join(map(str, tensor.shape))
        text = f"{str(tensor.dtype).removeprefix('torch.')}[{shape}] by {self.makers.get(key, 'unknown')}"
        own = tensor.numel() * tensor.itemsize
        return text if count <= own else f"{text}, a view that pins {count} bytes"


def _producers(ledger: _Ledger) -> Any:
    """A dispatch mode that records in the ledger the operator that made each storage."""
    from perfguard._compat.torch_utils import DispatchMode

    class Producers(DispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            results = func(*args, **(kwargs or {}))
            given = {_key(tensor) for tensor in _tensors_in((args, kwargs), set()) if _has_storage(tensor)}
            for tensor in _tensors_in([results], set()):
                if _has_storage(tensor) and _key(tensor) not in given:
                    ledger.made(tensor, str(func.overloadpacket))
            return results

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # a compiled region stays compiled

    return Producers()  # type: ignore[no-untyped-call]


def _key(tensor: torch.Tensor) -> int:
    return storage_address(tensor)


def _has_storage(tensor: torch.Tensor) -> bool:
    import torch

    return tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _nodes(outputs: Any) -> Iterator[Any]:
    """Every node of the graph behind `outputs`, once."""
    waiting = [tensor.grad_fn for tensor in _tensors_in([outputs], set())]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        yield node


def _tensors_in(values: Sequence[Any], seen: set[int]) -> Iterator[torch.Tensor]:
    """Tensors in nested sequences, mappings and dataclasses."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif id(value) in seen:
            continue
        elif isinstance(value, Mapping):
            yield from _tensors_in(list(value.values()), seen | {id(value)})
        elif isinstance(value, list | tuple | set | frozenset):
            yield from _tensors_in(list(value), seen | {id(value)})
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _tensors_in([getattr(value, each.name) for each in fields(value)], seen | {id(value)})
