"""The floor of a time that other work only ever lengthens: the lowest of many blocks, taken over seconds.

What a process is charged for on a shared processor grows by half or threefold while others use its caches, its memory
or, behind a hypervisor, the processor itself. That comes in bursts of seconds. The lowest blocks were in none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

AGREEING = 3  # blocks that lie on the floor before it is believed
LEAST = 8  # blocks before that
_NEAR = 0.01  # of the lowest


def floor(times: Sequence[float]) -> tuple[float, ...]:
    """The lowest blocks, ascending: at most three, whose median is the time."""
    return tuple(sorted(times)[:AGREEING])


def is_reached(times: Sequence[float]) -> bool:
    """Whether enough blocks agree that there is nothing below them."""
    lowest = floor(times)
    return len(times) >= LEAST and lowest[-1] <= (1 + _NEAR) * lowest[0]
