"""The limits of perfguard's own metrics. A report carries the limits of its readings. They must not be more lenient
than these: the report comes from the change's own code, which may have edited them.

tests/github/lanes/test_limits.py compares these limits with those of the metrics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfguard.model.records import Better, CaseResult, Reading

_MIB = 2.0**20
_HASH = re.compile(r"[0-9a-f]{16}")


class Limits(Struct, frozen=True):
    """The most lenient limits of one of our metrics over all devices.

    Attributes:
        promise: of a time, before the timer's own floor is added (as in `Timing.reading`).
        floor: of an exact metric in its unit, of a time in µs.
        covers: times that cannot have moved if the reading, a hash, equals the stored one.
        unrecorded: the value assumed for a record without the metric; None: no value.
        portable: None: taken from the reading, because it is portable on a CPU and not on a GPU.
    """

    better: Better
    gated: bool = True
    promise: float = 0.03
    floor: float = 0.0
    tolerance: float = 0.0
    covers: tuple[str, ...] = ()
    unrecorded: int | str | None = None
    portable: bool | None = False


_SEGMENT = 20 * _MIB  # torch's allocator reserves device memory in such segments
_EITHER = None  # portable where the device is a CPU

# Events have a resolution of 0.5 µs or better on all known GPUs, and a timer resolves two steps.
_COARSEST_TIMER_US = 1.0

OWN: dict[str, Limits] = {
    "beside_rival_us": Limits(Better.LOWER, promise=0.05, floor=_COARSEST_TIMER_US),
    "capturable": Limits(Better.SAME),
    "cold_start_us": Limits(Better.LOWER, promise=1.215, floor=2e6),
    "compile_layer_us": Limits(Better.LOWER, promise=1.215, floor=5e5),
    "compile_time_us": Limits(Better.LOWER, promise=1.215, floor=2e6),
    "compiled_kernels": Limits(Better.LOWER),
    "compiler_leaks": Limits(Better.LOWER, portable=True),
    "contract": Limits(Better.SAME, portable=True),
    "copies": Limits(Better.LOWER, portable=_EITHER),
    "copy_bytes": Limits(Better.LOWER, tolerance=0.005, portable=_EITHER),
    "cpu_time_us": Limits(Better.LOWER, promise=0.10, floor=2.0),
    "device_time_us": Limits(Better.LOWER, promise=0.03, floor=_COARSEST_TIMER_US),
    "eager_frames": Limits(Better.LOWER, portable=True),
    "fills": Limits(Better.LOWER),
    "fingerprint": Limits(Better.SAME, gated=False, covers=("device_time_us",)),
    "generated_kernels": Limits(Better.LOWER),
    "graph_breaks": Limits(Better.LOWER, portable=True),
    "graph_cache_misses": Limits(Better.LOWER),
    "graph_operators": Limits(Better.LOWER, portable=True),
    "graphs": Limits(Better.LOWER, portable=True),
    "growth_bytes": Limits(Better.LOWER, portable=_EITHER),
    "host_reads": Limits(Better.LOWER, portable=True),
    "host_time_us": Limits(Better.LOWER, promise=0.50, floor=2.0),
    "kernels": Limits(Better.SAME, gated=False),
    "launches": Limits(Better.LOWER),
    "operator_names": Limits(Better.SAME, gated=False, portable=True),
    "operators": Limits(Better.LOWER, portable=True),
    "peak_memory_bytes": Limits(Better.LOWER, tolerance=0.005, floor=_MIB),
    "peak_tensor_bytes": Limits(Better.LOWER, tolerance=0.005, floor=2.0**12, portable=True),
    "planned_bytes": Limits(Better.LOWER),
    "recompiles": Limits(Better.LOWER, portable=True),
    "reserved_growth_bytes": Limits(Better.LOWER, floor=_SEGMENT),
    "residue_bytes": Limits(Better.LOWER, portable=_EITHER),
    "saved_activation_bytes": Limits(Better.LOWER, portable=_EITHER),
    "saved_input_bytes": Limits(Better.LOWER, portable=_EITHER),
    "syncs": Limits(Better.LOWER),
    "wall_time_us": Limits(Better.LOWER, gated=False, promise=0.10, floor=_COARSEST_TIMER_US),
    "warm_compile_layer_us": Limits(Better.LOWER, promise=1.215, floor=5e5),
    "warm_compile_time_us": Limits(Better.LOWER, promise=1.215, floor=2e6),
}


#: Limits of the metrics read for each target (`sm_90.spills`), by their name after the target.
OF_TARGETS: dict[str, Limits] = {
    "binary": Limits(Better.SAME, gated=False),
    "asked": Limits(Better.SAME),
    "compilations": Limits(Better.LOWER),
    "configuration": Limits(Better.SAME, gated=False),
    "entry": Limits(Better.SAME),
    "fp64": Limits(Better.LOWER, tolerance=0.1, unrecorded=0),
    "instructions": Limits(Better.LOWER, gated=False),
    "load_bits": Limits(Better.HIGHER, tolerance=0.1),
    "memory_operators": Limits(Better.SAME, unrecorded="none"),
    "mix": Limits(Better.SAME, gated=False),
    "registers": Limits(Better.LOWER, gated=False),
    "resident_warps": Limits(Better.HIGHER),
    "sector_bytes": Limits(Better.HIGHER, tolerance=0.1),
    "shared_bytes": Limits(Better.LOWER, gated=False),
    "special": Limits(Better.SAME),
    "spills": Limits(Better.LOWER),
    "stack_bytes": Limits(Better.LOWER),
    "store_bits": Limits(Better.HIGHER, tolerance=0.1),
    "tunings": Limits(Better.LOWER),
    "unchecked": Limits(Better.SAME),
    "unfit": Limits(Better.LOWER),
}


def hold(result: CaseResult) -> CaseResult:
    """The case with limits no more lenient than ours. Limits of unknown metrics are kept."""
    readings = [_held(reading) for reading in result.readings]
    return result if readings == result.readings else replace(result, readings=readings)


def lenient(given: Sequence[CaseResult], held: Sequence[CaseResult]) -> dict[str, int]:
    """Metric -> the number of its readings that `hold` has made stricter."""
    counts: dict[str, int] = {}
    for before, after in zip(given, held, strict=True):
        for reading, kept in zip(before.readings, after.readings, strict=True):
            if reading != kept:
                counts[reading.metric] = counts.get(reading.metric, 0) + 1
    return counts


def _held(reading: Reading) -> Reading:
    target, _, name = reading.metric.rpartition(".")
    own = OF_TARGETS.get(name) if target and target == reading.target else OWN.get(reading.metric)
    if own is None:
        return reading
    floor = min(reading.floor, own.floor)
    promise = reading.promise
    if reading.timed and isinstance(reading.value, int | float):
        promise = min(promise, max(own.promise, 3 * floor / reading.value))
    return replace(
        reading,
        better=own.better,
        gated=own.gated,
        portable=reading.portable if own.portable is None else own.portable,
        promise=promise,
        floor=floor,
        tolerance=min(reading.tolerance, own.tolerance),
        unrecorded=own.unrecorded,
        covers=[metric for metric in reading.covers if metric in own.covers and _HASH.fullmatch(str(reading.value))],
    )
