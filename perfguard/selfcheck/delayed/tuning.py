"""How long a chain must be for a time, and its tail for a slowdown; and how large the slowdown truly is.

Pure: `block(steps, tail)` measures one block and returns its median, µs per call.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from perfguard.selfcheck.delayed.plan import Delay

Block = Callable[[int, int], float]

_FIRST_STEPS = 4_000
_MOST_STEPS = 2**28
_LENGTH_TOLERANCE = 0.05
_TRIES = 6
_TUNING_QUADS = 4
_VERIFYING_QUADS = 12
_TAIL_TOLERANCE = 0.1  # of the slowdown aimed at


def tune(block: Block, lengths_us: Sequence[float], aims: Sequence[float]) -> list[Delay]:
    """For each length one delay for each slowdown aimed at (0: no tail), verified in alternating blocks."""
    delays = []
    for length_us in lengths_us:
        steps, link_us = tune_length(block, length_us)
        for aimed in aims:
            if aimed == 0:
                delays.append(Delay(length_us, 0.0, steps))
                continue
            tail = tune_tail(block, steps, link_us, aimed)
            slowdown, error = alternate(block, (steps, 0), (steps, tail), _VERIFYING_QUADS)
            delays.append(Delay(length_us, aimed, steps, tail, slowdown, error))
    return delays


def tune_length(block: Block, length_us: float) -> tuple[int, float]:
    """Links of the chain that take `length_us`, and what one of them takes, µs.

    A call takes some time without any link; where that is longer than `length_us`, there are none.
    """
    empty_us = block(0, 0)
    link_us = max((block(_FIRST_STEPS, 0) - empty_us) / _FIRST_STEPS, 1e-6)
    steps = 0
    for _ in range(_TRIES):
        wanted = max(0, min(round((length_us - empty_us) / link_us), _MOST_STEPS))
        if wanted == 0:
            return 0, link_us
        steps = wanted
        now_us = block(steps, 0)
        if steps >= _FIRST_STEPS:  # a shorter chain tells its links worse than the first did
            link_us = max((now_us - empty_us) / steps, 1e-6)
        if abs(now_us / length_us - 1) <= _LENGTH_TOLERANCE:
            break
    return steps, link_us


def tune_tail(block: Block, steps: int, link_us: float, aimed: float) -> int:
    """Links of the tail that make the kernel slower by `aimed`, within a tenth of it or what can be measured."""
    tail = max(1, round(aimed * block(steps, 0) / link_us))
    for _ in range(_TRIES):
        seen, error = alternate(block, (steps, 0), (steps, tail), _TUNING_QUADS)
        if abs(seen - aimed) <= max(_TAIL_TOLERANCE * aimed, 2 * error):
            break
        # Where nothing is seen the links must be many more; where much is seen, in proportion fewer.
        tail = max(1, round(tail * min(4.0, max(0.25, aimed / max(seen, 1e-4)))))
    return tail


def alternate(block: Block, base: tuple[int, int], other: tuple[int, int], quads: int) -> tuple[float, float]:
    """The slowdown of `other` against `base` and its standard error, from quads of blocks in ABBA order.

    d = ½·ln(b1·b2 / (a1·a2)) in each quad, so that drift which is linear in time cancels; the leader alternates.
    """
    differences = []
    for quad in range(quads):
        outer, inner = (base, other) if quad % 2 == 0 else (other, base)
        first, second, third, fourth = (math.log(block(*one)) for one in (outer, inner, inner, outer))
        difference = (second + third - first - fourth) / 2
        differences.append(difference if outer is base else -difference)
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(quads)
    return math.expm1(mean), math.exp(mean) * error
