"""Memory of a call: at its peak, between calls, and after many of them.

Peak and workspace are bytes that were asked for, above what was held before; outputs count, inputs do not. What stays
when the outputs are gone is residue: a cache of results, a tensor in a closure. What is more after 50 calls is a leak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.hardware.activity import Growth
from perfguard.metrics.subject import Subject
from perfguard.records import Reading
from perfguard.units import Unit

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = False

_TOLERANCE = 0.005

# On a GPU libraries keep workspaces, so less than 1 MiB is no finding.
_FLOOR_BYTES = 2**20

# On a CPU allocations are counted to the byte and cases are small: a temporary of one page is a real one.
_CPU_FLOOR_BYTES = 2**12

# The allocator takes memory from the device in segments of up to 20 MiB: one more of them is no leak.
_SEGMENT_BYTES = 20 * 2**20

_CALLS = 50  # over which memory must not grow
_CALLS_US = 25_000.0  # how long they may take: of slow calls there are fewer, and what they take is scaled up


def read(subject: Subject, device: Device) -> list[Reading]:
    """`peak_memory_bytes`, gated by 0.5 % and 1 MiB (4 KiB on a CPU); `residue_bytes` and `growth_bytes`, of which
    any rise fails; and what explains them: `workspace_bytes`, and on a GPU what the allocator reserved."""
    subject.warm_up(device)
    use = device.memory(subject.run)
    # Where counting is dear (a CPU's allocator is watched by the profiler), what leaves nothing behind does not grow.
    counted = device.asynchronous or use.residue > 0
    growth = _growth(subject, device) if counted else Growth(_CALLS, 0)
    floor = float(_FLOOR_BYTES if device.asynchronous else _CPU_FLOOR_BYTES)
    here = not device.asynchronous  # what is left behind on a CPU is left behind on every CPU
    readings = [
        # Libraries' scratch is in it, and theirs to change with their version.
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
    """After 50 calls, or as many as fit into their time. What grows once, as a cache that fills, is no leak."""
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
