"""Memory of a call: at its peak, after it, and kept for the backward pass.

The peak is in bytes requested above the level before the call; outputs count, inputs do not. Bytes left after the
outputs are freed are residue, such as a cache of results, a tensor in a closure, or a leak.

Memory that a forward pass keeps for the backward pass is counted by unique storage. Autograd passes saved tensors to
`saved_tensors_hooks`, and a walk over the graph finds tensors that a custom function keeps on its context. Each storage
counts once and as a whole, because a view keeps all of it alive. Tensors that a checkpoint will recompute are not kept.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfguard._compat.torch_internals import storage_address
from perfguard.measure.metrics.subject import Subject, by_place
from perfguard.measure.replay import weights
from perfguard.model.limits import EITHER, Limits
from perfguard.model.records import Across, Better, Reading, Value
from perfguard.model.units import Unit, format_value
from perfguard.tensors.autograd_graph import graph_nodes, has_storage, tensors_held_by, tree_tensors
from perfguard.tensors.step import Step, local

if TYPE_CHECKING:
    import torch

    from perfguard.measure.devices.device import Device

TIMED = False
TESTS = True

# On a GPU libraries keep workspaces, so changes below 1 MiB are no finding.
_FLOOR_BYTES = 2**20

# On a CPU allocations are counted exactly and cases are small, so a temporary of one page counts.
_CPU_FLOOR_BYTES = 2**12

LIMITS = {
    # The peak includes the libraries' scratch memory, which changes with their versions.
    "peak_memory_bytes": Limits(Better.LOWER, tolerance=0.005, floor=_FLOOR_BYTES),
    "residue_bytes": Limits(Better.LOWER, portable=EITHER),
    "residue_places": Limits(Better.SAME, gated=False, portable=EITHER),
    "saved_activation_bytes": Limits(Better.LOWER, portable=EITHER),
    "saved_bytes": Limits(Better.LOWER, portable=EITHER),
    "saved_input_bytes": Limits(Better.LOWER, portable=EITHER),
    "saved_by": Limits(Better.SAME, gated=False, portable=EITHER),
    "saved_tensors": Limits(Better.SAME, gated=False, portable=EITHER),
    "saved_weight_bytes": Limits(Better.LOWER, gated=False, portable=EITHER),
}

Kind = Literal["activation", "input", "weight"]


def read(subject: Subject, device: Device) -> list[Reading]:
    """`peak_memory_bytes`, gated by 0.5 % and 1 MiB (4 KiB on a CPU), and `residue_bytes`, which fails on any rise.

    A forward pass with a backward pass also has `saved_activation_bytes` and `saved_input_bytes`, which fail on any
    rise; `saved_weight_bytes`, which exist anyway; and `saved_tensors`, the list that explains them. Activations are
    made by the call, inputs are passed to it, weights are a module's parameters and inputs that are `nn.Parameter`s.
    Tensors saved by torch.compile count as well, with an unknown producer.

    A test has `residue_bytes` with the lines that made the tensors, and `saved_bytes` of the graphs that it
    differentiates, with their nodes (`saved_by`).
    """

    def reading(metric: str, value: Value, rank: int, *, drifts: bool = True, **others: Any) -> Reading:
        limits = LIMITS[metric]
        # Residues and saved tensors are equal on all CPUs.
        portable = limits.portable is EITHER and not device.asynchronous
        unit = Unit.TEXT if isinstance(value, list) else Unit.BYTES
        across = Across.EACH if unit is Unit.TEXT else Across.MOST
        return limits.reading(metric, unit, value, rank=rank, drifts=drifts, **others, portable=portable, across=across)

    if subject.test is not None:
        seen = subject.test.seen
        return [
            reading("residue_bytes", sum(seen.left.values()), 55),
            by_place(seen.left, lambda **parts: reading("residue_places", rank=55, details="residue_bytes", **parts)),
            reading("saved_bytes", sum(seen.saved.values()), 54),
            by_place(seen.saved, lambda **parts: reading("saved_by", rank=54, details="saved_bytes", **parts)),
        ]
    subject.warm_up(device)
    # Tensors of a layout have no memory.
    readings = _allocated(subject, device, reading) if subject.ranks.has_data else []
    saved = saved_by(subject) if subject.direction == "forward" else None
    if saved is not None:
        for kind in ("activation", "input", "weight"):
            count = sum(each.bytes for each in saved if each.kind == kind)
            readings.append(reading(f"saved_{kind}_bytes", count, 54))
        texts = [each.text for each in saved if each.kind != "weight"]
        readings.append(reading("saved_tensors", texts, 54, details="saved_activation_bytes"))
    return readings


def _allocated(subject: Subject, device: Device, reading: Callable[..., Reading]) -> list[Reading]:
    """The readings of allocated memory: peak and residue."""
    use = device.memory(subject.run)
    floor = float(_FLOOR_BYTES if device.asynchronous else _CPU_FLOOR_BYTES)
    readings = [reading("peak_memory_bytes", use.peak, 50, floor=floor)]
    if not isinstance(subject.run, Step):  # Threads of a process group free a call's tensors a moment after its return.
        left = _left_by(subject, device) if use.residue > 0 else ""
        readings.append(reading("residue_bytes", use.residue, 55, drifts=False, note=left))
    return readings


def _left_by(subject: Subject, device: Device) -> str:
    """The lines of Python that made the tensors that are alive after one more call; empty if it cannot be observed."""
    with contextlib.suppress(Exception):  # Some calls refuse to run under a dispatch mode.
        with device.observed() as seen:
            subject.run()
        sizes = {place: format_value(count, Unit.BYTES) for place, count in sorted(seen.left.items()) if place}
        return f"left behind: {', '.join(f'{size} of {place}' for place, size in sizes.items())}" if sizes else ""
    return ""


@dataclass(frozen=True)
class Saved:
    """One kept storage."""

    kind: Kind
    bytes: int
    text: str  # a description of the first tensor saved in it


@dataclass(frozen=True)
class _Origin:
    """The kind of a storage, and the operator or input that made it."""

    kind: Kind = "activation"
    maker: str = "unknown"


class _Handle:
    """A placeholder in the graph for a saved tensor. It lives as long as the graph."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()  # An undetached tensor would form a cycle with the graph.


def saved_by(subject: Subject) -> list[Saved] | None:
    """The storages kept for the lifetime of the outputs, in the order of saving; None without a graph."""
    import torch

    step = subject.run if isinstance(subject.run, Step) else None
    if step is None and not subject.has_graph:
        return None  # Importing a dispatch mode takes seconds in every process.
    origins: dict[int, _Origin] = {}
    for position, tensor in enumerate(filter(has_storage, tree_tensors(subject.args))):
        kind: Kind = "weight" if isinstance(tensor, torch.nn.Parameter) else "input"
        origins[storage_address(tensor)] = _Origin(kind, f"input {position}")
    origins |= {storage_address(tensor): _Origin("weight") for tensor in filter(has_storage, subject.weights)}
    packed: list[weakref.ref[_Handle]] = []

    def pack(tensor: torch.Tensor) -> _Handle:
        handle = _Handle(tensor)
        packed.append(weakref.ref(handle))
        return handle

    started = None if step is None else step.prepare()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda handle: handle.tensor), _producers(origins):
        outputs = subject.run() if step is None or started is None else step.run(started).outputs
    # FSDP has gathered new tensors for its weights during the pass.
    gathered = () if subject.call is None else weights(subject.call)
    origins |= {storage_address(tensor): _Origin("weight") for tensor in filter(has_storage, gathered)}
    kept = [handle.tensor for reference in packed if (handle := reference()) is not None]
    for node in graph_nodes(tree_tensors(outputs)):
        kept += tensors_held_by(getattr(node, "__dict__", {}))  # A context holds tensors without handles.
    saved: dict[int, Saved] = {}
    for tensor in filter(has_storage, map(local, kept)):
        count, key = tensor.untyped_storage().nbytes(), storage_address(tensor)
        if count and key not in saved:
            origin = origins.get(key, _Origin())
            saved[key] = Saved(origin.kind, count, _text(tensor, origin.maker, count))
    if step is not None and started is not None:
        del outputs, kept
        step.finish(started)
    return list(saved.values())


def _text(tensor: torch.Tensor, maker: str, count: int) -> str:
    text = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}] by {maker}"
    return text if count <= tensor.numel() * tensor.itemsize else f"{text}, a view that pins {count} bytes"


def _producers(origins: dict[int, _Origin]) -> Any:
    """A dispatch mode that notes the operator that made each storage. A new storage may reuse a freed address."""
    from perfguard._compat import torch_utils

    class Producers(torch_utils.DispatchMode):
        supports_higher_order_operators = True  # Otherwise torch would raise.

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch_utils.are_unfolded(types):
                return NotImplemented
            results = func(*args, **(kwargs or {}))
            given = {storage_address(tensor) for tensor in tree_tensors((args, kwargs)) if has_storage(tensor)}
            for tensor in filter(has_storage, tree_tensors(results)):
                if storage_address(tensor) not in given:
                    origins[storage_address(tensor)] = _Origin(maker=str(getattr(func, "overloadpacket", func)))
            return results

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # A compiled region stays compiled.

    return Producers()  # type: ignore[no-untyped-call]
