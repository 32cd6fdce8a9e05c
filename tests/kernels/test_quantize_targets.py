"""Quantisers compiled for chips that are not here: what they ask of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.fp8.configs import PanelsConfig, ring_candidates
from tests.kernels import elsewhere
from tests.kernels.quantizers import READ_ONCE
from tests.nursery import Nursery

SHORT = "transpose_3d_atomic short"  # a weight that shared memory holds whole, on Hopper
RING = "colwise_per_group"  # tokens that pass through a ring there


@pytest.fixture(scope="module")
def compiled(nursery: Nursery) -> list[dict[str, Any]]:
    """In a process whose kernels are not interpreted."""
    names = [*(quantizer.name for quantizer in READ_ONCE), SHORT, RING]
    return elsewhere.compiled(nursery, "quantize_targets", "sm_90", "gfx942", *names)


def test_compiles_for_hopper(compiled: list[dict[str, Any]]) -> None:
    """Four programs of 128 threads share the registers of an SM. Triton 3.9 spills some of tokens', 3.6 nothing."""
    found = {one["kernel"]: one for one in compiled if one["arch"] == "sm_90" and one["kernel"] not in (SHORT, RING)}
    assert set(found) == {quantizer.name for quantizer in READ_ONCE}
    for one in found.values():
        assert one["registers"] <= 128, one
        assert 4 * one["shared_bytes"] <= 227 << 10, one
    assert found["colwise_transpose_3d"]["stack_bytes"] == 0, found


def test_a_short_weight_is_held_in_shared_memory_on_hopper(compiled: list[dict[str, Any]]) -> None:
    """As much of it as the table says, and nothing is spilled."""
    (one,) = (one for one in compiled if one["arch"] == "sm_90" and one["kernel"] == SHORT)
    assert one["shared_bytes"] == PanelsConfig().shared_bytes(1408)
    assert one["stack_bytes"] == 0
    assert one["async_loads"] > 0


def test_tokens_pass_through_a_ring_on_hopper(compiled: list[dict[str, Any]]) -> None:
    """A fill that needs next to nothing, and a kernel that takes an SM for itself and spills nothing."""
    fill, one = sorted((one for one in compiled if one["kernel"] == RING and one["arch"] == "sm_90"), key=_shared)
    assert fill["shared_bytes"] == fill["stack_bytes"] == 0
    assert (config := ring_candidates("sm_90", torch.float8_e4m3fn, jagged=True)[0])
    assert config.slots * config.rows * config.width * 2 < one["shared_bytes"] <= 227 << 10
    assert one["stack_bytes"] == 0, one
    assert one["async_loads"] > 0


def _shared(one: dict[str, Any]) -> int:
    return int(one["shared_bytes"])


def test_compiles_for_cdna3(compiled: list[dict[str, Any]]) -> None:
    found = [one for one in compiled if one["arch"] == "gfx942"]
    assert len(found) == len(READ_ONCE) + 2
    for one in found:
        assert one["vgpr_spill_count"] == one["private_segment_fixed_size"] == 0, one
        assert one["shared_bytes"] <= 64 << 10, one
        assert one["wide_loads"] > 0, one
