"""Memory of the simulated GPU: counted, never written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Self

from perfguard.measure.devices.activity import Growth, Ledger, MemoryUse
from perfguard.measure.gc_pause import collect_young, collector_paused
from perfguard.model.units import format_bytes


class FakeMemory:
    """Allocations by address; no address is used twice."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.ledger = Ledger()
        self._addresses = itertools.count(1)

    def take(self, count: int) -> int:
        """The address of `count` bytes.

        Raises:
            torch.OutOfMemoryError: fewer bytes are free.
        """
        free = self._capacity - self.ledger.total
        if count > free:
            import torch

            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {format_bytes(count)}. GPU 0 has a total capacity of "
                f"{format_bytes(self._capacity)} of which {format_bytes(free)} is free."
            )
        address = next(self._addresses)
        self.ledger.add(address, count)
        return address

    def give(self, address: int) -> None:
        """Free the allocation at `address`."""
        self.ledger.remove(address)

    def use_of(self, call: Callable[[], object]) -> MemoryUse:
        """As `Device.memory`."""
        ledger = self.ledger
        with collector_paused():
            collect_young()
            known, before = set(ledger.alive), ledger.total
            ledger.peak = before
            result = call()
            peak, held = ledger.peak, ledger.total
            del result  # kept until the peak was read, as a caller keeps its result
            collect_young()
        residue = sum(count for address, count in ledger.alive.items() if address not in known)
        return MemoryUse(peak - before, held - before, residue, peak - before)

    def growth_of(self, call: Callable[[], object], calls: int) -> Growth:
        """As `Device.growth`."""
        with collector_paused():
            call()
            collect_young()
            before = self.ledger.total
            for _ in range(calls):
                call()
            collect_young()
        growth = self.ledger.total - before
        return Growth(calls, growth, growth)


class Allocation:
    """Device memory; freed by `free()`, at the end of its `with` block, or with the object."""

    def __init__(self, memory: FakeMemory | None, count: int) -> None:
        self._memory: FakeMemory | None = None
        if memory is not None:
            self._address = memory.take(count)
            self._memory = memory

    def free(self) -> None:
        """Free the memory; a second call does nothing."""
        if self._memory is not None:
            self._memory.give(self._address)
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def __del__(self) -> None:
        self.free()
