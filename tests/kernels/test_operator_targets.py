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


# By day on CDNA3 those alone that reduce rows and columns over warps, which are twice as wide there.
REDUCING = ("rms_norm, wide", "cross_entropy, all options", "indexed_bias_add, narrow")


@pytest.mark.parametrize(
    ("arch", "cases"),
    [
        ("sm_90", tuple(KERNELS)),
        ("gfx942", REDUCING),
        *(pytest.param(arch, tuple(KERNELS), marks=pytest.mark.nightly) for arch in ("gfx942", "sm_100", "gfx950")),
    ],
    ids=lambda given: given if isinstance(given, str) else f"{len(given)} calls",
)
def test_compiles_without_spills(arch: str, cases: tuple[str, ...], nursery: Nursery) -> None:
    found = elsewhere.compiled(nursery, "targets", "operators", arch, *cases)
    names: dict[str, set[str]] = {}
    for one in found:
        names.setdefault(one["case"], set()).add(one["kernel"])
        spilled = ("stack_bytes",) if arch.startswith("sm_") else ("vgpr_spill_count", "private_segment_fixed_size")
        assert not any(one[name] for name in spilled), one
        most = hardware_of(arch).shared_memory_bytes
        assert most is not None
        assert one["shared_bytes"] <= most, one
    assert names == {case: KERNELS[case] for case in cases}
