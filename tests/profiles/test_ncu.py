"""The counters of a real profiler that tell planted causes, for `perfguard explain` to be built on."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest


def launches() -> list[dict[str, float]]:
    """Counter -> value, for each launch of `plants.py`."""
    with (Path(__file__).parent / "ncu-h200.csv").open(encoding="utf-8", newline="") as file:
        _, *rows = csv.DictReader(file)  # The first row holds the units.
    texts = [{name: text.replace(",", "") for name, text in row.items()} for row in rows]
    return [{name: float(text) for name, text in row.items() if "__" in name} for row in texts]


def test_a_kernel_that_reads_twice() -> None:
    once, twice, *_ = launches()
    assert twice["dram__bytes_read.sum"] / once["dram__bytes_read.sum"] == pytest.approx(2, rel=0.01)
    assert once["dram__bytes_read.sum"] == pytest.approx(2**26 * 4, rel=0.01)


def test_a_kernel_that_spills() -> None:
    _, _, good, spilling, *_ = launches()
    name = "smsp__sass_inst_executed_op_local_ld.sum"
    assert (good[name], spilling[name] > 0) == (0, True)
    assert spilling["dram__bytes_write.sum"] > 1.5 * good["dram__bytes_write.sum"]


def test_a_kernel_of_half_the_occupancy() -> None:
    *_, good, lonely = launches()
    name = "sm__warps_active.avg.pct_of_peak_sustained_active"
    assert lonely[name] / good[name] == pytest.approx(0.5, abs=0.05)
    limit = "launch__occupancy_limit_shared_mem"
    assert lonely[limit] < lonely["launch__occupancy_limit_registers"] <= good[limit]
