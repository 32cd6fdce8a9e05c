"""Quantisers compiled for chips that are not here: what they ask of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.fp8.configs import PanelsConfig, ring_candidates
from kernels.hardware import hardware_of
from tests.kernels import elsewhere
from tests.nursery import Nursery

ROWS = "rowwise"
SHORT = "transpose_3d_atomic short"  # a weight that shared memory holds whole, on Hopper
RING = "colwise_per_group"  # tokens that pass through a ring there
MANY = "256 groups"  # the same, padded: each warp holds a table of all groups
FEWER = "64 groups"  # of few groups their ends too


@pytest.fixture(scope="module")
def compiled(nursery: Nursery) -> list[dict[str, Any]]:
    """In a process whose kernels are not interpreted."""
    return elsewhere.compiled(nursery, "targets", "quantisers", "sm_90", "gfx942", ROWS, SHORT, RING, MANY)


def test_a_row_stays_in_registers_on_hopper(compiled: list[dict[str, Any]]) -> None:
    (one,) = (one for one in compiled if one["arch"] == "sm_90" and one["case"] == ROWS)
    assert one["stack_bytes"] == one["shared_bytes"] == 0, one


def test_a_short_weight_is_held_in_shared_memory_on_hopper(compiled: list[dict[str, Any]]) -> None:
    """As much of it as the table says, and nothing is spilled."""
    (one,) = (one for one in compiled if one["arch"] == "sm_90" and one["case"] == SHORT)
    assert one["shared_bytes"] == PanelsConfig().shared_bytes(1408)
    assert one["stack_bytes"] == 0
    assert one["async_loads"] > 0


def test_tokens_pass_through_a_ring_on_hopper(compiled: list[dict[str, Any]]) -> None:
    """A fill that needs next to nothing, and a kernel that takes an SM for itself and spills nothing."""
    fill, one = sorted((one for one in compiled if one["case"] == RING and one["arch"] == "sm_90"), key=_shared)
    assert fill["shared_bytes"] == fill["stack_bytes"] == 0
    assert (config := ring_candidates("sm_90", torch.float8_e4m3fn, rows=None)[0])
    assert config.slots * config.rows * config.width * 2 < one["shared_bytes"] <= 227 << 10
    assert one["stack_bytes"] == 0, one
    assert one["async_loads"] > 0


@pytest.mark.parametrize("many", [MANY, pytest.param(FEWER, marks=pytest.mark.nightly)])
def test_tables_of_many_groups_stay_in_registers_on_hopper(
    many: str, compiled: list[dict[str, Any]], nursery: Nursery
) -> None:
    found = compiled if many == MANY else elsewhere.compiled(nursery, "targets", "quantisers", "sm_90", many)
    fill, one = sorted((one for one in found if one["case"] == many and one["arch"] == "sm_90"), key=_shared)
    assert one["shared_bytes"] > fill["shared_bytes"]
    assert one["stack_bytes"] == 0, one


def _shared(one: dict[str, Any]) -> int:
    return int(one["shared_bytes"])


BLOCKS = "1x128", "1x128 of columns", "128x128", "128x128 of columns", "mx", "mx of columns, up"


@pytest.mark.parametrize(
    "arch", ["sm_90", *(pytest.param(arch, marks=pytest.mark.nightly) for arch in ("sm_100", "gfx942", "gfx950"))]
)
def test_blocks_stay_in_registers(arch: str, nursery: Nursery) -> None:
    """Every configuration; what turns a tile or reduces it over warps takes shared memory, within the chip's bounds."""
    found = elsewhere.compiled(nursery, "targets", "quantisers", arch, *BLOCKS, "all")
    assert {one["case"] for one in found} == set(BLOCKS)
    most = hardware_of(arch).shared_memory_bytes
    assert most is not None
    spilled = ("stack_bytes",) if arch.startswith("sm_") else ("vgpr_spill_count", "private_segment_fixed_size")
    for one in found:
        assert not any(one[name] for name in spilled), one
        assert one["shared_bytes"] <= most, one
        assert one.get("wide_loads") != 0, one  # whichever axis is contiguous is read 16 bytes at a time


def test_compiles_for_cdna3(compiled: list[dict[str, Any]]) -> None:
    found = [one for one in compiled if one["arch"] == "gfx942"]
    assert {one["case"] for one in found} == {ROWS, SHORT, RING, MANY}
    for one in found:
        assert one["vgpr_spill_count"] == one["private_segment_fixed_size"] == 0, one
        assert one["shared_bytes"] <= 64 << 10, one
        assert one["wide_loads"] > 0, one


def test_chips_of_several_dies_see_what_others_publish(compiled: list[dict[str, Any]]) -> None:
    """Each die of gfx942 has an L2 of its own: what is polled, and what is published, has to pass them."""
    (one,) = (one for one in compiled if one["arch"] == "gfx942" and one["case"] == RING)
    assert one["coherent_loads"] == 2, "the first look and the ones in the loop"
    assert one["coherent_stores"] == 1, one
