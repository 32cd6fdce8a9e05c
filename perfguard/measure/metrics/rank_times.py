"""The time of a call that several ranks make, each on its own device.

It is shown and stored but not gated, because a gate would need the noise between sessions. All ranks read the same
value, from the data that they exchange.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.metrics.subject import Subject
from perfguard.model.limits import Limits
from perfguard.model.records import Across, Better, Reading
from perfguard.tensors.step import Step

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

_TIME = "ranks_time_us"
_HOST_RANKS = "LOCAL_WORLD_SIZE"  # torchrun sets it.
LIMITS = {_TIME: Limits(Better.LOWER, gated=False)}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`ranks_time_us`, the time of the slowest rank. Its note names that rank and the links between the devices."""
    step, ranks = subject.run, subject.ranks
    if not subject.timed or not ranks.in_step or not isinstance(step, Step):
        return []
    import torch
    import torch.distributed as dist

    from perfguard.measure.timers.ranks import TimedRanks, measure

    on_host, on_device = torch.zeros(1), torch.zeros(1, device=device.torch_device)
    timed = TimedRanks(  # The hosts' barrier uses gloo, the devices' their own backend.
        device,
        ranks.exchange,
        host_barrier=lambda: dist.all_reduce(on_host),
        device_barrier=lambda: dist.all_reduce(on_device),
        cache=subject.cache,
    )
    meter, blocks = measure(step.within, timed, subject.seconds)
    links = device.interconnect(int(os.environ.get(_HOST_RANKS, ranks.ranks)))
    if links:  # Times over other links are not comparable.
        digest = hashlib.sha256(links.encode()).hexdigest()[:8].upper()
        meter = replace(meter, timer=f"{meter.timer}-{digest}", note=f"{meter.note}; {links}")
    reading = meter.reading(_TIME, blocks, promise=LIMITS[_TIME].promise)
    return [msgspec.structs.replace(reading, gated=False, across=Across.EQUAL)]
