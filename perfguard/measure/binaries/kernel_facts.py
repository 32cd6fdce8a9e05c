"""Facts of a kernel that Triton compiled, read with the tools that Triton ships."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfguard._compat.triton_internals import CUOBJDUMP, NVDISASM
from perfguard.measure.binaries.asked_for import asked, written
from perfguard.measure.binaries.disassembly import Code, mean_bits, read_gcn, read_sass, split_sass
from perfguard.measure.binaries.launch_records import Built, Facts
from perfguard.measure.binaries.sectors import sector_bytes
from perfguard.measure.binaries.targets import Target

_REGISTER_UNIT = 256  # granularity of a warp's registers on NVIDIA


def read_facts(compiled: Any, target: Target) -> Built:
    """The facts of a compiled kernel, without the counts of NVIDIA's instructions, which `disassembled` adds.

    Raises:
        OSError, subprocess.SubprocessError: a tool of Triton's is missing or failed.
    """
    from perfguard.measure.devices.fingerprints import instructions, machine_code

    metadata = compiled.metadata
    threads = metadata.num_warps * target.warp_width
    # A warp-specialised kernel adds warps to the requested ones.
    threads = max(threads, (getattr(metadata, "total_num_warps", None) or 0) * target.warp_width)
    # Gluon's kernels have no ttir.
    used = sector_bytes(compiled.asm["ttir"]) if "ttir" in compiled.asm else 0.0
    if target.backend == "cuda":
        binary = compiled.asm["cubin"]
        usage = _resources(binary)
        registers, stack, shared = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK", "SHARED"))
        shared = max(metadata.shared, shared)
        facts = Facts(
            binary=machine_code(binary) or "",
            threads=threads,
            registers=registers,
            stack_bytes=stack,
            shared_bytes=shared,
            resident_warps=_nvidia_warps(target, threads, registers, shared),
            sector_bytes=used,
            asked=asked(compiled.asm),
            written=written(compiled.asm),
        )
        return Built(facts, instructions(binary))
    binary, text = compiled.asm["hsaco"], compiled.asm["amdgcn"]
    occupancy = re.findall(r"^;\s*Occupancy:\s*(\d+)", text, re.MULTILINE)
    facts = Facts(
        binary=machine_code(binary) or "",
        threads=threads,
        registers=_amd(text, "vgpr_count"),
        spills=_amd(text, "vgpr_spill_count"),
        stack_bytes=_amd(text, "private_segment_fixed_size"),
        shared_bytes=metadata.shared,
        resident_warps=_amd_warps(target, threads, int(occupancy[0]) if occupancy else 8, metadata.shared),
        sector_bytes=used,
        asked=asked(compiled.asm),
        written=written(compiled.asm),
    )
    return Built(_counted(facts, read_gcn(text)))


def disassembled(target: Target, built: Sequence[Built]) -> list[Facts]:
    """The facts with the instructions of NVIDIA's kernels counted.

    One call of the disassembler reads all: it takes a third of a second to start and milliseconds per kernel.

    Raises:
        OSError, subprocess.SubprocessError: the disassembler is missing, or failed.
    """
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(b"".join(each.code for each in built))
        line = [NVDISASM.get().path, "--binary", _nvdisasm_name(target), file.name]
        listing = subprocess.run(line, check=True, capture_output=True, text=True, timeout=120).stdout
    listings = split_sass(listing, [len(each.code) for each in built])
    codes = map(read_sass, listings)
    return [
        _counted(msgspec.structs.replace(each.facts, spills=code.local), code)
        for each, code in zip(built, codes, strict=True)
    ]


def _counted(facts: Facts, code: Code) -> Facts:
    return msgspec.structs.replace(
        facts,
        load_bits=mean_bits(code.loads),
        store_bits=mean_bits(code.stores),
        fp64=code.fp64,
        special=sorted(code.special),
        mix=dict(sorted(code.mix.items())),
    )


def _resources(binary: bytes) -> str:
    """cuobjdump's report of the resources that a cubin needs."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        line = [CUOBJDUMP.get().path, "-res-usage", file.name]
        return subprocess.run(line, check=True, capture_output=True, text=True, timeout=120).stdout


def _nvdisasm_name(target: Target) -> str:
    """`sm_90` -> `SM90a`: from Hopper on, the suffix includes architecture-specific instructions."""
    digits = target.name.removeprefix("sm_")
    return f"SM{digits}{'a' if target.capability >= (9, 0) else ''}"


def _amd(text: str, name: str) -> int:
    found = re.findall(rf"\.{name}:\s+(\d+)", text)
    return int(found[0]) if found else 0


def _nvidia_warps(target: Target, threads: int, registers: int, shared: int) -> int | None:
    """Warps of all blocks that fit on a multiprocessor; None if none fits."""
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
    """The same for a compute unit of four SIMDs; the compiler states the waves that a SIMD's registers allow."""
    warps = -(-threads // target.warp_width)
    blocks = min(target.blocks, 4 * occupancy // warps, target.shared_bytes // max(1, shared))
    return blocks * warps or None
