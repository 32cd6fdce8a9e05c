"""Whether a graph can capture the call, and whether its replay is right after others have used the memory.

Captured calls can be replayed without host cost, and are timed best. But a graph keeps addresses: it still reads and
writes a workspace that the call has freed, or a tensor that a cache has dropped, when the memory has another owner. So
the graph is replayed at once, and again after each of two more calls, with every free block of the allocator taken and
filled. Results must not change, and the blocks must stay filled. Further replays in the same memory identify results
that vary by chance, for example by atomic additions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfguard.measure import collect_young, collector_paused
from perfguard.measure.metrics.subject import Subject
from perfguard.model.errors import DeviceError
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Reading
from perfguard.model.units import Unit
from perfguard.tensors.autograd_graph import tree_tensors

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device, Graph

TIMED = False

LIMITS = {"capturable": Limits(Better.SAME)}

_WARM_UPS = 3
_ROUNDS = 2  # A cache may alternate between two tensors.
_BEFORE, _AFTER = 4, 11  # These are the numbers of replays in untouched memory, and in filled memory.
_REMEDY = "allocate it in the call, or keep it as long as the graph"
_READS = f"a replayed graph reads memory that it does not own, and others have used; {_REMEDY}"
_WRITES = f"a replayed graph writes to memory that it does not own; {_REMEDY}"


def read(subject: Subject, device: Device) -> list[Reading]:
    """`capturable`, which is "yes" or "no" with the reason as its note; empty on a device without graphs.

    If a candidate newly waits for the device, it is CHANGED, instead of just getting another timer. If its graph uses
    memory of others, the reading has a `problem`, and the case is WRONG even if its first call returns right results.

    Raises:
        Exception: raised by the call outside a capture.
    """
    if not device.captures or subject.ranks.in_step:  # All ranks would have to replay.
        return []
    reason = problem = ""
    with collector_paused(), device.aside():
        (call,) = [subject.run] if subject.copies is None else subject.copies(1)
        for _ in range(_WARM_UPS):
            call()
        outputs: list[Any] = []

        def kept() -> object:
            outputs[:] = [call()]
            return outputs[0]

        try:
            graph = device.capture([kept], keep=1)
        except DeviceError as error:
            reason = str(error)
        else:
            problem = _problem(call, lambda: _replay(graph, outputs, device), device)
    answer = "no" if reason else "yes"
    limits = LIMITS["capturable"]
    return [limits.reading("capturable", Unit.TEXT, answer, drifts=True, rank=40, problem=problem, note=reason)]


def _problem(call: Callable[[], object], replay: Callable[[], list[int]], device: Device) -> str:
    """The error of a replay in used memory; empty if there is none, or if the results differ between replays, or if no
    memory is left."""
    import torch

    try:
        first = replay()
        if any(replay() != first for _ in range(1, _BEFORE)):
            return ""
        for _ in range(_ROUNDS):
            call()  # Caches now hold tensors of this call.
            collect_young()
            blocks = device.occupy()
            # Results from filled memory are wrong each time. A result that varies by chance, but did not in earlier
            # replays, equals the first one again sooner or later.
            different = set(range(len(first)))
            for _ in range(_AFTER):
                different &= {
                    index for index, (one, other) in enumerate(zip(first, replay(), strict=True)) if one != other
                }
                if not different:
                    break
            if any(int(block.min()) != 0xFF for block in blocks):
                return _WRITES
            if different:
                return f"output {min(different)}: {_READS}"
            del blocks
    except torch.OutOfMemoryError:
        pass
    return ""


def _replay(graph: Graph, outputs: list[Any], device: Device) -> list[int]:
    """The sum of each output's bits after a replay. Copies of outputs might be in memory that the graph writes."""
    import torch

    from perfguard.tensors.snapshot import bits

    graph.replay()
    device.synchronize()
    tensors = tree_tensors(outputs)
    return [int(bits(each.detach()).sum(dtype=torch.int64)) for each in tensors if each.layout is torch.strided]
