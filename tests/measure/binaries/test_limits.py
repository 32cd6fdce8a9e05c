"""What a target has room for, and the words where it has not."""

from __future__ import annotations

import pytest

from perfguard.measure.binaries.kernel_facts import Facts, _amd_warps, _nvidia_warps, unfit
from perfguard.measure.binaries.targets import KB, TARGETS, target_of
from perfguard.model.errors import UsageError


@pytest.mark.parametrize(
    ("target", "facts", "words"),
    [
        ("gfx942", Facts(threads=256, shared_bytes=64 * KB, resident_warps=4), ""),
        ("gfx942", Facts(threads=256, shared_bytes=96 * KB), "needs 96 KB, gfx942 has 64 KB"),
        ("sm_90", Facts(threads=128, shared_bytes=227 * KB, resident_warps=4), ""),
        ("sm_90", Facts(threads=128, shared_bytes=256 * KB), "needs 256 KB, sm_90 has 227 KB"),
        ("gfx950", Facts(threads=2048), "2,048 threads, limit 1,024"),
        ("sm_90", Facts(threads=1024, registers=128), "needs 128 registers in each of 1,024 threads, sm_90 has 65,536"),
        ("sm_90", Facts(error="does not compile: why"), "does not compile: why"),
    ],
)
def test_what_does_not_fit_is_told_with_both_figures(target: str, facts: Facts, words: str) -> None:
    assert unfit(facts, target_of(target)) == words


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared", "warps"),
    [
        # As CUDA's occupancy calculator: 65536 registers in portions of 256 a warp, and 1 KB a block for the system.
        ("sm_90", 128, 32, 0, 64),
        ("sm_90", 128, 168, 0, 12),
        ("sm_90", 256, 255, 0, 8),
        ("sm_90", 128, 32, 113 * KB, 8),
        ("sm_90", 128, 32, 114 * KB, 4),
        ("sm_89", 128, 32, 0, 48),
        ("sm_90", 1024, 128, 0, None),
        ("sm_80", 32, 16, 0, 32),  # 32 blocks of one warp
    ],
)
def test_resident_warps_of_nvidia(target: str, threads: int, registers: int, shared: int, warps: int | None) -> None:
    assert _nvidia_warps(target_of(target), threads, registers, shared) == warps


@pytest.mark.parametrize(
    ("threads", "occupancy", "shared", "warps"),
    [(256, 8, 0, 32), (256, 2, 0, 8), (256, 8, 40 * KB, 4), (512, 1, 0, None)],
)
def test_resident_waves_of_amd(threads: int, occupancy: int, shared: int, warps: int | None) -> None:
    assert _amd_warps(target_of("gfx942"), threads, occupancy, shared) == warps


def test_an_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"targets: 'sm_70' is not known; known: sm_80, .*gfx950"):
        target_of("sm_70")


def test_the_table_agrees_with_the_kernels_own() -> None:
    """Two tables, as the tool imports nothing of the suite: the figures are the same chips'."""
    from kernels.hardware import HARDWARE

    for name in TARGETS.keys() & HARDWARE.keys():
        ours, theirs = TARGETS[name], HARDWARE[name]
        assert (ours.block_shared_bytes, ours.warp_width) == (theirs.shared_memory_bytes, theirs.wave_width), name
