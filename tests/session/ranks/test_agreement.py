"""Exchanges between ranks, here threads over one store in memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch.distributed as dist

from perfguard.session.ranks.agreement import END, Agreement, OutOfStep
from perfguard.session.ranks.world import World


def on_ranks(count: int, run: Callable[[Agreement], Any]) -> list[Any]:
    """What `run` returns on each rank."""
    store = dist.HashStore()
    agreements = [Agreement(World(rank, count, "cpu", store, 1.0)) for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, agreements))


def test_everyone_gets_everyones_data() -> None:
    def run(agreement: Agreement) -> list[Any]:
        return [agreement.exchange("numbers", agreement.world.rank * step) for step in (1, 10)]

    assert on_ranks(3, run) == [[[0, 1, 2], [0, 10, 20]]] * 3


def test_a_rank_that_is_elsewhere_is_noticed_and_all_meet_at_the_end() -> None:
    def run(agreement: Agreement) -> tuple[str, list[Any]]:
        said = ""
        if agreement.world.rank == 0:
            try:
                agreement.exchange("a decision", True)
            except OutOfStep as error:
                said = str(error)
        return said, agreement.exchange(END, agreement.world.rank)

    found = on_ranks(2, run)
    assert found[0][0] == "rank 1 is at the end of the test, rank 0 at a decision; every rank must make the same calls"
    assert [ends for _, ends in found] == [[0, 1]] * 2


def test_old_parts_are_dropped() -> None:
    def run(agreement: Agreement) -> int:
        for _ in range(20):
            agreement.exchange("numbers", "x" * 100)
        agreement.exchange("the last", None)
        return int(agreement.world.store.num_keys())

    assert max(on_ranks(2, run)) <= 4
