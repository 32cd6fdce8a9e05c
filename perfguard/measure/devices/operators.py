"""Operators on their way to kernels: names, copies, host reads with their lines, live tensors."""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from perfguard._compat import torch_utils
from perfguard._compat.torch_internals import DISPATCH_KEY, KEYS, KEYSET_AFTER, MODES, address_of, unseen_by_torchscript
from perfguard._compat.torch_utils import PLAIN, DispatchMode
from perfguard._compat.triton_internals import INTERPRETED
from perfguard.interpreter.running import counted
from perfguard.measure import collector_paused
from perfguard.measure.devices.activity import Activity, Copied, Waited
from perfguard.measure.devices.operator_kinds import (
    COMPOSITE,
    KINDS,
    Kind,
    computes_shapes,
    host_reads,
    kind_of,
    tensors_in,
)
from perfguard.model.modules import entered_when_loaded
from perfguard.tensors.step import Step
from perfguard.tensors.user_frames import Line, line_in_python, place_in_python

if TYPE_CHECKING:
    from perfguard._compat.torch_internals import OpOverload
    from perfguard.measure.exchanges import ExchangeRecorder

_KEYS, _MODES = KEYS.get(), MODES.get()
_STRIDED = torch.strided
_BELOW_MODES = KEYSET_AFTER.get()(DISPATCH_KEY.get().Python)

# Methods that read a tensor's data without any operator: owner, attribute, name.
Method = tuple[Any, str, str]
METHODS: tuple[Method, ...] = tuple((torch.Tensor, name, f"Tensor.{name}") for name in ("numpy", "tolist", "__array__"))


class Storage(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a storage that an operator has made.

    Attributes:
        address: the storage's address.
        bytes: the storage's size.
        line: the line of Python that called the operator; None if no line did.
    """

    __slots__ = ("address", "bytes", "line")

    address: int
    bytes: int
    line: Line | None


class Operators(DispatchMode):
    """Follows every operator that reaches a kernel, and the memory of its results.

    Subclasses define the hooks that record operators, copies and waits.

    Args:
        kind: device type whose tensors count, for memory and for reads by the host.
        recorder: records exchanges with other ranks; None outside of a process group.
    """

    counts_fakes = True  # If False, operators on meta and fake tensors do not count.

    supports_higher_order_operators = True  # Otherwise torch.cond and the like would raise.

    def __init__(self, kind: str, recorder: ExchangeRecorder | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = kind
        self.recorder = recorder
        self.alive: dict[int, Storage] = {}  # The key is the address.
        self.bytes = self.peak = 0  # of the storages that are alive
        self.inside = 0  # the nesting depth of operators implemented by libraries
        self.paused = False  # Nothing counts in Triton's interpreter, or while a tuner times its configurations.
        self._is_here: Callable[[torch.Tensor], bool] = operator.attrgetter(f"is_{kind}")

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Count nothing inside."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def on_operator(self, name: str) -> None:
        """Record a call of an operator, or of a kernel in Triton's interpreter."""
        raise NotImplementedError

    def on_copy(self, name: str, moved: int) -> None:
        """Record an operator that has moved `moved` bytes."""
        raise NotImplementedError

    def on_wait(self, name: str) -> None:
        """Record a read of a tensor's data by the host, or a wait for the device."""
        raise NotImplementedError

    def on_interpreted(self, kernel: Any, args: Sequence[Any], grid: Sequence[int], kwargs: Mapping[str, Any]) -> None:
        """Record a launch by Triton's interpreter."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        __tracebackhide__ = True  # pytest omits this frame from a test's own error.
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if types and torch_utils.are_unfolded(types):
            return NotImplemented
        plain = args and not types and type(args[0]) in PLAIN and not args[0].is_meta  # Most operators take this path.
        given = None if plain else tensors_in((args, *kwargs.values()))
        if not (given is None or self.counts_fakes) and computes_shapes(types, given, kwargs):
            return func(*args, **kwargs)
        kind = KINDS.get(id(func)) or kind_of(func)
        if kind.composite and not (self.inside or types or _MODES()):  # Autograd is off in inference mode.
            with self:
                return func.decompose(*args, **kwargs)
        if (
            kind.may_read
            and host_reads(kind, args, kwargs)
            and any(map(self._is_here, tensors_in((args, *kwargs.values()))))
        ):
            self.on_wait(kind.packet)
        if kind.named and not self.inside:
            self.on_operator(kind.name)
        if kind.higher_order:
            return func(*args, **kwargs)
        if kind.library or self.inside or self.recorder is not None:
            results = self._run(func, kind, args, kwargs)
        else:
            results = kind.run(*args, **kwargs)
        if self.inside:
            return results
        returned = (results,) if type(results) in PLAIN else tensors_in((results,))
        if kind.copies:
            self.on_copy(kind.packet, sum(each.numel() * each.itemsize for each in returned))
        self._count_storages(returned, given, args, kwargs)
        return results

    def _count_storages(
        self,
        returned: Sequence[torch.Tensor],
        given: Sequence[torch.Tensor] | None,  # all tensors in `args` and `kwargs`, if known already
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Count new storages until they are freed. Storages of the caller's tensors are not counted."""
        for tensor in returned:
            if (storage := _storage_of(tensor)) is None or not self._is_here(tensor):
                continue
            address = address_of(storage)
            known = self.alive.get(address)
            if known is None:
                if given is None:
                    given = tensors_in((args, *kwargs.values()) if kwargs else args)
                if storage in map(_storage_of, given):  # Storages are compared by identity.
                    continue
                self.alive[address] = known = Storage(storage, self._freed)
                known.address, known.bytes, known.line = address, 0, line_in_python()
            if known.bytes != (size := storage.nbytes()):
                self._sized(known, size)

    def _run(self, func: OpOverload[..., Any], kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, through the recorder of exchanges if there is one."""
        __tracebackhide__ = True
        given = tensors_in((args, *kwargs.values()))
        recorder = self.recorder
        if recorder is None:
            return self._opened(func, kind, args, kwargs, given)
        if recorder.exchanges_by(func):
            return recorder.run(func, args, kwargs)
        recorder.used(func, given)
        results = self._opened(func, kind, args, kwargs, given)
        recorder.count(func, args, kwargs, results)
        return results

    def _opened(
        self, func: OpOverload[..., Any], kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], given: Any
    ) -> Any:
        """Run an operator. The implementation of a library's operator runs under this mode, so that its reads are seen.

        The operator itself must not reach this mode again, so it is called below the modes. Autograd, which splits
        composite operators (`aten.item`), is off inside, so they are split here.
        """
        __tracebackhide__ = True
        opened = kind.library or (self.inside and func.has_kernel_for_dispatch_key(COMPOSITE))
        if not opened or not given or any(type(tensor) not in PLAIN for tensor in given) or _MODES():
            return func(*args, **kwargs)
        keys = functools.reduce(operator.or_, map(_KEYS, given))
        self.inside += 1
        try:
            with self:
                return func.redispatch(keys & _BELOW_MODES, *args, **kwargs)
        finally:
            self.inside -= 1

    def _sized(self, storage: Storage, size: int) -> None:
        self.bytes += size - storage.bytes
        storage.bytes = size
        if self.bytes > self.peak:
            self.peak = self.bytes

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage that was resized without an operator."""
        known = self.alive.get(address_of(storage))
        if known is not None:
            self._sized(known, storage.nbytes())

    def _freed(self, storage: Storage) -> None:
        del self.alive[storage.address]
        self.bytes -= storage.bytes

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # Otherwise torch.compile is skipped, and eager operators are counted.


class _OrderedOperators(Operators):
    """Lists operators, copies and waits in order."""

    def __init__(self, kind: str, recorder: ExchangeRecorder | None) -> None:
        super().__init__(kind, recorder)
        self.names: list[str] = []
        self.copies: list[Copied] = []
        self.waits: list[Waited] = []

    def on_operator(self, name: str) -> None:
        self.names.append(name)

    def on_copy(self, name: str, moved: int) -> None:
        self.copies.append(Copied(name, moved, place_in_python()))

    def on_wait(self, name: str) -> None:
        self.waits.append(Waited(name, place_in_python()))


def device_waits(kind: str) -> list[Method]:
    """Python methods that wait for a device of this kind without any operator; empty for a CPU."""
    backend = getattr(torch, kind)
    known = ((backend, "synchronize"), (backend.Stream, "synchronize"), (backend.Event, "synchronize"))
    methods = [(owner, name, f"{owner.__name__}.{name}") for owner, name in known if hasattr(owner, name)]
    return [] if kind == "cpu" else methods


def of_call(call: Callable[[], object], kind: str = "cpu", waiting: Sequence[Method] = METHODS) -> Activity:
    """Operators that `call` dispatches below autograd, e.g. `aten.mul.Tensor`. A custom operator is one entry.

    A compiled region (torch.compile) contributes only the operators that it calls, not its fused loops. Reads inside a
    custom operator are listed, since the host would wait for a GPU there, but copies inside it are not. A kernel in
    Triton's interpreter is one entry without reads, e.g. `triton._rms_norm`, because on a GPU it would be one launch.

    In a process group the exchanges with other ranks are recorded. Only the observed pass of a `Step` counts.

    Args:
        kind: device type whose tensors count.
        waiting: methods that read data, or wait for the device, without any operator.
    """
    step = call if isinstance(call, Step) else None
    recorder = None
    if step is not None and not step.call.ranks.alone:
        from perfguard.measure.exchanges import ExchangeRecorder

        recorder = ExchangeRecorder(step.call)
    seen = _OrderedOperators(kind, recorder)
    with collector_paused(), counted() as work:
        if step is None:
            with followed(seen, waiting):
                result = call()
        else:
            result = step.within(followed(seen, waiting))
        del result
    activity = Activity(seen.names, seen.copies, seen.waits, seen.peak, work=work)
    if recorder is None:
        return activity
    return replace(activity, exchanges=recorder.exchanges)


@contextmanager
def followed(seen: Operators, waiting: Sequence[Method] = METHODS) -> Iterator[None]:
    """Let `seen` follow all operators, the launches of Triton's interpreter, and calls of the methods in `waiting`."""
    with ExitStack() as around:
        around.enter_context(_noted(waiting, seen))
        around.enter_context(entered_when_loaded("triton", lambda: _interpreted(seen)))
        around.enter_context(unseen_by_torchscript(seen))
        if seen.recorder is not None:
            around.enter_context(seen.recorder.following())
            around.enter_context(_resized(seen))
        around.enter_context(seen)
        yield


@contextmanager
def _noted(methods: Sequence[Method], seen: Operators) -> Iterator[None]:
    """Note calls of `methods` while inside. A method that others replace meanwhile is not restored."""
    before = [vars(owner).get(attribute) for owner, attribute, _ in methods]
    noting = [_NotedMethod(name, getattr(owner, attribute), seen) for owner, attribute, name in methods]
    for (owner, attribute, _), ours in zip(methods, noting, strict=True):
        setattr(owner, attribute, ours)
    try:
        yield
    finally:
        for (owner, attribute, _), original, ours in zip(methods, before, noting, strict=True):
            if vars(owner).get(attribute) is not ours:
                continue
            if original is None:
                delattr(owner, attribute)  # Tensor's methods are inherited from the C base class.
            else:
                setattr(owner, attribute, original)


@contextmanager
def _resized(seen: Operators) -> Iterator[None]:
    """Note storages that are resized in place while inside, because FSDP frees gathered parameters in this way."""
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        resized: torch.UntypedStorage = original(storage, size)
        seen.resized(storage)
        return resized

    with mock.patch.object(torch.UntypedStorage, "resize_", resize):
        yield


@contextmanager
def _interpreted(seen: Operators) -> Iterator[None]:
    """Record each launch of Triton's interpreter as one entry, without the operators, copies and reads inside."""
    kind = INTERPRETED.loaded()
    if kind is None:
        yield
        return
    original = kind.run

    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup or seen.paused or seen not in _MODES():
            return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        if not seen.inside:  # A custom operator around the launch is the entry.
            seen.on_operator(f"triton.{kernel.fn.__name__}")
        sizes = grid

        def computed(bound: Mapping[str, Any]) -> Any:  # The interpreter knows the kernel's defaults.
            nonlocal sizes
            sizes = grid(bound)
            return sizes

        with seen.pause():
            result = original(kernel, *args, grid=computed if callable(grid) else grid, warmup=warmup, **kwargs)
            seen.on_interpreted(kernel, args, sizes, kwargs)
            return result

    with mock.patch.object(kind, "run", launch):
        yield


class _NotedMethod:
    """A method whose calls are noted. It equals the original, because torch passes it to `__torch_function__` of a
    subclass, which looks it up in a table."""

    def __init__(self, name: str, original: Callable[..., Any], seen: Operators) -> None:
        functools.update_wrapper(self, original)
        self._name, self._original, self._seen = name, original, seen

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if not (self._seen.paused or torch.compiler.is_compiling()):
            self._seen.on_wait(self._name)
        return self._original(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._original

    def __hash__(self) -> int:
        return hash(self._original)


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor; None if the tensor has no memory of its own."""
    plain = type(tensor) in PLAIN or torch_utils.is_plain(tensor)
    return tensor.untyped_storage() if plain and tensor.layout is _STRIDED else None
