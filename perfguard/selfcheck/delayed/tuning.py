"""Tunes the length of a chain for a time, and of its tail for a slowdown, and measures the true slowdown.

A chain's time is linear in its links, so two lengths determine all others. A measurement then corrects each length
once. Pure: `block(steps, tail)` measures one block and returns its median, µs per call.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfguard.selfcheck.delayed.plan import Delay

Block = Callable[[int, int], float]

_SHORT_STEPS, _LONG_STEPS = 8_000, 64_000  # at a few cycles a link, much longer than a launch
_CALIBRATING_BLOCKS = 3
_MOST_STEPS = 2**28
_LENGTH_TOLERANCE = 0.05
_QUADS = 6
_TAIL_TOLERANCE = 0.1  # of the slowdown aimed at
_MOST_CORRECTION = 4.0


@dataclass(frozen=True)
class Chain:
    """The line through two lengths: a call of n links takes `empty_us + n·link_us`."""

    empty_us: float
    link_us: float

    def steps(self, length_us: float) -> int:
        """Number of links that take `length_us`; 0 if an empty call takes longer."""
        return max(0, min(round((length_us - self.empty_us) / self.link_us), _MOST_STEPS))


def tune(block: Block, lengths_us: Sequence[float], aims: Sequence[float]) -> list[Delay]:
    """One delay for each length and target slowdown (0: no tail), verified in alternating blocks."""
    chain = calibrate(block)
    delays = []
    for length_us in lengths_us:
        steps, now_us = tune_length(block, chain, length_us)
        delays += [
            tune_tail(block, Delay(length_us, aimed, steps), now_us / chain.link_us)
            if aimed
            else Delay(length_us, 0.0, steps)
            for aimed in aims
        ]
    return delays


def calibrate(block: Block) -> Chain:
    """Fit the chain's line through two lengths."""
    short_us, long_us = (
        statistics.median(block(steps, 0) for _ in range(_CALIBRATING_BLOCKS)) for steps in (_SHORT_STEPS, _LONG_STEPS)
    )
    link_us = max((long_us - short_us) / (_LONG_STEPS - _SHORT_STEPS), 1e-6)
    return Chain(short_us - _SHORT_STEPS * link_us, link_us)


def tune_length(block: Block, chain: Chain, length_us: float) -> tuple[int, float]:
    """Number of links that take `length_us`, and the measured time of that call, µs."""
    steps = chain.steps(length_us)
    now_us = block(steps, 0)
    if steps and abs(now_us / length_us - 1) > _LENGTH_TOLERANCE:
        steps = max(0, steps + chain.steps(length_us) - chain.steps(now_us))
        now_us = block(steps, 0)
    return steps, now_us


def tune_tail(block: Block, delay: Delay, call_links: float) -> Delay:
    """The delay with its tail and the slowdown measured in alternating blocks; the tail is corrected once.

    Args:
        call_links: number of links that take as long as the call without a tail.
    """
    base, aimed = (delay.steps, 0), delay.aimed
    tail = max(1, round(aimed * call_links))
    seen, error = alternate(block, base, (delay.steps, tail), _QUADS)
    if abs(seen - aimed) > max(_TAIL_TOLERANCE * aimed, 2 * error):
        # Without a visible slowdown, use many more links; with too large a one, proportionally fewer.
        correction = aimed / max(seen, aimed / _MOST_CORRECTION)
        tail = max(1, round(tail * max(correction, 1 / _MOST_CORRECTION)))
        seen, error = alternate(block, base, (delay.steps, tail), _QUADS)
    return Delay(delay.length_us, aimed, delay.steps, tail, seen, error)


def alternate(block: Block, base: tuple[int, int], other: tuple[int, int], quads: int) -> tuple[float, float]:
    """The slowdown of `other` against `base` and its standard error, from quads of blocks in ABBA order.

    d = ½·ln(b1·b2 / (a1·a2)) in each quad, so that drift linear in time cancels. Quads alternate between ABBA and BAAB.
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
