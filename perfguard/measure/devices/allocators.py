"""Memory of one call from torch's allocators: the CPU's, and the caching allocator of a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from perfguard.measure import collect_young, collector_paused
from perfguard.measure.devices import kineto
from perfguard.measure.devices.activity import Ledger, MemoryUse

_MOST_OCCUPIED = 2 * 2**30  # Filling more bytes would take too long.

# Larger requests get memory from "large" segments (torch.cuda.memory, Segment.segment_type), and never from a free
# block of a "small" segment.
_LARGEST_SMALL = 2**20  # bytes

# The backward pass runs in a thread of autograd, which frees its last tensors after `backward` has returned, and needs
# Python's lock for this. So the residue is read again after pauses in which that thread can take the lock.
_PAUSES = (0.002, 0.01, 0.05, 0.2)  # in seconds


def cpu_use(call: Callable[[], object]) -> MemoryUse:
    """Bytes of torch's CPU allocator, also inside custom operators: at the peak, and left after the result is freed."""

    def once() -> None:
        result = call()
        del result  # A caller holds its result, so the peak includes it.
        collect_young()

    with collector_paused():
        collect_young()
        allocations = kineto.allocations(once)
    ledger = Ledger()
    for address, count in allocations:
        if count > 0:
            ledger.add(address, count)
        else:
            ledger.remove(address)
    return MemoryUse(ledger.peak, ledger.total)


class GpuMemory:
    """Memory of the GPU with this index of a backend, `torch.cuda` or `torch.xpu`."""

    def __init__(self, backend: Any, index: int) -> None:
        self._backend = backend
        self._index = index

    def use_of(self, call: Callable[[], object]) -> MemoryUse:
        """Bytes requested at the peak, and left after the result is freed.

        The residue consists of blocks with new addresses: a call that replaces its cached tensor leaves the total
        unchanged, but keeps a block.
        """
        backend, index = self._backend, self._index
        with collector_paused():
            collect_young()
            backend.synchronize(index)
            time.sleep(_PAUSES[0])
            backend.empty_cache()
            before = self.blocks()
            allocated = self._allocated()
            backend.reset_peak_memory_stats(index)
            start, _ = self._requested()
            result = call()
            backend.synchronize(index)
            _, peak = self._requested()
            del result  # A caller holds its result, so the peak includes it.
            collect_young()

            def left() -> int:
                if before is None:
                    return self._allocated() - allocated
                after = self.blocks() or {}
                return sum(count for address, count in after.items() if address not in before)

            residue = _settled(left)
        return MemoryUse(max(0, peak - start), max(0, residue))

    def occupy(self, device: torch.device) -> list[torch.Tensor]:
        """Take the allocator's free blocks, largest first, except those of graphs, and fill them with bytes 0xFF."""
        backend, index = self._backend, self._index
        taken: list[torch.Tensor] = []
        for stream in (backend.default_stream(index), backend.current_stream(index)):  # Blocks belong to a stream.
            with backend.stream(stream):
                for size in sorted(self.free_sizes(stream.cuda_stream), reverse=True):
                    if sum(block.numel() for block in taken) + size > _MOST_OCCUPIED:
                        continue
                    try:
                        block = torch.empty(size, dtype=torch.uint8, device=device)
                    except torch.OutOfMemoryError:
                        break
                    taken.append(block.fill_(0xFF))
        return taken

    def free_sizes(self, stream: int) -> list[int]:
        """The sizes of requests that fill all free blocks of a stream, except those of graphs."""
        return [
            piece
            for segment in self._segments() or ()
            if segment.get("stream", stream) == stream and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
            for block in segment["blocks"]
            if block["state"] == "inactive"
            for piece in _pieces(int(block["size"]), segment.get("segment_type") == "small")
        ]

    def blocks(self) -> dict[int, int] | None:
        """Address -> size of every allocated block; None if this version of torch does not report blocks."""
        segments = self._segments()
        if segments is None:
            return None
        blocks: dict[int, int] = {}
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"].startswith("active_alloc"):
                    blocks[block.get("address", address)] = block["size"]
                address += block["size"]
        return blocks

    def _segments(self) -> list[dict[str, Any]] | None:
        snapshot = getattr(self._backend, "memory_snapshot", None)
        if snapshot is None:
            return None
        return [segment for segment in snapshot() if segment.get("device", self._index) == self._index]

    def _allocated(self) -> int:
        return int(self._backend.memory_allocated(self._index))

    def _requested(self) -> tuple[int, int]:
        """Bytes requested for live tensors, now and at the peak.

        Allocated bytes depend on the allocator's present blocks: on an H200 the same call differed by 1.5 to 2.2 MiB
        between processes. They are read only if the allocator does not count requested bytes.
        """
        stats = self._backend.memory_stats(self._index)
        name = "requested_bytes" if stats.get("requested_bytes.all.allocated") else "allocated_bytes"
        return int(stats.get(f"{name}.all.current", 0)), int(stats.get(f"{name}.all.peak", 0))


def _settled(read: Callable[[], int]) -> int:
    """The minimum of several readings, up to the first that is not above 0."""
    least = read()
    for pause in _PAUSES:
        if least <= 0:
            break
        time.sleep(pause)
        least = min(least, read())
    return least


def _pieces(size: int, small: bool) -> list[int]:
    """The sizes of requests that fill a free block of `size` bytes."""
    most = _LARGEST_SMALL if small else size
    return [min(most, size - start) for start in range(0, size, most)]
