"""Quantisers compiled for chips that are not here: what they ask of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.fp8.configs import PanelsConfig
from tests.kernels.paths import VARIABLE
from tests.kernels.quantizers import READ_ONCE

SHORT = "transpose_3d_atomic short"  # a weight that shared memory holds whole, on Hopper


@pytest.fixture(scope="module")
def compiled() -> list[dict[str, Any]]:
    """In a process whose kernels are not interpreted."""
    names = [*(quantizer.name for quantizer in READ_ONCE), SHORT]
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.quantize_targets", "sm_90", "gfx942", *names]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2], env=environment
    ).stdout
    return [json.loads(line) for line in output.splitlines()]


def test_compiles_for_hopper(compiled: list[dict[str, Any]]) -> None:
    """Four programs of 128 threads share the registers of an SM. Triton 3.9 spills some of tokens', 3.6 nothing."""
    found = {one["kernel"]: one for one in compiled if one["arch"] == "sm_90" and one["kernel"] != SHORT}
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


def test_compiles_for_cdna3(compiled: list[dict[str, Any]]) -> None:
    found = [one for one in compiled if one["arch"] == "gfx942"]
    assert len(found) == len(READ_ONCE) + 1
    for one in found:
        assert one["vgpr_spill_count"] == one["private_segment_fixed_size"] == 0, one
        assert one["shared_bytes"] <= 64 << 10, one
        assert one["wide_loads"] > 0, one
