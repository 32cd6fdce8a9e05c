"""The floor of times that other work lengthens."""

from __future__ import annotations

import random

from perfguard.measure.timers.floor import AGREEING, LEAST, floor, is_reached


def test_the_lowest_count() -> None:
    assert floor([3.0, 1.0, 2.0, 5.0]) == (1.0, 2.0, 3.0)
    assert floor([2.0]) == (2.0,)


def test_it_is_reached_once_enough_blocks_agree() -> None:
    assert not is_reached([1.0] * (LEAST - 1), 0.01)
    assert is_reached([1.0] * LEAST, 0.01)
    burst = [3.0] * 20
    assert is_reached(burst, 0.01)  # nothing is known of what lies below
    assert not is_reached([*burst, 1.0, 1.005], 0.01)
    assert is_reached([*burst, 1.0, 1.005, 1.009], 0.01)


def test_bursts_hide_it_from_a_median_and_not_from_the_floor() -> None:
    chance = random.Random(1)
    found = [
        [1.0 + abs(chance.gauss(0, 0.003)) if chance.random() < 0.25 else chance.uniform(1.5, 3.0) for _ in range(60)]
        for _ in range(200)
    ]
    assert all(is_reached(times, 0.01) for times in found)
    assert max(floor(times)[AGREEING // 2] for times in found) < 1.01
    assert min(sorted(times)[30] for times in found) > 1.3
