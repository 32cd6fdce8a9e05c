"""Memory of a call: at its peak, between calls, and after many of them.

Peak and workspace are bytes requested above the level before the call; outputs count, inputs do not. Bytes left after
the outputs are freed are residue: a cache of results, a tensor in a closure. Growth over 50 calls is a leak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.devices.activity import Growth
from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import EITHER, Limits
from perfguard.model.records import Better, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False

_TOLERANCE = 0.005

# On a GPU libraries keep workspaces, so changes below 1 MiB are no finding.
_FLOOR_BYTES = 2**20

# On a CPU allocations are counted to the byte and cases are small: a temporary of one page is a real one.
_CPU_FLOOR_BYTES = 2**12

# The allocator takes memory from the device in segments of up to 20 MiB; one more segment is no leak.
_SEGMENT_BYTES = 20 * 2**20

_CALLS = 50  # over which memory must not grow
_CALLS_US = 25_000.0  # time limit of these calls; slow calls are fewer, and their growth is scaled up

LIMITS = {
    "growth_bytes": Limits(Better.LOWER, portable=EITHER),
    "peak_memory_bytes": Limits(Better.LOWER, tolerance=_TOLERANCE, floor=_FLOOR_BYTES),
    "reserved_growth_bytes": Limits(Better.LOWER, floor=_SEGMENT_BYTES),
    "residue_bytes": Limits(Better.LOWER, portable=EITHER),
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`peak_memory_bytes`, gated by 0.5 % and 1 MiB (4 KiB on a CPU); `residue_bytes` and `growth_bytes`, which fail
    on any rise. They are explained by `workspace_bytes`, and on a GPU by the bytes that the allocator reserved."""
    subject.warm_up(device)
    use = device.memory(subject.run)
    # Counting is slow on a CPU, whose allocator is watched by the profiler. There, no residue means no growth.
    counted = device.asynchronous or use.residue > 0
    growth = _growth(subject, device) if counted else Growth(_CALLS, 0)
    floor = float(_FLOOR_BYTES if device.asynchronous else _CPU_FLOOR_BYTES)
    here = not device.asynchronous  # a residue on one CPU is a residue on every CPU
    readings = [
        # It includes the libraries' scratch memory, which changes with their versions.
        Reading("peak_memory_bytes", Unit.BYTES, use.peak, tolerance=_TOLERANCE, floor=floor, drifts=True),
        Reading("workspace_bytes", Unit.BYTES, use.workspace, gated=False, drifts=True, details="peak_memory_bytes"),
        Reading("residue_bytes", Unit.BYTES, use.residue, portable=here, rank=55),
        Reading("growth_bytes", Unit.BYTES, _scaled(growth.allocated, growth), portable=here, rank=55),
    ]
    if use.reserved is not None:
        reserved = _scaled(growth.reserved, growth)
        readings += [
            Reading("reserved_bytes", Unit.BYTES, use.reserved, gated=False, drifts=True, rank=52),
            Reading("reserved_growth_bytes", Unit.BYTES, reserved, floor=_SEGMENT_BYTES, drifts=True, rank=56),
        ]
    return readings


def _growth(subject: Subject, device: Device) -> Growth:
    """Growth over 50 calls, or as many as fit into the limit. A single step, as of a cache that fills, is no leak."""
    started = device.now_us()
    subject.run()
    device.synchronize()
    calls = max(1, min(_CALLS, int(_CALLS_US / max(device.now_us() - started, 1.0))))
    growth = device.growth(subject.run, calls)
    if growth.allocated > 0:
        again = device.growth(subject.run, calls)
        growth = Growth(calls, min(growth.allocated, again.allocated), growth.reserved)
    return growth


def _scaled(count: int, growth: Growth) -> int:
    return max(0, round(count * _CALLS / growth.calls))
