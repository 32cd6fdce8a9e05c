"""Pure functions that count in a kernel's assembly: memory accesses and their width, special units, spills,
instructions."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

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
