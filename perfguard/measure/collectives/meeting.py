"""Where the ranks of a process group meet, and how fast they exchange large buffers: the ceiling of a session."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from perfguard.measure.collectives.exchange import Exchange
from perfguard.measure.collectives.transfer import moved_bytes
from perfguard.measure.devices.device import Device
from perfguard.measure.timers.ranks import Ranks
from perfguard.measure.timers.timing import Cache

_PROBE_BYTES = 2**30
_SHARE_OF_MEMORY = 16  # the probe's buffers take at most an eighth of a device
_WARM_UPS, _CALLS = 2, 5
_probed: weakref.WeakKeyDictionary[Device, Mapping[str, float]] = weakref.WeakKeyDictionary()


def meeting(device: Device, exchange: Callable[[str, object], list[Any]], cache: Cache) -> Ranks:
    """The ranks of the default group: hosts meet over gloo, devices over their own backend."""
    on_host, on_device = torch.zeros(1), torch.zeros(1, device=device.torch_device)
    return Ranks(device, exchange, lambda: dist.all_reduce(on_host), lambda: dist.all_reduce(on_device), cache)


def ceilings(ranks: Ranks) -> Mapping[str, float]:
    """Kind -> bus bandwidth of an exchange of 1 GiB among all ranks, less where memory is small, bytes per second: read
    once in a process. Empty where tensors are on the CPU."""
    device = ranks.device
    if device.holds_cpu_tensors:
        return {}
    if device not in _probed:
        size = min(_PROBE_BYTES, (device.identity.memory_bytes or _PROBE_BYTES) // _SHARE_OF_MEMORY)
        _probed[device] = probe(ranks, size)
        device.free_memory()
    return _probed[device]


def probe(ranks: Ranks, size: int) -> dict[str, float]:
    """Kind -> bus bandwidth of an exchange of `size` bytes among all ranks, bytes per second, by the median of calls of
    which the slowest rank counts."""
    count = dist.get_world_size()
    part = size // 2 // count  # elements of one rank
    whole, piece, other = (
        torch.zeros(elements, dtype=torch.bfloat16, device=ranks.device.torch_device)
        for elements in (count * part, part, count * part)
    )
    calls: Mapping[str, Callable[[], object]] = {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, piece),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(piece, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
    }
    found = {}
    for kind, call in calls.items():

        def within(around: AbstractContextManager[object], call: Callable[[], object] = call) -> None:
            with around:
                call()

        times = [ranks.time(within)[0] for _ in range(_WARM_UPS + _CALLS)][_WARM_UPS:]
        slowest = [max(turn) for turn in zip(*ranks.exchange("the probe", times), strict=True)]
        moved = moved_bytes(Exchange(kind, "", "", 2 * count * part, 2 * count * part), count, 0)
        found[kind] = moved / (statistics.median(slowest) * 1e-6)
    return found
