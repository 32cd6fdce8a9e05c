"""Seconds from the start of Python to a call's first result, with nothing compiled or tuned before, and the part that
torch.compile takes: with empty caches, with kept ones, for one layer more.

Each reading needs its own processes, so it is opt-in: `perfguard(…, cold_start=True)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

METRIC = "cold_start_us"

# Disks, other processes and the linker vary by seconds. A slowdown below 50 % or 2 s is therefore no finding (the judge
# fails above a third of the promise).
_PROMISE = 3 * 0.405  # ln 1.5
_FLOOR_US = 2e6
_LAYER_FLOOR_US = 5e5  # for one more layer, which costs almost nothing if layers share their graph

LIMITS = {
    "cold_start_us": Limits(Better.LOWER, promise=_PROMISE, floor=_FLOOR_US),
    "compile_layer_us": Limits(Better.LOWER, promise=_PROMISE, floor=_LAYER_FLOOR_US),
    "compile_time_us": Limits(Better.LOWER, promise=_PROMISE, floor=_FLOOR_US),
    "compiled_kernels": Limits(Better.LOWER),
    "graph_cache_misses": Limits(Better.LOWER),
    "warm_compile_layer_us": Limits(Better.LOWER, promise=_PROMISE, floor=_LAYER_FLOOR_US),
    "warm_compile_time_us": Limits(Better.LOWER, promise=_PROMISE, floor=_FLOOR_US),
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """The readings of the cold processes (`perfguard.session.cold_start`); nothing unless the case requests them."""
    return [] if subject.cold is None else subject.cold()
