"""The times of a case of several ranks, each on a device of its own: of the call, and of its exchanges.

Nothing here is gated yet: what is worth a gate follows from the noise between sessions. All ranks read the same values,
from the data that they exchange.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers.timing import Blocks, Meter
from perfguard.model.errors import DeviceError
from perfguard.model.limits import Limits
from perfguard.model.mesh import Mesh
from perfguard.model.records import Across, Better, Reading, Value
from perfguard.model.units import Unit, format_bandwidth, format_percent, format_time, significant
from perfguard.tensors.step import Step

if TYPE_CHECKING:
    from perfguard.measure.collectives.exchange import Exchange
    from perfguard.measure.collectives.transfer import Profile, Travel
    from perfguard.measure.devices.device import Device
    from perfguard.measure.timers.ranks import Ranks

TIMED = True

_RANK = 21  # in an explanation: behind what the ranks exchange
_MOST = 5  # collectives that a note names
_PATIENCE = 4  # a profiled call takes its host longer
_HOST_RANKS = "LOCAL_WORLD_SIZE"  # of torchrun

_SHOWN = Limits(Better.LOWER, gated=False)
LIMITS = {
    "bus_gb_per_second": Limits(Better.HIGHER, gated=False),
    "bus_share": Limits(Better.HIGHER, gated=False),
    "exposed_us": _SHOWN,
    "interconnect": Limits(Better.SAME, gated=False),
    "overlap_share": Limits(Better.HIGHER, gated=False),
    "ranks_floor_us": _SHOWN,
    "ranks_time_us": _SHOWN,
    "skew_us": _SHOWN,
    "transfer_us": _SHOWN,
}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`ranks_time_us`, the time of the slowest rank, and `ranks_floor_us`, that of an exchange of one number; from one
    profile of each rank `exposed_us` and `overlap_share`, and by collective `transfer_us`, `skew_us`,
    `bus_gb_per_second` and `bus_share`; and `interconnect`, under which alone they are comparable."""
    step, call = subject.run, subject.call
    if not subject.timed or call is None or call.together is None or not isinstance(step, Step):
        return []
    from perfguard.measure.collectives.meeting import ceilings, meeting
    from perfguard.measure.collectives.transfer import exposed, travels
    from perfguard.measure.timers.ranks import measure

    exchanges = subject.dispatched(device).exchanges
    ranks, mesh = meeting(device, call.together.exchange, subject.cache), call.mesh
    timed = measure(step.within, ranks, subject.seconds)
    links = device.interconnect(int(os.environ.get(_HOST_RANKS, call.together.ranks)))
    # Times under another interconnect are of another kind.
    on = f"-{hashlib.sha256(links.encode()).hexdigest()[:8].upper()}" if links else ""
    meter = Meter(f"{timed.timer}{on}", lambda: None, timed.floor_us)
    readings = [
        _time(meter, "ranks_time_us", timed.call, "; ".join(timed.notes)),
        _time(meter, "ranks_floor_us", timed.least),
        *([_shown("interconnect", links, Unit.TEXT)] if links else []),
    ]
    profiles = _profiles(step, timed.ranks, exchanges, call.together.rank, mesh)
    if not any(each.exchanging_us for each in profiles):  # nothing is exchanged, or the profiler does not show it
        return readings
    rank, most = exposed(profiles)
    hidden = 1 - most.exposed_us / most.exchanging_us if most.exchanging_us else 1.0
    told = f"rank {rank} exchanges for {format_time(most.exchanging_us)}, {format_percent(hidden)} beside other work"
    readings.append(_shown("exposed_us", significant(most.exposed_us), Unit.MICROSECONDS, told))
    readings.append(_shown("overlap_share", significant(hidden)))
    ran = [each.ran for each in profiles if each.ran is not None]
    if len(ran) < len(profiles):
        return readings
    found = travels(ran, mesh)
    return [*readings, *_of_collectives(found, ceilings(ranks))] if found else readings


def _profiles(step: Step, ranks: Ranks, exchanges: Sequence[Exchange], rank: int, mesh: Mesh) -> list[Profile]:
    """The profiles of all ranks; none if the profiler of any reports nothing."""
    from perfguard.measure.collectives.transfer import Profile, profile_of

    patient = replace(ranks, sleep_us=_PATIENCE * ranks.sleep_us)
    try:
        spans = ranks.device.spans(lambda around: step.within(patient.together(around)))
    except DeviceError:
        own = None
    else:
        own = msgspec.to_builtins(profile_of(spans, exchanges, rank, mesh))
    told = ranks.exchange("a profile", own)
    return [] if None in told else msgspec.convert(told, list[Profile])


def _of_collectives(found: Mapping[str, Travel], ceilings: Mapping[str, float]) -> list[Reading]:
    """Transfer, skew and bus bandwidth of each collective."""
    rates = {name: each.bytes_per_second for name, each in found.items() if each.bytes_per_second}
    best = max(ceilings.values(), default=0.0)  # of kinds that are not probed
    shares = {name: rate / ceilings.get(name.split()[0], best) for name, rate in rates.items() if best}
    late = [
        f"{name}: others wait {format_time(each.skew_us)} for rank {each.last}"
        for name, each in sorted(found.items(), key=lambda item: -item[1].skew_us)
        if each.last is not None
    ]
    said = [f"{name} {format_bandwidth(rates[name])}, {format_percent(share, 0)}" for name, share in shares.items()]
    probe = ", ".join(f"{kind} {format_bandwidth(rate)}" for kind, rate in ceilings.items())
    parts = [
        ("transfer_us", {name: each.transfer_us for name, each in found.items()}, Unit.MICROSECONDS, ""),
        ("skew_us", {name: each.skew_us for name, each in found.items()}, Unit.MICROSECONDS, "; ".join(late[:_MOST])),
        ("bus_gb_per_second", {name: rate / 1e9 for name, rate in rates.items()}, Unit.COUNT, ""),
        ("bus_share", shares, Unit.COUNT, f"of the probe ({probe}): {'; '.join(said[:_MOST])}" if said else ""),
    ]
    return [
        _shown(metric, {name: significant(part) for name, part in value.items()}, unit, note)
        for metric, value, unit, note in parts
        if value
    ]


def _time(meter: Meter, metric: str, blocks: Blocks, note: str = "") -> Reading:
    reading = meter.reading(metric, blocks, promise=LIMITS[metric].promise)
    return msgspec.structs.replace(reading, gated=False, across=Across.EQUAL, note=note)


def _shown(metric: str, value: Value, unit: Unit = Unit.COUNT, note: str = "") -> Reading:
    return LIMITS[metric].reading(metric, unit, value, drifts=True, rank=_RANK, across=Across.EQUAL, note=note)
