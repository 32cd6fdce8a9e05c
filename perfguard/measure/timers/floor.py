"""The floor of a time that other work can only lengthen: the lowest of many blocks, measured over seconds.

The CPU time of a process on a shared processor grows by half or threefold while others use its caches, its memory or,
behind a hypervisor, the processor itself. This happens in bursts of seconds. The lowest blocks lie outside of them.
"""

from __future__ import annotations

from collections.abc import Sequence

AGREEING = 3  # blocks that must agree on the floor
LEAST = 8  # blocks before the floor can be accepted


def floor(times: Sequence[float]) -> tuple[float, ...]:
    """The lowest blocks, ascending: at most three, whose median is the time."""
    return tuple(sorted(times)[:AGREEING])


def is_reached(times: Sequence[float], near: float) -> bool:
    """Whether enough of the lowest blocks agree to `near`, relative to the lowest."""
    lowest = floor(times)
    return len(times) >= LEAST and lowest[-1] <= (1 + near) * lowest[0]
