"""Names of groups by the dimensions of a mesh."""

from __future__ import annotations

import pytest

from perfguard.model.mesh import coordinates, described, dimension_of

MESH = {"dp": 2, "ep": 3, "tp": 2}


def test_ranks_are_placed_in_row_major_order() -> None:
    assert [coordinates(rank, MESH) for rank in (0, 1, 2, 6, 11)] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 2, 1)
    ]  # fmt: skip
    assert described(MESH) == "dp 2 x ep 3 x tp 2"


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([0, 6], "dp"),
        ([5, 11], "dp"),
        ([1, 3, 5], "ep"),
        ([0, 1], "tp"),
        (list(range(12)), "dp+ep+tp"),
        ([0, 2, 4, 6, 8, 10], "dp+ep"),
        ([0, 2], "part of ep"),
        ([0, 3], "part of ep+tp"),
        ([4], "one rank"),
        ([0, 12], "2 ranks"),
    ],
)
def test_a_group_is_named_by_the_dimensions_along_which_its_ranks_differ(ranks: list[int], name: str) -> None:
    assert dimension_of(ranks, MESH) == name


def test_a_group_without_a_mesh_is_a_number_of_ranks() -> None:
    assert dimension_of([0, 1], {}) == "2 ranks"
