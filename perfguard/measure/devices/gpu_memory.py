"""Memory of one call, as torch's caching allocator gives it out on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from perfguard.measure.devices.activity import Growth, MemoryUse
from perfguard.measure.gc_pause import collect_young, collector_paused

_MOST_OCCUPIED = 2 * 2**30  # bytes: filling more would take too long

# Larger requests are served from "large" segments (torch.cuda.memory, Segment.segment_type), never from a free block of
# a "small" segment, whatever its size.
_LARGEST_SMALL = 2**20  # bytes

# The backward pass runs in a thread of autograd's, which frees its last tensors after `backward` has returned and needs
# Python's lock for it. So the residue is read again, after pauses in which that thread can take the lock.
_PAUSES = (0.002, 0.01, 0.05, 0.2)  # s


def use_of(call: Callable[[], object], backend: Any, index: int) -> MemoryUse:
    """Bytes requested and reserved at the peak, held at the end, and left after the result is freed.

    The residue is found by the blocks' addresses: a call that replaces its cached tensor leaves the total unchanged,
    and yet keeps a block of its own.

    Args:
        backend: `torch.cuda` or `torch.xpu`.
        index: of the device.
    """
    with collector_paused():
        collect_young()
        backend.synchronize(index)
        time.sleep(_PAUSES[0])
        backend.empty_cache()
        before = _blocks(backend, index)
        allocated, reserved = int(backend.memory_allocated(index)), int(backend.memory_reserved(index))
        backend.reset_peak_memory_stats(index)
        start, _ = _asked_for(backend, index)
        result = call()
        backend.synchronize(index)
        held, peak = _asked_for(backend, index)
        most_reserved = int(backend.max_memory_reserved(index))
        del result  # a caller holds its result, so the peak includes it
        collect_young()

        def left() -> int:
            if before is None:
                return int(backend.memory_allocated(index)) - allocated
            after = _blocks(backend, index) or {}
            return sum(count for address, count in after.items() if address not in before)

        residue = _settled(left, 0)
    return MemoryUse(max(0, peak - start), max(0, held - start), max(0, residue), max(0, most_reserved - reserved))


def _asked_for(backend: Any, index: int) -> tuple[int, int]:
    """Bytes requested for live tensors, now and at the peak.

    Allocated bytes depend on the blocks that the allocator happens to have: on an H200 the same call differed by 1.5 to
    2.2 MiB between processes. They are read only where the allocator does not count requested bytes.
    """
    stats = backend.memory_stats(index)
    name = "requested_bytes" if stats.get("requested_bytes.all.allocated") else "allocated_bytes"
    return int(stats.get(f"{name}.all.current", 0)), int(stats.get(f"{name}.all.peak", 0))


def growth_of(call: Callable[[], object], calls: int, backend: Any, index: int) -> Growth:
    """Growth of allocated and reserved memory from one call to `calls` further ones."""

    def taken(at_best: int) -> tuple[int, int]:
        backend.synchronize(index)
        collect_young()
        time.sleep(_PAUSES[0])
        allocated = _settled(lambda: int(backend.memory_allocated(index)), at_best)
        return allocated, int(backend.memory_reserved(index))

    with collector_paused():
        start = int(backend.memory_allocated(index))
        call()
        before = taken(start)
        for _ in range(calls):
            call()
        after = taken(before[0])
    return Growth(calls, after[0] - before[0], after[1] - before[1])


def _settled(read: Callable[[], int], at_best: int) -> int:
    """The minimum of several readings; a reading of `at_best` or less ends the series."""
    found = read()
    for pause in _PAUSES:
        if found <= at_best:
            break
        time.sleep(pause)
        found = min(found, read())
    return found


def occupy(backend: Any, index: int, device: torch.device) -> list[torch.Tensor]:
    """Take the allocator's free blocks, largest first, and fill them with 0xFF. Blocks of graphs are left alone."""
    taken: list[torch.Tensor] = []
    for stream in (backend.default_stream(index), backend.current_stream(index)):  # blocks belong to a stream
        with backend.stream(stream):
            for size in sorted(_free_sizes(backend, index, stream.cuda_stream), reverse=True):
                if sum(block.numel() for block in taken) + size > _MOST_OCCUPIED:
                    continue
                try:
                    block = torch.empty(size, dtype=torch.uint8, device=device)
                except torch.OutOfMemoryError:
                    break
                taken.append(block.fill_(0xFF))
    return taken


def _free_sizes(backend: Any, index: int, stream: int) -> list[int]:
    snapshot = getattr(backend, "memory_snapshot", list)
    return [
        piece
        for segment in snapshot()
        if segment.get("device", index) == index
        and segment.get("stream", stream) == stream
        and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
        for block in segment["blocks"]
        if block["state"] == "inactive"
        for piece in _pieces(int(block["size"]), segment.get("segment_type") == "small")
    ]


def _pieces(size: int, small: bool) -> list[int]:
    """The request sizes that together fill a free block of `size` bytes."""
    most = _LARGEST_SMALL if small else size
    return [min(most, size - start) for start in range(0, size, most)]


def _blocks(backend: Any, index: int) -> dict[int, int] | None:
    """Address -> size of every allocated block; None if this torch does not report them."""
    snapshot = getattr(backend, "memory_snapshot", None)
    if snapshot is None:
        return None
    blocks: dict[int, int] = {}
    for segment in snapshot():
        if segment.get("device", index) != index:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"].startswith("active_alloc"):
                blocks[block.get("address", address)] = block["size"]
            address += block["size"]
    return blocks
