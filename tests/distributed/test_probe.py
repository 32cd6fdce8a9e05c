"""The ceiling of exchanges, on two processes: the calls are valid, and the slowest rank counts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch.distributed as dist

from perfguard.measure.collectives.meeting import meeting, probe
from perfguard.measure.devices.device import Within
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers.ranks import Ranks
from tests.distributed.ranks import Ranks as Processes


class ByHand(Ranks):
    """Each call takes 10 µs, and on rank 1 20."""

    def time(self, within: Within) -> tuple[float, bool]:
        within(nullcontext())
        return 10.0 * (1 + dist.get_rank()), True


def probed(rank: int, ranks: int) -> dict[str, float]:
    def exchange(purpose: str, data: object) -> list[Any]:
        found: list[Any] = [None] * ranks
        dist.all_gather_object(found, data)
        return found

    ready = meeting(FakeDevice(), exchange, "warm")
    ready.meet_hosts()
    ready.meet_devices()
    return probe(ByHand(ready.device, exchange, ready.meet_hosts, ready.meet_devices), 4096)


def test_each_kind_is_probed_and_the_slowest_rank_counts(two_ranks: Processes) -> None:
    first, second = two_ranks.run(probed)
    rate = pytest.approx(4096 / 2 / 20e-6)
    assert first == second == {"all_gather": rate, "reduce_scatter": rate, "all_to_all": rate}
