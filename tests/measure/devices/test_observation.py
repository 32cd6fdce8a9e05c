"""What a test leaves: tensors that a cycle holds are freed first, wherever the collector has moved them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from perfguard.measure.devices.observation import observed


class Cycle:
    """Holds itself, and so a tensor that nothing else holds."""

    def __init__(self) -> None:
        self.tensor, self.me = torch.ones(8), self


@pytest.mark.parametrize("collected", [None, 0, 1, 2])
def test_a_cycle_is_freed(collected: int | None) -> None:
    """The collection makes it older, and is told of nothing while the test still holds it."""
    with observed("cpu") as seen:
        cycle = Cycle()
        if collected is not None:
            gc.collect(collected)
        del cycle
    assert seen.left == {}


def test_a_tensor_that_is_left_costs_no_full_collection() -> None:
    """A suite of thousands of tests whose instances hold tensors would take three times as long."""
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    with observed("cpu") as seen:
        left = torch.ones(8)
    assert list(seen.left.values()) == [left.nbytes]
    assert gc.get_stats()[2]["collections"] == before


class Kernel:
    """In place of a compiled kernel, which only a GPU runs: works with torch, and notes its tiles."""

    def __init__(self) -> None:
        self.tiles: list[int] = []

    def run(self, x: torch.Tensor, *, BLOCK: int, **options: Any) -> None:
        self.tiles.append(BLOCK)
        torch.empty(BLOCK).sum().item()
        x.add_(1)


def test_a_tuner_that_times_its_configurations_is_not_the_test() -> None:
    """A process that has found its choice on the disk, or has tuned before, times nothing."""
    import triton  # Whoever imports it first decides whether kernels of the process are interpreted.

    configurations = [triton.Config({"BLOCK": tile}) for tile in (2048, 1024)]
    tuner = triton.autotune(configurations, key=["x"], reset_to_zero=["x"])(triton.jit(double))
    tuner.fn = kernel = Kernel()
    tuner._do_bench = lambda call, quantiles: [[call() for _ in range(3)] and float(kernel.tiles[-1])] * 3
    x, found = torch.zeros(8), []
    for _ in range(2):
        with observed("cpu") as seen:
            tuner.run(x, grid=(1,), warmup=False)
        activity = seen.activity
        found.append((activity.launches, activity.tensor_bytes, [(wait.name, wait.count) for wait in activity.waits]))
    assert kernel.tiles == [2048] * 3 + [1024] * 5
    assert found[0] == found[1]
    assert found[0][0]["aten.add_.Tensor"] == 1


def double(x: Any, BLOCK: Any) -> None:
    """The signature of a kernel, which nothing runs."""
