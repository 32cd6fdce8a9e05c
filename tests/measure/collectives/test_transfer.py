"""Transfer, skew, exposed time and bus bandwidth: of records of all ranks, and of simulated devices with delays."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from perfguard.measure.collectives.exchange import Exchange
from perfguard.measure.collectives.transfer import Profile, exposed, moved_bytes, profile_of, travels
from perfguard.measure.devices.activity import Span
from tests.measure.simulated_ranks import Simulated, on_ranks

MESH = {"dp": 2}
GATHER = Exchange("all_gather", "dp", "bfloat16", 1000, 2000)
SUM = Exchange("all_reduce", "dp", "float32", 4000, 4000)
KERNELS = {
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_TREE_LL()",
}


def simulated(late_us: float = 0.0, hidden_us: float = 0.0) -> list[Profile]:
    """A gather and a sum of 10 µs each; before the gather rank 1 computes for longer, and beside the sum both do."""

    def body(rank: Simulated) -> Profile:
        device = rank.device

        def within(around: AbstractContextManager[object]) -> None:
            with rank.ranks().together(around):
                device.enqueue(20.0 + late_us * rank.rank, name="gemm")
                rank.send(KERNELS["all_gather"], 10.0)
                device.busy_until_us = device.beside_until_us  # its result is used
                device.enqueue(30.0, name="gemm")
                rank.send(KERNELS["all_reduce"], 10.0)
                device.enqueue(hidden_us, name="gemm")

        return profile_of(device.spans(within), [GATHER, SUM], rank.rank, MESH)

    return on_ranks(2, body)


def ran(profiles: list[Profile]) -> list[Any]:
    return [each.ran for each in profiles]


def test_a_late_rank_is_told_from_a_slow_transfer_and_named() -> None:
    even, late = (travels(ran(simulated(late_us)), MESH)["all_gather dp bfloat16"] for late_us in (0.0, 7.0))
    assert (even.transfer_us, late.transfer_us) == pytest.approx((10.0, 10.0))
    assert even.skew_us == pytest.approx(0.5)  # the ranks left their meeting so far apart
    assert (late.skew_us, late.last) == (pytest.approx(7.5), 1)
    assert late.bytes_per_second == pytest.approx(1000 / 10e-6)


def test_exposed_time_is_what_no_other_work_hides() -> None:
    _, bare = exposed(simulated())
    _, half = exposed(simulated(hidden_us=5.0))
    assert bare.exposed_us == pytest.approx(bare.exchanging_us) == pytest.approx(20.5)
    assert half.exchanging_us == pytest.approx(20.5)
    assert half.exposed_us == pytest.approx(15.5)
    rank, late = exposed(simulated(late_us=7.0))
    assert (rank, late.exposed_us) == (0, pytest.approx(27.5))  # rank 0 waits


def test_overlapping_exchanges_count_once() -> None:
    name = KERNELS["all_reduce"]
    spans = [Span(name, 1, 0.0, 10.0), Span(name, 2, 5.0, 12.0), Span("gemm", 0, 8.0, 20.0)]
    found = profile_of(spans, [SUM, SUM], 0, MESH)
    assert (found.exchanging_us, found.exposed_us) == (12.0, 8.0)


def test_kernels_that_do_not_match_the_exchanges_tell_nothing_of_them() -> None:
    span = Span(KERNELS["all_gather"], 1, 0.0, 10.0)
    assert profile_of([span], [SUM], 0, MESH).ran is None
    assert profile_of([span], [GATHER, GATHER], 0, MESH).ran is None
    alone = Exchange("all_gather", "one rank", "float32", 8, 8)  # starts no kernel of NCCL
    found = profile_of([span], [alone, GATHER], 0, MESH).ran
    assert found is not None
    assert [each.name for each in found] == [GATHER.name]


def test_only_ranks_of_one_group_are_compared() -> None:
    mesh = {"dp": 2, "tp": 2}  # groups over dp: ranks 0 and 2, ranks 1 and 3
    times = (10.0, 30.0, 14.0, 31.0)
    profiles = [
        profile_of([Span(KERNELS["all_gather"], 1, 0.0, us)], [GATHER], rank, mesh) for rank, us in enumerate(times)
    ]
    (found,) = travels(ran(profiles), mesh).values()
    assert (found.transfer_us, found.skew_us, found.last) == (30.0, 1.0, 1)


def test_ranks_that_disagree_are_not_compared() -> None:
    spans = [Span(KERNELS["all_gather"], 1, 0.0, 10.0)] * 2
    profiles = [profile_of(spans[:count], [GATHER] * count, rank, MESH) for rank, count in enumerate((1, 2))]
    assert travels(ran(profiles), MESH) == {}


@pytest.mark.parametrize(
    ("kind", "sent", "received", "moved"),
    [
        ("all_reduce", 400, 400, 600),
        ("all_gather", 100, 400, 300),
        ("reduce_scatter", 400, 100, 300),
        ("all_to_all", 400, 400, 300),
        ("broadcast", 400, 400, 400),
        ("reduce", 400, 400, 400),
        ("gather", 100, 400, 300),
        ("scatter", 400, 100, 300),
        ("send", 400, 0, 400),
        ("recv", 0, 400, 400),
    ],
)
def test_bytes_of_the_bus(kind: str, sent: int, received: int, moved: float) -> None:
    """Of four ranks: what nccl-tests multiplies, 2(n-1)/n, (n-1)/n and 1."""
    assert moved_bytes(Exchange(kind, "dp", "int8", sent, received), 4, 0) == moved


def test_the_busiest_rank_bounds_an_uneven_all_to_all() -> None:
    """Rank 0 keeps 10 of its 40 rows and sends 30; it receives 10 more. Rank 1 keeps all 20 that it has."""
    rows = [((10, 30), (10, 10)), ((10, 20), (30, 20))]
    exchanges = [Exchange("all_to_all", "dp", "int8", sum(s), sum(r), sent_rows=s, received_rows=r) for s, r in rows]
    assert [moved_bytes(each, 2, rank) for rank, each in enumerate(exchanges)] == [30.0, 30.0]
    profiles = [
        profile_of([Span("ncclDevKernel_SendRecv()", 1, 0.0, 2.0)], [each], rank, MESH)
        for rank, each in enumerate(exchanges)
    ]
    (found,) = travels(ran(profiles), MESH).values()
    assert found.bytes_per_second == pytest.approx(30 / 2e-6)
