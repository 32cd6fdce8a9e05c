"""One pass of a guarded call as a function without arguments: on its own inputs or on copies of them, and seeded."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfguard.measure.compiled import replayable, replayed
from perfguard.model.call import GRADIENTS, Call
from perfguard.model.errors import DeviceError
from perfguard.model.records import Pass
from perfguard.tensors.autograd_graph import graph_nodes, tree_tensors
from perfguard.tensors.step import Incoming, Step, on_fresh_leaves, walk

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.device import Device

Copies = Callable[[int], Sequence[Callable[[], object]]]

# Kernels choose code by the alignment of memory. Every allocator aligns to this at least.
_ALIGNMENT = 64


def has_gradients(call: Call) -> bool:
    """Whether an output of one call requires a gradient, and an input or a parameter has one."""
    return all(_differentiable(call))


def forward(call: Call) -> Callable[[], object]:
    """One forward call, with grad mode on if the case has gradients, because saving tensors is part of the call."""
    return call.run


def backward(call: Call) -> Callable[[], object]:
    """One backward pass over a graph that is built once, without gradient accumulation and without a forward pass.

    The upstream gradients are random and seeded, in the outputs' dtypes. Only code that is first compiled here can be
    replayed, so callers use `forget_compiled` before.
    """
    import torch

    with replayable():
        outputs, inputs = _differentiable(call)
        upstream = _random(outputs, call.seed)

    def run() -> object:
        return torch.autograd.grad(outputs, inputs, upstream, retain_graph=True, allow_unused=True)

    # The cost of an eager pass must not depend on other compilations of the process.
    compiled = any("CompiledFunction" in node.name() for node in graph_nodes(outputs))
    return replayed(run) if compiled else run


def steps(
    call: Call, entering: Callable[[Pass], None] = lambda _: None, incoming: Incoming | None = None
) -> list[Callable[[], object]]:
    """Steps from scratch, forward and then backward if there are gradients: one on the inputs of `call`, then one on
    each entry of its walk. The first step restores a module's buffers to their present values, which the preparation of
    an entry may have changed. Each step has its own leaves, and copies of the arguments that the call writes.

    Args:
        entering: called with the pass that begins.
        incoming: returns the gradients of a step's outputs; None means random gradients.
    """
    import torch

    put_back = _buffers_kept(call)

    def own() -> tuple[Any, ...]:
        put_back()
        return call.args

    def step(inputs: tuple[Any, ...] | Callable[[], tuple[Any, ...]]) -> Callable[[], object]:
        def run() -> object:
            args = inputs() if callable(inputs) else inputs
            prepared = replace(call, args=_unwritten(args, (*call.mutates, *call.clobbers)))
            entering("forward")
            outputs, leaves = _differentiable(prepared)
            if not outputs or not leaves:
                return None
            upstream = incoming(outputs) if incoming else _random(outputs, call.seed)
            entering("backward")
            return torch.autograd.grad(outputs, leaves, upstream, allow_unused=True)

        return run

    return [step(inputs) for inputs in (own, *call.walk)]


def _buffers_kept(call: Call) -> Callable[[], None]:
    """A function that restores a module's buffers to their present values, which only a walk changes."""
    import torch

    buffers = dict(call.fn.named_buffers()) if isinstance(call.fn, torch.nn.Module) else {}
    saved = {name: buffer.detach().clone() for name, buffer in buffers.items()} if call.walk else {}

    def put_back() -> None:
        for name, value in saved.items():
            buffers[name].detach().copy_(value)

    return put_back


@contextlib.contextmanager
def buffers_kept(call: Call | None) -> Iterator[None]:
    """Restore a module's buffers at the end, because the entries of a walk may change them."""
    put_back = None if call is None else _buffers_kept(call)
    try:
        yield
    finally:
        if put_back is not None:
            put_back()


def clobbered_kept(call: Call) -> Callable[[], None]:
    """A function that restores the present values of the arguments that the call may overwrite."""
    from perfguard.tensors.snapshot import Snapshot

    tensors = [tensor for at in call.clobbers if at != GRADIENTS for tensor in tree_tensors(call.args[at])]
    return Snapshot([("", tensor.detach(), True) for tensor in tensors]).restore if tensors else lambda: None


def _unwritten(args: Sequence[Any], written: Sequence[object]) -> tuple[Any, ...]:
    """The arguments of a call, with copies in place of those that it writes."""
    import torch

    from perfguard._compat import torch_utils

    def copied(value: object) -> object:
        return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

    return tuple(torch_utils.tree_map(copied, value) if at in written else value for at, value in enumerate(args))


def _differentiable(call: Call) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The differentiable outputs of one call on fresh leaves, and the inputs and parameters that require gradients."""
    prepared, inputs = on_fresh_leaves(call)
    inputs += [value for value in weights(call) if value.requires_grad]
    return [tensor for tensor in tree_tensors(prepared.run()) if tensor.requires_grad], inputs


def _random(outputs: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Random incoming gradients, in the outputs' dtypes."""
    import torch

    if not outputs:
        return []
    generator = torch.Generator(device=outputs[0].device).manual_seed(seed + 1)
    return [
        torch.randn(value.shape, generator=generator, device=value.device, dtype=torch.float32).to(value.dtype)
        for value in outputs
    ]


def _unset(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Uninitialised incoming gradients, because no launch depends on their values, and a fill would count as the
    call's."""
    import torch

    return [torch.empty(value.shape, dtype=value.dtype, device=value.device) for value in outputs]


def traced_step(call: Call, kwargs: Mapping[str, Any], entering: Callable[[Pass], None]) -> None:
    """Run the first of the `steps` with `kwargs` added to the call's own, for a recorder of its launches."""
    chosen = replace(call, kwargs={**call.kwargs, **kwargs}, walk=())
    steps(chosen, entering, _unset)[0]()


def traced_walk(call: Call, entering: Callable[[Pass], None]) -> None:
    """Run the `steps` of the walk in the same way, and restore a module's buffers at the end."""
    with buffers_kept(call):
        for step in steps(call, entering, _unset)[1:]:
            step()


def copies(call: Call, direction: Pass) -> Copies:
    """A function that makes n passes like `forward(call)` or `backward(call)`, each on its own inputs.

    It copies all tensors among the inputs, and the parameters and buffers of a module, with their strides, alignment
    and shared memory. The first pass works on the memory of the call itself. Each backward pass has its own autograd
    graph, built on the queue that is current at that time.

    Raises (when called):
        DeviceError: the copies do not fit into the device's memory.
    """
    make = forward if direction == "forward" else backward

    def several(count: int) -> list[Callable[[], object]]:
        import torch

        try:
            first = call if direction == "forward" else _aliased(call)
            return [make(first), *(make(_copied(call)) for _ in range(1, count))]
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"inputs: {count} copies do not fit into the device's memory; time the case with cache='warm'"
            ) from error

    return several


def touched_bytes(call: Call, outputs: object) -> int:
    """The least memory that one call touches, bytes: its inputs, a module's parameters and buffers, and `outputs`, its
    results or gradients. Shared memory counts once, and so does an element that a stride of 0 repeats."""
    tensors = [*tree_tensors((call.args, dict(call.kwargs), outputs)), *_state(call.fn).values()]
    return sum(end - start for start, end in _spans(tensors).values())


def main_dtype(call: Call) -> torch.dtype | None:
    """The dtype of the largest tensor among the inputs, a module's parameters and buffers; None if it holds integers,
    or without tensors."""
    tensors = [*tree_tensors((call.args, dict(call.kwargs))), *_state(call.fn).values()]
    largest = max(tensors, key=lambda tensor: tensor.numel(), default=None)
    return largest.dtype if largest is not None and largest.is_floating_point() else None


@dataclass(frozen=True)
class _Replaced:
    """A module that is called with other tensors in place of its parameters and buffers."""

    module: torch.nn.Module
    tensors: Mapping[str, torch.Tensor]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        return torch.func.functional_call(self.module, dict(self.tensors), args, kwargs)


def _aliased(call: Call) -> Call:
    """The call with new leaves for a module's parameters, because a leaf is bound to the queue of its first use."""
    import torch

    if not isinstance(call.fn, torch.nn.Module):
        return call
    parameters = {
        name: torch.nn.Parameter(value.detach(), requires_grad=value.requires_grad)
        for name, value in _parameters(call.fn).items()
    }
    return replace(call, fn=_Replaced(call.fn, {**_state(call.fn), **parameters}))


def _copied(call: Call) -> Call:
    """The call on copies of its inputs, and of a module's parameters and buffers."""
    import torch

    from perfguard._compat import torch_utils

    state = _state(call.fn)
    leaves, spec = torch_utils.tree_flatten((call.args, dict(call.kwargs)))
    copied = _copies_of([leaf for leaf in [*leaves, *state.values()] if isinstance(leaf, torch.Tensor)])
    args, kwargs = torch_utils.tree_unflatten([copied.get(id(leaf), leaf) for leaf in leaves], spec)
    call = replace(call, args=args, kwargs=kwargs)
    if not isinstance(call.fn, torch.nn.Module):
        return call
    return replace(call, fn=_Replaced(call.fn, {name: copied[id(value)] for name, value in state.items()}))


def _copies_of(tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """id of each tensor -> its copy, with the same strides and alignment. Copies share memory as their originals do."""
    import torch

    spans = _spans([tensor for tensor in tensors if _plain(tensor)])
    memory: dict[tuple[str, int], tuple[torch.UntypedStorage, int]] = {}
    for tensor in tensors:
        if _plain(tensor) and _key(tensor) not in memory:
            start, end = spans[_key(tensor)]
            start -= (tensor.untyped_storage().data_ptr() + start) % _ALIGNMENT
            fresh = torch.empty(end - start, dtype=torch.uint8, device=tensor.device)
            live = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            held = max(0, start)  # The alignment may ask for bytes before the storage.
            fresh[held - start :].copy_(live[held:end])
            memory[_key(tensor)] = fresh.untyped_storage(), start
    copied: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if _plain(tensor):
            storage, start = memory[_key(tensor)]
            offset = (tensor.storage_offset() * tensor.itemsize - start) // tensor.itemsize
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            copy.set_(storage, offset, tensor.shape, tensor.stride())
        else:
            copy = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            copied[id(tensor)] = torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)
        else:
            copied[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
    return copied


def _spans(tensors: Sequence[torch.Tensor]) -> dict[tuple[str, int], tuple[int, int]]:
    """The range of bytes of each storage that `tensors` reach: the first byte, and the byte behind the last."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for tensor in tensors:
        if not _plain(tensor):
            spans["other", id(tensor)] = 0, tensor.numel() * tensor.itemsize
            continue
        start = int(tensor.storage_offset()) * tensor.itemsize
        reach = sum(int(size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = start + (reach + 1) * tensor.itemsize if tensor.numel() else start
        known = spans.get(_key(tensor), (start, end))
        spans[_key(tensor)] = min(start, known[0]), max(end, known[1])
    return spans


def _key(tensor: torch.Tensor) -> tuple[str, int]:
    return str(tensor.device), tensor.untyped_storage().data_ptr()


def _plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor is an ordinary view of a storage: no subclass, not sparse, not lazily conjugated."""
    import torch

    strided = tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return strided and not (tensor.is_conj() or tensor.is_neg())


def weights(call: Call) -> tuple[torch.Tensor, ...]:
    """The parameters of the called module, or of the one that the function keeps; empty for other functions."""
    return tuple(_parameters(call.fn if call.kept is None else call.kept).values())


def _parameters(fn: Callable[..., object]) -> dict[str, torch.Tensor]:
    """A module's parameters by name; empty for other functions."""
    import torch

    if isinstance(fn, _Replaced):
        return {name: value for name, value in fn.tensors.items() if isinstance(value, torch.nn.Parameter)}
    return dict(fn.named_parameters()) if isinstance(fn, torch.nn.Module) else {}


def _state(fn: Callable[..., object]) -> dict[str, torch.Tensor]:
    """A module's parameters and buffers by name; empty for other functions."""
    import torch

    return {**_parameters(fn), **dict(fn.named_buffers())} if isinstance(fn, torch.nn.Module) else {}


@contextlib.contextmanager
def seeded(seed: int, device: Device) -> Iterator[None]:
    """Seed the random generators of Python and torch while inside, and restore their states afterwards."""
    import torch

    from perfguard.tensors.seeding import seed_all

    state = random.getstate()
    kind = device.torch_device.type
    devices = [] if kind == "cpu" else [device.torch_device]
    with torch.random.fork_rng(devices=devices, device_type="cuda" if kind == "cpu" else kind):
        random.seed(seed)
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(state)


def pass_of(call: Call, direction: Pass) -> Callable[[], object]:
    """A function that runs one pass. In a process group it runs a whole step."""
    if not call.ranks.alone:
        return Step(call, direction)
    return forward(call) if direction == "forward" else backward(call)


def steps_of(call: Call) -> Sequence[Callable[[], object]]:
    """Steps of the whole case, on its own inputs and on each entry of its walk; empty in a layout."""
    if not call.ranks.has_data:  # Fake tensors cannot be compiled.
        return ()
    return steps(call) if call.ranks.alone else walk(call)
