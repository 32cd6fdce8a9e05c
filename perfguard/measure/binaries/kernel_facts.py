"""Facts of a compiled Triton kernel: its resources, from the tools that Triton ships; counts in its assembly (memory
accesses and their width, special units, spills, instructions); the loaded sections of its binary."""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
import subprocess
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from perfguard._compat.triton_internals import CUOBJDUMP, NVDISASM
from perfguard.measure.binaries.sectors import sector_bytes
from perfguard.measure.binaries.targets import Target

_REGISTER_UNIT = 256  # A warp's registers are allocated in units of this size on NVIDIA.

# Types and flags of ELF sections, by the numbers of the specification.
_NO_BITS, _ALLOCATED, _EXECUTABLE = 8, 2, 4

# NVIDIA: `        /*0a50*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;`
_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_SASS_ADDRESS = re.compile(r"\s*/\*([0-9a-f]{4,})\*/")
# AMD: `	global_load_dwordx4 v[0:3], v[0:1], off`. Directives begin with a dot, comments with a semicolon.
_GCN = re.compile(r"^\s+([a-z]+_[a-z0-9_]+)(?:\s|$)", re.MULTILINE)
# `MUFU.RSQ64H` starts a square root on the upper half of a double.
_SASS_FP64 = re.compile(r"D(?:ADD|FMA|MUL|MNMX|SETP?|MMA)(?:\.|$)|\w+\.(?:\w+\.)*(?:F64|\w*64H)(?:\.|$)")
_GCN_FP64 = re.compile(r"_f64(?:_|$)")
_SASS_COPIES = ("LDGSTS", "UTMALDG", "UTMASTG", "UBLKCP", "UTMAREDG")
_SASS_MATRIX = re.compile(r"(?:[HIDBQO]G?MMA|UTC[A-Z]*MMA)$")
_GCN_MEMORY = ("global", "buffer", "flat")
_GCN_UNITS = (*_GCN_MEMORY, "scratch", "ds", "v", "s")
_GCN_WIDTH = re.compile(r"_(?:(dwordx?(\d)?)|([ubis]+)(8|16|32|64|96|128)|(short|ushort|sshort)|([us]?byte))(?:_|$)")


class Facts(Struct, frozen=True, omit_defaults=True):
    """The resources and contents of a compiled kernel. Instructions are counted in the code, not as executed.

    Attributes:
        error: the compiler's last output if there is no binary; nothing else is set then.
        passing: whether the error is of this machine and not of the kernel, so that another try may succeed.
        binary: hash of the machine code.
        registers: registers per thread (AMD: vector registers, including accumulation registers).
        spills: number of instructions that move spilled or local values (AMD: number of spilled vector registers).
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
    shared_bytes: int = 0
    resident_warps: int | None = None
    load_bits: float = 0.0
    store_bits: float = 0.0
    sector_bytes: float = 0.0
    fp64: int = 0
    special: list[str] = []
    instructions: int = 0


class Built(Struct, frozen=True, omit_defaults=True):
    """The result of one compilation."""

    facts: Facts
    code: bytes = b""  # the machine code whose instructions are not yet counted
    kept: bool = True  # whether a cache may keep it

    @classmethod
    def failed(cls, error: str, *, passing: bool, kept: bool) -> Built:
        """The result of a compilation without a binary."""
        return cls(Facts(error=error, passing=passing), kept=kept)


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
        registers, shared = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "SHARED"))
        shared = max(metadata.shared, shared)
        facts = msgspec.structs.replace(
            facts,
            registers=registers,
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


@dataclass
class Code:
    """The counts of one kernel."""

    loads: Counter[int] = field(default_factory=Counter)  # width in bits -> number of instructions
    stores: Counter[int] = field(default_factory=Counter)
    local: int = 0  # number of instructions that access a thread's own memory
    fp64: int = 0  # number of instructions that compute in float64, or convert to or from it
    special: set[str] = field(default_factory=set)
    instructions: int = 0  # number of instructions without padding


def mean_bits(widths: Counter[int]) -> float:
    """The mean width of an access; 0 without accesses."""
    count = widths.total()
    return round(sum(bits * times for bits, times in widths.items()) / count, 1) if count else 0.0


def split_sass(text: str, sizes: Sequence[int]) -> list[str]:
    """Split nvdisasm's listing of concatenated kernels into one listing per kernel; `sizes` are the kernels' bytes."""
    ends = list(accumulate(sizes))
    parts: list[list[str]] = [[] for _ in sizes]
    for line in text.splitlines():
        address = _SASS_ADDRESS.match(line)
        if address:
            parts[bisect_right(ends, int(address[1], 16))].append(line)
    return ["\n".join(part) for part in parts]


def read_sass(text: str) -> Code:
    """The counts from nvdisasm's listing of one kernel."""
    code = Code()
    for opcode in _SASS.findall(text):
        name, *modifiers = opcode.split(".")
        code.instructions += opcode != "NOP"
        code.fp64 += bool(_SASS_FP64.match(opcode))
        code.local += name in ("LDL", "STL")
        if name in ("LDG", "LDGSTS", "LD"):
            code.loads[_sass_bits(modifiers)] += 1
        elif name in ("STG", "ST"):
            code.stores[_sass_bits(modifiers)] += 1
        if name in _SASS_COPIES or _SASS_MATRIX.match(name):
            code.special.add(name)
        elif name == "F2FP" and {"E4M3", "E5M2"} & set(modifiers):
            code.special.add("F2FP.E4M3" if "E4M3" in modifiers else "F2FP.E5M2")
    return code


def _sass_bits(modifiers: list[str]) -> int:
    for modifier in modifiers:
        digits = modifier.lstrip("US")
        if digits in ("8", "16", "64", "128", "256"):
            return int(digits)
    return 32


def read_gcn(text: str) -> Code:
    """The counts from LLVM's assembly of one AMD kernel."""
    code = Code()
    for name in _GCN.findall(text):
        unit, _, operation = name.partition("_")
        code.instructions += unit in _GCN_UNITS
        code.fp64 += bool(_GCN_FP64.search(name))
        code.local += unit == "scratch"
        if unit in _GCN_MEMORY and operation.startswith(("load", "store")):
            widths = code.loads if operation.startswith("load") else code.stores
            widths[_gcn_bits(name)] += 1
            if "_lds_" in name:
                code.special.add("load_lds")
        elif name.startswith(("v_mfma", "v_smfmac", "v_wmma", "v_swmmac")):
            code.special.add(name.split("_")[1])
        elif name.startswith(("v_cvt_pk_fp8", "v_cvt_pk_bf8", "v_cvt_scalef32_pk_fp8", "v_cvt_scalef32_pk_bf8")):
            code.special.add("cvt_fp8" if "fp8" in name else "cvt_bf8")
    return code


def _gcn_bits(name: str) -> int:
    match = _GCN_WIDTH.search(name)
    if match is None:
        return 32
    dword, count, _, digits, short, byte = match.groups()
    if dword:
        return 32 * int(count or 1)
    return int(digits) if digits else 16 if short else 8 if byte else 32


def machine_code(binary: bytes) -> str | None:
    """Hash of the loaded sections of an ELF binary (cubin, hsaco); None for other formats.

    Other sections hold line numbers, paths and compiler comments, which do not affect speed. The exception is NVIDIA's
    `.nv.info` with registers and stack, which is not loaded but is part of the hash.
    """
    loaded = sections(binary)
    if not loaded:
        return None
    digest = hashlib.sha256()
    for section in loaded:
        if section.flags & _ALLOCATED or section.name.startswith(b".nv.info"):
            digest.update(struct.pack("<QQ", section.flags, section.size) + binary[section.start : section.end])
    return digest.hexdigest()[:16]


def instructions(binary: bytes) -> bytes:
    """The concatenated executable sections of an ELF binary; empty for other formats."""
    return b"".join(binary[section.start : section.end] for section in sections(binary) if section.flags & _EXECUTABLE)


@dataclass(frozen=True)
class Section:
    """A section of an ELF file. A section without bits takes no space in the file."""

    name: bytes
    kind: int
    flags: int
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + (0 if self.kind == _NO_BITS else self.size)


def sections(binary: bytes | mmap.mmap) -> list[Section]:
    """The sections of a 64-bit little-endian ELF file; empty for any other file."""
    if binary[:6] != b"\x7fELF\x02\x01":
        return []
    try:
        (start,) = struct.unpack_from("<Q", binary, 0x28)
        step, count, names_index = struct.unpack_from("<HHH", binary, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", binary, start + index * step) for index in range(count)]
        names = headers[names_index][4]
        return [
            Section(binary[names + name : binary.find(b"\0", names + name)], kind, flags, offset, size)
            for name, kind, flags, _, offset, size in headers
        ]
    except (struct.error, IndexError):  # The file is cut short.
        return []
