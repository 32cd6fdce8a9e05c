"""Layers to pipeline stages, by number and by memory."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.moe import LayerMemory, layer_partition, layer_partition_by_memory

TABLE = {
    (27, 8): [3, 4, 4, 4, 3, 3, 3, 3],
    (27, 4): [7, 7, 7, 6],
    (6, 4): [1, 2, 2, 1],
    (36, 16): [2, 3, 3, 3, 3] + [2] * 11,
    (48, 8): [6] * 8,
    (3, 2): [2, 1],
    (5, 3): [2, 2, 1],
    (1, 1): [1],
}


@pytest.mark.parametrize(("layers", "stages"), TABLE)
def test_the_table(layers: int, stages: int) -> None:
    assert layer_partition(layers, stages) == TABLE[layers, stages]


@given(st.integers(1, 200).flatmap(lambda layers: st.tuples(st.just(layers), st.integers(1, layers))))
def test_all_layers_and_mirrored_stages_within_one(case: tuple[int, int]) -> None:
    layers, stages = case
    sizes = layer_partition(layers, stages)
    assert sum(sizes) == layers
    assert len(sizes) == stages
    assert max(sizes) - min(sizes) <= 1
    if stages % 2 == 0:
        assert all(abs(one - other) <= 1 for one, other in zip(sizes, reversed(sizes), strict=True))


@pytest.mark.parametrize(("layers", "stages"), [(0, 1), (3, 0), (3, 4), (3, -1)])
def test_impossible_numbers(layers: int, stages: int) -> None:
    with pytest.raises(ValueError, match="num_stages: is"):
        layer_partition(layers, stages)
    with pytest.raises(ValueError, match="num_stages: is"):
        layer_partition_by_memory([LayerMemory(1, 1)] * layers, stages)


@pytest.mark.parametrize(("layers", "stages"), TABLE)
def test_equal_layers_give_the_table(layers: int, stages: int) -> None:
    assert layer_partition_by_memory([LayerMemory(100, 7)] * layers, stages) == TABLE[layers, stages]


def test_a_heavy_layer_stands_apart() -> None:
    layers = [LayerMemory(10, 0)] * 5 + [LayerMemory(50, 0)]
    assert layer_partition(6, 2) == [3, 3]
    assert layer_partition_by_memory(layers, 2) == [5, 1]


def test_micro_batches_in_flight_weigh() -> None:
    """Of four equal layers the stage that keeps more micro-batches takes fewer."""
    layers = [LayerMemory(0, 10)] * 4
    assert layer_partition_by_memory(layers, 2) == [2, 2]
    assert layer_partition_by_memory(layers, 2, in_flight=[3, 1]) == [1, 3]


def test_embedding_and_head_weigh() -> None:
    layers = [LayerMemory(10, 0)] * 6
    assert layer_partition_by_memory(layers, 3) == [2, 2, 2]
    assert layer_partition_by_memory(layers, 3, edge_bytes=(20, 0)) == [1, 3, 2]
    assert layer_partition_by_memory(layers, 3, edge_bytes=(30, 30)) == [1, 4, 1]


def test_the_limit() -> None:
    layers = [LayerMemory(10, 5)] * 4
    assert layer_partition_by_memory(layers, 2, limit_bytes=30) == [2, 2]
    with pytest.raises(ValueError, match="limit_bytes: is 29, the best partition into 2 stages holds 30"):
        layer_partition_by_memory(layers, 2, limit_bytes=29)
    with pytest.raises(ValueError, match="in_flight: is"):
        layer_partition_by_memory(layers, 2, in_flight=[1])


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[LayerMemory], int, list[int], tuple[int, int]]:
    layers = draw(st.lists(st.builds(LayerMemory, st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=7))
    stages = draw(st.integers(1, len(layers)))
    flight = draw(st.lists(st.integers(0, 4), min_size=stages, max_size=stages))
    return layers, stages, flight, draw(st.tuples(st.integers(0, 30), st.integers(0, 30)))


@given(problems())
def test_no_partition_is_better(problem: tuple[list[LayerMemory], int, list[int], tuple[int, int]]) -> None:
    """Against every partition there is: the fullest stage first, then the distance to the even one."""
    layers, stages, flight, edges = problem
    even = layer_partition(len(layers), stages)

    def cost(sizes: list[int]) -> tuple[int, int]:
        held, start = [], 0
        for stage, size in enumerate(sizes):
            part = layers[start : start + size]
            held.append(sum(each.weight_bytes + flight[stage] * each.activation_bytes for each in part))
            start += size
        held[0] += edges[0]
        held[-1] += edges[1]
        return max(held), sum(abs(size - share) for size, share in zip(sizes, even, strict=True))

    every = []
    for borders in combinations(range(1, len(layers)), stages - 1):
        ends = [0, *borders, len(layers)]
        every.append([end - start for start, end in pairwise(ends)])
    got = layer_partition_by_memory(layers, stages, in_flight=flight, edge_bytes=edges)
    assert got in every
    assert cost(got) == min(map(cost, every))
