"""Facts of a compiled Triton kernel, read with the tools that Triton ships."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from perfguard._compat.triton_internals import CUOBJDUMP, NVDISASM
from perfguard.measure.binaries.disassembly import Code, mean_bits, read_gcn, read_sass, split_sass
from perfguard.measure.binaries.sectors import sector_bytes
from perfguard.measure.binaries.targets import Target

_REGISTER_UNIT = 256  # A warp's registers are allocated in units of this size on NVIDIA.


class Facts(Struct, frozen=True, omit_defaults=True):
    """The resources and contents of a compiled kernel. Instructions are counted in the code, not as executed.

    Attributes:
        error: the compiler's last output if there is no binary; nothing else is set then.
        passing: whether the error is of this machine and not of the kernel, so that another try may succeed.
        binary: hash of the machine code.
        registers: registers per thread (AMD: vector registers, including accumulation registers).
        spills: number of instructions that move spilled or local values (AMD: number of spilled vector registers).
        stack_bytes: memory per thread for spilled registers and local arrays.
        shared_bytes: shared memory per block.
        resident_warps: most warps on a processor; None if a block does not fit.
        load_bits, store_bits: the mean width of a thread's accesses to global memory; 0 without accesses.
        sector_bytes: the mean number of bytes that tiles use of each 32-byte sector they touch; 0 if unknown.
        fp64: number of instructions that compute in float64, or convert to or from it.
        special: instructions with their own units: matrices, conversions to fp8, copy engines.
        instructions: number of all instructions.
    """

    error: str = ""
    passing: bool = False
    binary: str = ""
    threads: int = 0
    registers: int = 0
    spills: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    resident_warps: int | None = None
    load_bits: float = 0.0
    store_bits: float = 0.0
    sector_bytes: float = 0.0
    fp64: int = 0
    special: list[str] = []
    instructions: int = 0


class Built(Struct, frozen=True, omit_defaults=True):
    """The result of one compilation.

    Attributes:
        code: the machine code whose instructions are not yet counted.
        kept: whether a cache may keep it.
    """

    facts: Facts
    code: bytes = b""
    kept: bool = True


def unfit(facts: Facts, target: Target) -> str:
    """The reason why a block cannot run on the target, e.g. `needs 96 KB, gfx942 has 64 KB`; empty if it can. Compilers
    do not check this: a block that fits on no processor still compiles."""
    if facts.error:
        return facts.error
    if facts.threads > target.block_threads:
        return f"{facts.threads:,} threads, limit {target.block_threads:,}"
    if facts.shared_bytes > target.block_shared_bytes:
        needs, has = facts.shared_bytes / 1024, target.block_shared_bytes / 1024
        return f"needs {needs:.4g} KB, {target.name} has {has:.4g} KB"
    if facts.resident_warps is None:
        return (
            f"needs {facts.registers} registers in each of {facts.threads:,} threads, "
            f"{target.name} has {target.registers or 0:,}"
        )
    return ""


def read_facts(compiled: Any, target: Target) -> Built:
    """The facts of a compiled kernel, without the counts of NVIDIA's instructions, which `disassembled` adds.

    Raises:
        OSError, subprocess.SubprocessError: one of Triton's tools is missing or failed.
    """
    from perfguard.measure.devices.fingerprints import instructions, machine_code

    metadata, assembly = compiled.metadata, compiled.asm
    threads = metadata.num_warps * target.warp_width
    # A warp-specialised kernel adds warps to the requested ones.
    threads = max(threads, (getattr(metadata, "total_num_warps", None) or 0) * target.warp_width)
    binary = assembly["cubin" if target.backend == "cuda" else "hsaco"]
    facts = Facts(
        binary=machine_code(binary) or "",
        threads=threads,
        sector_bytes=sector_bytes(assembly["ttir"]) if "ttir" in assembly else 0.0,  # Gluon's kernels have no ttir.
    )
    if target.backend == "cuda":
        usage = _resources(binary)
        registers, stack, shared = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "STACK", "SHARED"))
        shared = max(metadata.shared, shared)
        facts = msgspec.structs.replace(
            facts,
            registers=registers,
            stack_bytes=stack,
            shared_bytes=shared,
            resident_warps=_nvidia_warps(target, threads, registers, shared),
        )
        return Built(facts, instructions(binary))
    text = assembly["amdgcn"]
    occupancy = re.findall(r"^;\s*Occupancy:\s*(\d+)", text, re.MULTILINE)
    facts = msgspec.structs.replace(
        facts,
        registers=_amd(text, "vgpr_count"),
        spills=_amd(text, "vgpr_spill_count"),
        stack_bytes=_amd(text, "private_segment_fixed_size"),
        shared_bytes=metadata.shared,
        resident_warps=_amd_warps(target, threads, int(occupancy[0]) if occupancy else 8, metadata.shared),
    )
    return Built(_counted(facts, read_gcn(text)))


def disassembled(target: Target, built: Sequence[Built]) -> list[Facts]:
    """The facts with the instructions of NVIDIA's kernels counted.

    One call of the disassembler reads all kernels, because it takes a third of a second to start.

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
        instructions=code.instructions,
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
    numbers = re.findall(rf"\.{name}:\s+(\d+)", text)
    return int(numbers[0]) if numbers else 0


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
    """Warps of all blocks that fit on a compute unit of four SIMDs; `occupancy` is the compiler's limit per SIMD."""
    warps = -(-threads // target.warp_width)
    blocks = min(target.blocks, 4 * occupancy // warps, target.shared_bytes // max(1, shared))
    return blocks * warps or None
