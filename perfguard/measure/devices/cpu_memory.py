"""Memory of one call, as torch's CPU allocator gives it out, inside custom operators as well."""

from __future__ import annotations

import collections
from collections.abc import Callable

from perfguard.measure.devices import kineto
from perfguard.measure.devices.activity import Growth, Ledger, MemoryUse
from perfguard.measure.gc_pause import collect_young, collector_paused


def use_of(call: Callable[[], object]) -> MemoryUse:
    """Bytes at the peak, bytes held at the end, and bytes left after the result is freed."""

    def once(mark: Callable[[], None]) -> None:
        result = call()
        mark()
        del result
        collect_young()
        mark()

    peak, (held, residue) = _account_at_marks(once)
    return MemoryUse(peak, held, residue)


def growth_of(call: Callable[[], object], calls: int) -> Growth:
    """Growth of allocated memory from one call to `calls` further ones."""

    def several(mark: Callable[[], None]) -> None:
        for number in range(calls + 1):
            call()
            if number in (0, calls):
                collect_young()
                mark()

    _, (after_one, after_all) = _account_at_marks(several)
    return Growth(calls, after_all - after_one)


def _account_at_marks(call: Callable[[Callable[[], None]], None]) -> tuple[int, list[int]]:
    """Bytes that `call` has allocated and not freed: their peak, and their number at each of its marks."""
    with collector_paused():
        collect_young()
        allocations, marks = kineto.allocations(call)
    ledger, found = Ledger(), []
    waiting = collections.deque(allocations)
    for mark in marks:
        while waiting and waiting[0].at_ns <= mark:
            allocation = waiting.popleft()
            if allocation.bytes > 0:
                ledger.add(allocation.address, allocation.bytes)
            else:
                ledger.remove(allocation.address)
        found.append(ledger.total)
    return ledger.peak, found
