"""Operators as they reach their kernels: names, copies, host reads with their lines, live tensors."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from perfguard._compat import torch_utils
from perfguard._compat.torch_internals import (
    DISPATCH_KEY,
    KEYS,
    KEYSET_AFTER,
    MODES,
    OVERLOAD,
    address_of,
    storage_address,
)
from perfguard._compat.torch_utils import DispatchMode
from perfguard._compat.triton_internals import GRID
from perfguard.measure.devices.device import Activity, Copied, Ledger, Waited
from perfguard.measure.gc_pause import collector_paused
from perfguard.model.mesh import in_group
from perfguard.tensors.step import Step
from perfguard.tensors.user_frames import place_in_python

if TYPE_CHECKING:
    from perfguard._compat.torch_internals import OpOverload
    from perfguard.measure.collectives.recorder import Recorder

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

_TORCH_S = {"aten", "prim"}  # operators of other namespaces belong to libraries
_KEYS, _MODES, _OVERLOAD = KEYS.get(), MODES.get(), OVERLOAD.get()
_COMPOSITE = DISPATCH_KEY.get().CompositeImplicitAutograd
_BELOW_MODES = KEYSET_AFTER.get()(DISPATCH_KEY.get().Python)
_PLAIN = (torch.Tensor, torch.nn.Parameter)

# Operators that do nothing to data: marks for torch itself and for its profiler, and a question that fake tensors ask.
_BOOKKEEPING = {
    "_c10d_functional._wrap_tensor_autograd", "prim.device", "profiler._record_function_enter_new",
    "profiler._record_function_exit",
}  # fmt: skip

# Methods that read a tensor's data without any operator: owner, attribute, name.
Method = tuple[Any, str, str]
_METHODS: tuple[Method, ...] = tuple(
    (torch.Tensor, name, f"Tensor.{name}") for name in ("numpy", "tolist", "__array__")
)


def of_call(call: Callable[[], object], kind: str = "cpu", waiting: Sequence[Method] = _METHODS) -> Activity:
    """Operators that `call` dispatches below autograd, e.g. `aten.mul.Tensor`; a custom operator is one entry.

    A torch.compile'd region contributes only the operators that it calls, not its fused loops. Reads inside a custom
    operator are listed, since the host would wait for a GPU there; copies inside it are not. A kernel in Triton's
    interpreter is one entry without reads, e.g. `triton._rms_norm`: on a GPU it would be one launch.

    In a process group the exchanges with other ranks are recorded. Of a `Step` only the pass that it reads counts.

    Args:
        kind: device type whose tensors count as read.
        waiting: methods that read data, or wait for the device, without any operator.
    """
    step = call if isinstance(call, Step) else None
    seen = _Operators(kind, _recorder(step))
    with ExitStack() as around:
        around.enter_context(collector_paused())
        if step is None:
            with _watched(seen, waiting):
                result = call()
        else:
            result = step.within(_watched(seen, waiting))
        del result
    activity = Activity(seen.names, seen.copies, 0, seen.waits, seen.ledger.peak)
    found = seen.recorder
    if found is None:
        return activity
    return replace(activity, exchanges=found.exchanges, flop=found.flop, gathered=found.gathered)


def _recorder(step: Step | None) -> Recorder | None:
    if not in_group():
        return None
    from perfguard.measure.collectives.recorder import Recorder

    return Recorder(None if step is None else step.call)


@contextmanager
def _watched(seen: _Operators, waiting: Sequence[Method]) -> Iterator[None]:
    """Feed `seen` with all that runs while inside."""
    with ExitStack() as around:
        around.enter_context(_noted(waiting, seen.waits))
        around.enter_context(_interpreted(seen))
        if seen.recorder is not None:
            around.enter_context(seen.recorder.following())
            around.enter_context(_resized(seen.ledger))
        around.enter_context(seen)
        yield


class _Operators(DispatchMode):
    """Records every operator that reaches a kernel, and follows the memory of its results."""

    supports_higher_order_operators = True  # one entry each for torch.cond and the like; torch would raise otherwise

    def __init__(self, kind: str, recorder: Recorder | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = kind
        self.recorder = recorder
        self.names: list[str] = []
        self.copies: list[Copied] = []
        self.waits: list[Waited] = []
        self.ledger = Ledger()
        self.inside = 0  # nesting depth of operators implemented by libraries
        self.interpreting = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.interpreting:
            return func(*args, **(kwargs or {}))
        if torch_utils.are_unfolded(types):
            return NotImplemented
        if not isinstance(func, _OVERLOAD):
            self.names.extend([f"higher_order.{func.name()}"] * (not self.inside))
            return func(*args, **(kwargs or {}))
        packet = str(func.overloadpacket)
        given = _tensors((args, kwargs))
        reads = packet in READS or (packet in _INDEXED and _by_mask(args)) or _leaves_device(packet, args, kwargs)
        if reads and any(tensor.device.type == self.kind for tensor in given):
            self.waits.append(Waited(packet, place_in_python()))
        if self.inside:
            return self._run(func, args, kwargs or {}, given)
        if packet not in _BOOKKEEPING:
            self.names.append(str(func).removesuffix(".default"))
        results = self._run(func, args, kwargs or {}, given)
        returned = _tensors(results)
        if packet in COPIES:
            moved = sum(each.numel() * each.itemsize for each in returned)
            self.copies.append(Copied(packet, moved, place_in_python()))
        if returned:
            self._follow(returned, given)
        return results

    def _run(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: Any) -> Any:
        """Run an operator, and tell the recorder of exchanges, if there is one."""
        recorder = self.recorder
        if recorder is None:
            return self._opened(func, args, kwargs, given)
        if recorder.exchanges_by(func):
            return recorder.run(func, args, kwargs)
        recorder.used(func, given)
        results = self._opened(func, args, kwargs, given)
        recorder.count(func, args, kwargs, results)
        return results

    def _opened(self, func: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: Any) -> Any:
        """Run an operator; the implementation of a library's operator runs with this mode on, so its reads are seen.

        The operator itself must not come here again, so it is called from below the modes. Autograd, which splits
        composite operators outside (`aten.item`), is off inside, so these are split here.
        """
        opened = func.namespace not in _TORCH_S or (self.inside and func.has_kernel_for_dispatch_key(_COMPOSITE))
        plain = all(type(tensor) in _PLAIN for tensor in given)
        if not (opened and given and plain) or _MODES():
            return func(*args, **kwargs)
        keys = functools.reduce(operator.or_, map(_KEYS, given))
        self.inside += 1
        try:
            with self:
                return func.redispatch(keys & _BELOW_MODES, *args, **kwargs)
        finally:
            self.inside -= 1

    def _follow(self, returned: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        """Count new storages until they are freed; storages of the caller's tensors are never counted."""
        old = {storage_address(tensor) for tensor in given if _has_memory(tensor)}
        for tensor in filter(_has_memory, returned):
            storage = tensor.untyped_storage()
            address = storage_address(tensor)
            if address not in self.ledger.alive:
                if address in old:
                    continue
                weakref.finalize(storage, self.ledger.remove, address).atexit = False
            self.ledger.add(address, storage.nbytes())

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise torch.compile is skipped under this mode, and eager operators are counted


@contextmanager
def _noted(methods: Sequence[Method], waits: list[Waited]) -> Iterator[None]:
    """Record calls of `methods` while inside."""
    before = [vars(owner).get(attribute) for owner, attribute, _ in methods]
    for owner, attribute, name in methods:
        setattr(owner, attribute, _noting(name, getattr(owner, attribute), waits))
    try:
        yield
    finally:
        for (owner, attribute, _), original in zip(methods, before, strict=True):
            if original is None:
                delattr(owner, attribute)  # was inherited, as Tensor's methods are from the C base class
            else:
                setattr(owner, attribute, original)


@contextmanager
def _resized(ledger: Ledger) -> Iterator[None]:
    """Note storages that shrink or grow in place while inside: so FSDP frees gathered parameters, by no operator."""
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        resized: torch.UntypedStorage = original(storage, size)
        address = address_of(storage)
        if address in ledger.alive:
            ledger.add(address, storage.nbytes())
        return resized

    with mock.patch.object(torch.UntypedStorage, "resize_", resize):
        yield


@contextmanager
def _interpreted(seen: _Operators) -> Iterator[None]:
    """Record each launch in Triton's interpreter as one entry; operators, copies and reads inside are not listed."""
    executor = GRID.loaded()
    if executor is None:
        yield
        return
    original = executor.__call__

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if seen not in _MODES():
            return original(self, *args, **kwargs)
        if not seen.inside:  # inside a custom operator, that operator is the entry
            seen.names.append(f"triton.{self.fn.__name__}")
        waits, seen.interpreting = len(seen.waits), True
        try:
            return original(self, *args, **kwargs)
        finally:
            seen.interpreting = False
            del seen.waits[waits:]

    executor.__call__ = launch
    try:
        yield
    finally:
        executor.__call__ = original


def _noting(name: str, original: Callable[..., Any], waits: list[Waited]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            waits.append(Waited(name, place_in_python()))
        return original(*args, **kwargs)

    return call


def _by_mask(args: tuple[Any, ...]) -> bool:
    """Whether an indexing operator has a mask as index, so that the host must count its ones.

    A single value needs no count: `x[mask] = 0` is a fill.
    """
    indices = args[1] if len(args) > 1 else ()
    if len(args) > 2 and args[2].numel() == 1 and not (len(args) > 3 and args[3]):
        return False
    return any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _leaves_device(packet: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    """Whether a copy transfers data to the host and waits for it."""
    options = kwargs or {}
    if packet == "aten._to_copy":
        target = options.get("device")
        there = target is not None and torch.device(target).type == "cpu"
        return there and args[0].device.type != "cpu" and not options.get("non_blocking", False)
    if packet == "aten.copy_":
        waits = not (args[2] if len(args) > 2 else options.get("non_blocking", False))
        return bool(args[0].device.type == "cpu" and args[1].device.type != "cpu" and waits)
    return False


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in torch_utils.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _has_memory(tensor: torch.Tensor) -> bool:
    return torch_utils.is_plain(tensor) and tensor.layout is torch.strided and tensor.device.type != "meta"
