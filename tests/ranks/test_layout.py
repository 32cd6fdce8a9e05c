"""A layout: tensors without data from its first mesh on, and nothing left of it afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from perfguard.model.errors import UsageError
from perfguard.ranks.rank_group import layout_of
from tests.measure.collectives.stacks import call, facts, fsdp


def test_tensors_have_no_data_from_the_first_mesh_on() -> None:
    with layout_of(1024) as layout:
        assert (layout.rank, layout.ranks) == (0, 1024)
        assert type(torch.zeros(2)) is torch.Tensor
        mesh = layout.mesh({"dp": 256, "tp": 4})
        assert layout.dimensions == {"dp": 256, "tp": 4}
        assert type(torch.zeros(2)).__name__ == "FakeTensor"
        again = layout.mesh({"efsdp": 16, "ep": 64})
        assert [*(mesh.get_coordinate() or ()), *(again.get_coordinate() or ())] == [0] * 4
    assert type(torch.zeros(2)) is torch.Tensor
    assert not dist.is_initialized()


def test_a_mesh_has_as_many_ranks_as_the_layout() -> None:
    with layout_of(64) as layout, pytest.raises(UsageError, match="has 32 ranks, but the test's mark has ranks=64"):
        layout.mesh({"dp": 8, "ep": 4})


def test_a_process_with_a_group_is_no_layout() -> None:
    with layout_of(2), pytest.raises(UsageError, match="has a process group already"), layout_of(4):
        pass


def of_rank(rank: int) -> dict[str, Any]:
    with layout_of(64, rank) as layout:
        mesh = layout.mesh({"dp": 8, "tp": 8})
        module = fsdp(mesh["dp"])
        case = call(module, {"dp": 8, "tp": 8})
        found: dict[str, Any] = {**facts(case), **{f"backward {k}": v for k, v in facts(case, "backward").items()}}
        return found


def test_edge_and_inner_ranks_have_the_same_facts_one_after_another_in_one_process() -> None:
    first, last, inner = map(of_rank, (0, 63, 19))
    assert first == last == inner
    assert first["collectives"] == ["all_gather dp float32"] * 2
