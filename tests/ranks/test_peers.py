"""Exchanges between ranks, here threads over one store in memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch.distributed as dist

from perfguard.ranks.rank_group import END, OutOfStep, RankGuard


def on_ranks(count: int, run: Callable[[RankGuard], Any]) -> list[Any]:
    """What `run` returns on each rank."""
    store = dist.HashStore()
    all_peers = [RankGuard(rank, count, "cpu", store, 1.0) for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, all_peers))


def test_everyone_gets_everyones_data() -> None:
    def run(peers: RankGuard) -> list[Any]:
        return [peers.exchange("numbers", peers.rank * step) for step in (1, 10)]

    assert on_ranks(3, run) == [[[0, 1, 2], [0, 10, 20]]] * 3


def test_a_rank_that_is_elsewhere_is_noticed_and_all_meet_at_the_end() -> None:
    def run(peers: RankGuard) -> tuple[str, list[Any]]:
        said = ""
        if peers.rank == 0:
            try:
                peers.exchange("a decision", True)
            except OutOfStep as error:
                said = str(error)
        return said, peers.exchange(END, peers.rank)

    found = on_ranks(2, run)
    assert found[0][0] == "rank 1 is at the end of the test, rank 0 at a decision; every rank must make the same calls"
    assert [ends for _, ends in found] == [[0, 1]] * 2


def test_old_parts_are_dropped() -> None:
    def run(peers: RankGuard) -> int:
        for _ in range(20):
            peers.exchange("numbers", "x" * 100)
        peers.exchange("the last", None)
        return int(peers.store.num_keys())

    assert max(on_ranks(2, run)) <= 4
