"""The work that a call starts: launches, copies, fills, and waits of the host for the device.

On a GPU `launches` counts everything that the device ran (kernels, copies, fills) and `kernels` lists it in order. On
a CPU `operators` and `operator_names` replace them, and `host_reads` replaces `syncs`. All are equal on every CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.devices.activity import Activity
from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import EITHER, Limits
from perfguard.model.records import Better, Reading
from perfguard.model.units import Unit

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = False

_RANK = 30  # in an explanation: behind the binary's metrics, before memory
_MOST_PLACES = 5
_TOLERANCE = 0.005
_FLOOR_BYTES = 2**12  # as for the peak on a CPU: a temporary of one page is a real one

LIMITS = {
    "copies": Limits(Better.LOWER, portable=EITHER),
    "copy_bytes": Limits(Better.LOWER, tolerance=_TOLERANCE, portable=EITHER),
    "fills": Limits(Better.LOWER),
    "host_reads": Limits(Better.LOWER, portable=True),
    "kernels": Limits(Better.SAME, gated=False),
    "launches": Limits(Better.LOWER),
    "operator_names": Limits(Better.SAME, gated=False, portable=True),
    "operators": Limits(Better.LOWER, portable=True),
    "peak_tensor_bytes": Limits(Better.LOWER, tolerance=_TOLERANCE, floor=_FLOOR_BYTES, portable=True),
    "syncs": Limits(Better.LOWER),
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """Counts, which fail on any rise, and names, which explain them; all from one warm call."""
    activity = subject.activity(device)
    return _on_a_queue(activity) if device.asynchronous else _on_a_cpu(activity)


def _on_a_queue(activity: Activity) -> list[Reading]:
    return [
        Reading("launches", Unit.COUNT, len(activity.launches), drifts=True, rank=_RANK),
        _names("kernels", activity.launches, "launches"),
        *_copies(activity),
        Reading("fills", Unit.COUNT, activity.fills, drifts=True, rank=_RANK + 2),
        _waits("syncs", activity, "waits for the device"),
    ]


def _on_a_cpu(activity: Activity) -> list[Reading]:
    readings = [
        Reading("operators", Unit.COUNT, len(activity.launches), drifts=True, rank=_RANK),
        _names("operator_names", activity.launches, "operators"),
        *_copies(activity),
        _waits("host_reads", activity, "reads a tensor's data"),
    ]
    if activity.tensor_bytes is not None:
        peak = Reading(
            "peak_tensor_bytes",
            Unit.BYTES,
            activity.tensor_bytes,
            tolerance=_TOLERANCE,
            floor=_FLOOR_BYTES,
            drifts=True,
        )
        readings.append(peak)
    return [_portable(reading) for reading in readings]


def _names(metric: str, names: Sequence[str], details: str) -> Reading:
    return Reading(
        metric, Unit.TEXT, list(names), better=Better.SAME, gated=False, drifts=True, rank=_RANK, details=details
    )


def _copies(activity: Activity) -> list[Reading]:
    count, moved = len(activity.copies), sum(copy.bytes for copy in activity.copies)
    note = _told("copies", [f"{copy.name} at {copy.place}" if copy.place else copy.name for copy in activity.copies])
    return [
        Reading("copies", Unit.COUNT, count, drifts=True, rank=_RANK + 1, note=note),
        Reading("copy_bytes", Unit.BYTES, moved, drifts=True, rank=_RANK + 1, tolerance=_TOLERANCE),
    ]


def _waits(metric: str, activity: Activity, what: str) -> Reading:
    places = [f"{wait.place} ({wait.name})" if wait.place else wait.name for wait in activity.waits]
    return Reading(
        metric, Unit.COUNT, len(activity.waits), drifts=True, rank=_RANK - 1, note=_told(f"the host {what}", places)
    )


def _told(what: str, places: Sequence[str]) -> str:
    """`copies: aten.clone at f.py:3 in g (2 times); …`; empty without places."""
    counted = Counter(places)
    told = [place if count == 1 else f"{place} ({count} times)" for place, count in counted.items()]
    hidden = len(told) - _MOST_PLACES
    more = f"; and {hidden} more places" if hidden > 0 else ""
    return f"{what}: {'; '.join(told[:_MOST_PLACES])}{more}" if told else ""


def _portable(reading: Reading) -> Reading:
    return msgspec.structs.replace(reading, portable=True)
