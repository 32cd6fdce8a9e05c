"""Guards the host time of unchanged tests that use pytest-benchmark's `benchmark` fixture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfguard._compat.pytest_internals import benchmark_rounds
from perfguard.measure.timers.timing import Blocks, Meter
from perfguard.model.records import Case, CaseResult

if TYPE_CHECKING:
    import pytest

METRIC = "host_time_us"
TIMER = "pytest-benchmark"
PROMISE, FLOOR_US = 0.10, 2.0  # a slowdown of 10 % is found if it is more than 2 µs
BLOCKS = 7  # consecutive parts of the rounds, so that drift inside the session shows in the spread


def benchmark_result(item: pytest.Item, case: Case) -> CaseResult | None:
    """The host time of a finished `benchmark` test; None when the plugin measured nothing (disabled, skipped)."""
    data = benchmark_rounds(item)
    return benchmark_reading(data, case) if data else None


def benchmark_reading(rounds: Sequence[float], case: Case) -> CaseResult:
    """Seconds per round, in the order measured, as one reading: the median of the medians of consecutive parts."""
    size = math.ceil(len(rounds) / BLOCKS)
    blocks = tuple(1e6 * statistics.median(rounds[start : start + size]) for start in range(0, len(rounds), size))
    meter = Meter(TIMER, lambda: None, floor_us=0.0)  # pytest-benchmark has read all blocks
    reading = meter.reading(METRIC, Blocks(blocks, rejected=0), promise=PROMISE, floor=FLOOR_US)
    return CaseResult(case=case, readings=[reading])
