"""The kernels of the operators, compiled for architectures that are not here: no spills, within the chip's bounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.hardware import hardware_of
from tests.kernels.paths import VARIABLE

KERNELS = {
    "silu_mul": {"_forward", "_backward"},
    "clamped_swiglu": {"_forward", "_backward"},
    "cross_entropy": {"_kept", "_rows", "_total", "_scale"},
    "padded_index_gather": {"_fetch", "_take_slots", "_count", "_place", "_sum_lists", "_sum_parts"},
    "scatter_for_grouped_gemm": {"_fetch", "_count", "_place"},
    "indexed_bias_add": {"_forward", "_sum_groups"},
    "indexed_bias_add, narrow": {"_forward", "_sum_parts", "_sum_groups"},
}


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_compiles_without_spills(arch: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.operator_targets", arch]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2], env=environment
    ).stdout
    found: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines()]
    names: dict[str, set[str]] = {}
    for one in found:
        names.setdefault(one["operator"], set()).add(one["kernel"])
        spilled = ("stack_bytes",) if arch == "sm_90" else ("vgpr_spill_count", "private_segment_fixed_size")
        assert not any(one[name] for name in spilled), one
        most = hardware_of(arch).shared_memory_bytes
        assert most is not None
        assert one["shared_bytes"] <= most, one
    assert names == KERNELS
