"""What a test leaves: tensors that a cycle holds are freed first, wherever the collector has moved them."""

from __future__ import annotations

import gc

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
