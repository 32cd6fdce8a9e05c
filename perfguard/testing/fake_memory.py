"""The memory of a simulated GPU."""

from __future__ import annotations

import itertools
from typing import Self

from perfguard.measure.devices.activity import Ledger
from perfguard.model.units import format_bytes


class FakeMemory(Ledger):
    """Memory of `capacity` bytes, which is counted but never written. Each address is used once."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._addresses = itertools.count(1)

    def take(self, count: int) -> int:
        """Allocate `count` bytes and return their address.

        Raises:
            torch.OutOfMemoryError: fewer bytes are free.
        """
        free = self._capacity - self.total
        if count > free:
            import torch

            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {format_bytes(count)}. GPU 0 has a total capacity of "
                f"{format_bytes(self._capacity)} of which {format_bytes(free)} is free."
            )
        address = next(self._addresses)
        self.add(address, count)
        return address


class Allocation:
    """Device memory, which `free()`, the end of a `with` block, or the object's destruction frees."""

    def __init__(self, memory: FakeMemory | None, count: int) -> None:
        self._memory = None  # `take` may raise, and `__del__` still runs.
        self._address = 0 if memory is None else memory.take(count)
        self._memory = memory

    def free(self) -> None:
        """Free the memory; a second call does nothing."""
        if self._memory is not None:
            self._memory.remove(self._address)
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def __del__(self) -> None:
        self.free()
