"""The kernels of the operators, compiled for architectures that are not here: no spills, within the chip's bounds."""

from __future__ import annotations

import pytest

from kernels.hardware import hardware_of
from tests.kernels import elsewhere
from tests.nursery import Nursery

KERNELS = {
    "silu_mul": {"_forward", "_backward"},
    "clamped_swiglu": {"_forward", "_backward"},
    "rms_norm": {"_forward", "_backward", "_sum_partial"},
    "rms_norm, heads": {"_forward", "_backward", "_sum_partial"},
    "rms_norm, wide": {"_forward", "_backward", "_sum_partial"},
    "norm and codes": {"_norm_and_quantize", "_backward", "_sum_partial"},
    "norm and codes, blocks": {"_norm_and_quantize", "_backward", "_sum_partial"},
    "norm and codes, narrow": {"_norm_and_quantize", "_backward", "_sum_partial"},
    "norm and codes, wide": {"_norm_and_quantize", "_backward", "_sum_partial"},
    "rope": {"_turn"},
    "rope, halves": {"_turn"},
    "cross_entropy": {"_kept", "_rows", "_total", "_scale"},
    "cross_entropy, all options": {"_kept", "_ratio", "_rows", "_total", "_scale"},
    "padded_index_gather": {"_fetch", "_take_slots", "_count", "_place", "_sum_lists", "_sum_parts"},
    "scatter_for_grouped_gemm": {"_fetch", "_count", "_place"},
    "indexed_bias_add": {"_forward", "_sum_groups"},
    "indexed_bias_add, narrow": {"_forward", "_sum_parts", "_sum_groups"},
}


@pytest.mark.parametrize(
    "arch", ["sm_90", "gfx942", *(pytest.param(arch, marks=pytest.mark.nightly) for arch in ("sm_100", "gfx950"))]
)
def test_compiles_without_spills(arch: str, nursery: Nursery) -> None:
    found = elsewhere.compiled(nursery, "targets", "operators", arch)
    names: dict[str, set[str]] = {}
    for one in found:
        names.setdefault(one["case"], set()).add(one["kernel"])
        spilled = ("stack_bytes",) if arch.startswith("sm_") else ("vgpr_spill_count", "private_segment_fixed_size")
        assert not any(one[name] for name in spilled), one
        most = hardware_of(arch).shared_memory_bytes
        assert most is not None
        assert one["shared_bytes"] <= most, one
    assert names == KERNELS
