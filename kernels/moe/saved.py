"""What a module keeps in memory between its forward and its backward pass.

Autograd shows what it saves to `saved_tensors_hooks`; tensors that a custom function keeps on its context, also inside
containers and dataclasses, are found by walking the graph. Each storage counts once, whole, however many tensors and
consumers share it. What a freed part of the graph had saved does not count.

The idea of accounting by unique storage follows torchtitan's and PyTorch's memory trackers; see kernels.md section 4.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.moe.layer import MoE

Kind = Literal["weight", "weight copy", "activation"]


@dataclass(frozen=True)
class SavedStorage:
    """One storage that is kept for the backward pass.

    Attributes:
        kind: "weight": a parameter's, or a slice of one; "weight copy": a parameter in another dtype or layout;
            "activation": the rest, the module's own inputs included.
        bytes: of the whole storage, more than its tensors show where they are views of a part.
        layer: path of the innermost submodule that saved it first; "" is the module itself.
        shape, dtype: of the first tensor that was saved of it.
        producer: the operator that made it, "input 0", or "parameter w1", "buffer mask" by name.
        tensors: how often it was saved.
    """

    kind: Kind
    bytes: int
    layer: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    producer: str
    tensors: int


@dataclass(frozen=True)
class SavedProfile:
    """All storages that one forward pass keeps, in the order in which they were saved."""

    storages: tuple[SavedStorage, ...]

    @property
    def activation_bytes(self) -> int:
        return self._bytes("activation")

    @property
    def weight_bytes(self) -> int:
        """Of parameters that are kept by reference: they cost no memory besides."""
        return self._bytes("weight")

    @property
    def weight_copy_bytes(self) -> int:
        """Of casts and copies of parameters: memory, though no activation."""
        return self._bytes("weight copy")

    @property
    def input_bytes(self) -> int:
        """The part of `activation_bytes` that the caller handed in."""
        return sum(each.bytes for each in self.storages if each.producer.startswith("input "))

    def within(self, layer: str) -> SavedProfile:
        """What the submodule of that path saved first, itself or inside."""
        inside = (each for each in self.storages if f"{each.layer}.".startswith(f"{layer}.") or not layer)
        return SavedProfile(tuple(inside))

    @property
    def layers(self) -> dict[str, SavedProfile]:
        """By the submodule that saved it: each storage in one of them."""
        names = dict.fromkeys(each.layer for each in self.storages)
        return {name: SavedProfile(tuple(each for each in self.storages if each.layer == name)) for name in names}

    def _bytes(self, kind: Kind) -> int:
        return sum(each.bytes for each in self.storages if each.kind == kind)

    def __str__(self) -> str:
        """A line a storage."""
        return "\n".join(
            f"{each.bytes:>14,} B  {each.kind:<11}  {each.layer or '.':<20} "
            f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}  {each.producer}"
            for each in self.storages
        )


def profile_saved(module: nn.Module, inputs: Sequence[Any]) -> SavedProfile:
    """Run `module(*inputs)` once, with autograd, and tell what is kept as long as its output lives.

    Inputs require grad or not as the caller has set it: that changes what is saved. Buffers and random numbers move
    as in any forward pass. Runs nothing backward. Modules that are compiled save out of sight of this.
    """
    ledger = _Ledger(module, inputs)
    with (
        torch.enable_grad(),
        ledger.layers_watched(),
        torch.autograd.graph.saved_tensors_hooks(ledger.pack, ledger.unpack),
        ledger,
    ):
        output = module(*inputs)
    ledger.add_kept_on_contexts(output)
    return ledger.profile()


class _Handle:
    """Stands in the graph for a saved tensor: it lives as long as the graph does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # with its history it would keep the graph that keeps it


@dataclass
class _Entry:
    handle: weakref.ref[_Handle]
    layer: str
    producer: str
    kind: Kind


class _Ledger(TorchDispatchMode):
    """Who made each storage, and what was saved in which submodule."""

    def __init__(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.module = module
        self.entries: list[_Entry] = []
        self.kept: list[_Handle] = []  # of contexts, whose tensors have no handle in the graph
        self.path: list[str] = [""]
        self.producers: dict[int, str] = {}
        self.kinds: dict[int, Kind] = {}
        for position, leaf in enumerate(pytree.tree_leaves(tuple(inputs))):
            if isinstance(leaf, Tensor):
                self.producers[_key(leaf)] = f"input {position}"
        for name, buffer in module.named_buffers():
            self.producers[_key(buffer)] = f"buffer {name}"
        for name, parameter in module.named_parameters():
            self.producers[_key(parameter)] = f"parameter {name}"
            self.kinds[_key(parameter)] = "weight"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        sources = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = {_key(source) for source in sources}
        copied = func.overloadpacket in _COPIES and self.kinds.get(_key(sources[0])) in ("weight", "weight copy")
        for result in pytree.tree_leaves(results):
            if isinstance(result, Tensor) and _key(result) not in known:
                # An address may have belonged to a tensor that is gone: what is known of it is replaced.
                self.producers[_key(result)] = str(func.overloadpacket).replace("aten.", "")
                self.kinds[_key(result)] = "weight copy" if copied else "activation"
        return results

    @contextmanager
    def layers_watched(self) -> Iterator[None]:
        """Within, `path` ends with the submodule whose forward runs."""
        hooks = []
        # Experts that are recomputed are not called; with hooks they would be.
        uncalled = {id(each.experts) for each in self.module.modules() if isinstance(each, MoE) and each.recomputes}
        for name, child in self.module.named_modules():
            if id(child) in uncalled:
                continue
            hooks.append(child.register_forward_pre_hook(self._entering(name)))
            hooks.append(child.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Any:
        return lambda *_: self.path.append(name)

    def _leaving(self, *_: Any) -> None:
        self.path.pop()

    def pack(self, tensor: Tensor) -> _Handle:
        handle = _Handle(tensor)
        self._enter(handle, self.path[-1])
        return handle

    @staticmethod
    def unpack(handle: _Handle) -> Tensor:
        return handle.tensor

    def add_kept_on_contexts(self, output: Any) -> None:
        """Tensors among the attributes of the graph's Python nodes."""
        for node in _nodes(output):
            for tensor in _tensors_in(list(getattr(node, "__dict__", {}).values()), seen=set()):
                handle = _Handle(tensor)
                self.kept.append(handle)
                self._enter(handle, "")

    def _enter(self, handle: _Handle, layer: str) -> None:
        key = _key(handle.tensor)
        producer, kind = self.producers.get(key, "unknown"), self.kinds.get(key, "activation")
        self.entries.append(_Entry(weakref.ref(handle), layer, producer, kind))

    def profile(self) -> SavedProfile:
        found: dict[int, SavedStorage] = {}
        for entry in self.entries:
            handle = entry.handle()
            if handle is None:
                continue
            tensor, key = handle.tensor, _key(handle.tensor)
            known = found.get(key)
            if known is not None:
                found[key] = dataclasses.replace(known, tensors=known.tensors + 1)
            elif tensor.untyped_storage().nbytes():
                found[key] = SavedStorage(
                    kind=entry.kind,
                    bytes=tensor.untyped_storage().nbytes(),
                    layer=entry.layer,
                    shape=tuple(tensor.shape),
                    dtype=tensor.dtype,
                    producer=entry.producer,
                    tensors=1,
                )
        return SavedProfile(tuple(found.values()))


_COPIES = {torch.ops.aten._to_copy, torch.ops.aten.clone}


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _nodes(output: Any) -> Iterator[Any]:
    """Every node of the graph behind `output`, once."""
    waiting = [leaf.grad_fn for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        yield node


def _tensors_in(values: Iterable[Any], seen: set[int]) -> Iterator[Tensor]:
    """Tensors in nested sequences, mappings and dataclasses."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif id(value) in seen:
            continue
        elif isinstance(value, Mapping):
            yield from _tensors_in(value.values(), seen | {id(value)})
        elif isinstance(value, list | tuple | set | frozenset):
            yield from _tensors_in(value, seen | {id(value)})
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
            yield from _tensors_in(fields, seen | {id(value)})
