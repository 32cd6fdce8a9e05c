"""From a kernel that Triton compiled to what it asks of the chip, with the tools that Triton brings."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from perfguard.binaries.disassembly import mean_bits, read_gcn, read_sass
from perfguard.binaries.records import Facts
from perfguard.binaries.sectors import sector_bytes
from perfguard.binaries.targets import Target

_REGISTER_UNIT = 256  # registers are given to a warp of NVIDIA's in such portions


def read_facts(compiled: Any, target: Target) -> Facts:
    """What a compiled kernel is.

    Raises:
        OSError, subprocess.SubprocessError: a tool of Triton's is missing or failed.
    """
    from perfguard.hardware.fingerprints import machine_code

    metadata = compiled.metadata
    threads = metadata.num_warps * target.warp_width
    # Warps that a specialised kernel adds to those that were asked for.
    threads = max(threads, (getattr(metadata, "total_num_warps", None) or 0) * target.warp_width)
    if target.backend == "cuda":
        binary = compiled.asm["cubin"]
        usage, listing = _nvidia_tools(binary)
        code = read_sass(listing)
        registers = int(re.findall(r"REG:(\d+)", usage)[0])
        stack = int(re.findall(r"STACK:(\d+)", usage)[0])
        shared = max(metadata.shared, int(re.findall(r"SHARED:(\d+)", usage)[0]))
        spills = code.local
        warps = _nvidia_warps(target, threads, registers, shared)
    else:
        binary, text = compiled.asm["hsaco"], compiled.asm["amdgcn"]
        code = read_gcn(text)
        registers, stack = _amd(text, "vgpr_count"), _amd(text, "private_segment_fixed_size")
        spills, shared = _amd(text, "vgpr_spill_count"), metadata.shared
        occupancy = re.findall(r"^;\s*Occupancy:\s*(\d+)", text, re.MULTILINE)
        warps = _amd_warps(target, threads, int(occupancy[0]) if occupancy else 8, shared)
    # Gluon's kernels have none.
    used = sector_bytes(compiled.asm["ttir"]) if "ttir" in compiled.asm else 0.0
    return Facts(
        binary=machine_code(binary) or "",
        threads=threads,
        registers=registers,
        spills=spills,
        stack_bytes=stack,
        shared_bytes=shared,
        resident_warps=warps,
        sector_bytes=used,
        load_bits=mean_bits(code.loads),
        store_bits=mean_bits(code.stores),
        special=sorted(code.special),
        mix=dict(sorted(code.mix.items())),
    )


def _nvidia_tools(binary: bytes) -> tuple[str, str]:
    """What cuobjdump says of a cubin's resources, and its disassembly."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        lines = (
            [knobs.nvidia.cuobjdump.path, "-res-usage", file.name],
            [knobs.nvidia.nvdisasm.path, "-c", "-ndf", file.name],  # its data flow costs as much again, and is not read
        )
        usage, listing = (
            subprocess.run(line, check=True, capture_output=True, text=True, timeout=120).stdout for line in lines
        )
    return usage, listing


def _amd(text: str, name: str) -> int:
    found = re.findall(rf"\.{name}:\s+(\d+)", text)
    return int(found[0]) if found else 0


def _nvidia_warps(target: Target, threads: int, registers: int, shared: int) -> int | None:
    """Warps of as many blocks as a multiprocessor holds; None where it holds none."""
    assert target.registers is not None
    warps = -(-threads // target.warp_width)
    of_a_warp = -(-registers * target.warp_width // _REGISTER_UNIT) * _REGISTER_UNIT
    blocks = min(
        target.blocks,
        target.warps // warps,
        target.registers // max(1, of_a_warp * warps),
        target.shared_bytes // (shared + target.reserved_shared_bytes),
    )
    return blocks * warps or None


def _amd_warps(target: Target, threads: int, occupancy: int, shared: int) -> int | None:
    """The same for a compute unit: the compiler states the waves that a SIMD's registers allow; it has four."""
    warps = -(-threads // target.warp_width)
    blocks = min(target.blocks, 4 * occupancy // warps, target.shared_bytes // max(1, shared))
    return blocks * warps or None
