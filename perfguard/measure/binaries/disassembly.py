"""Counts from assembly: memory accesses and their width, special units, spills, the mix. Pure functions of text."""

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
# AMD: `	global_load_dwordx4 v[0:3], v[0:1], off`; directives begin with a dot, comments with a semicolon.
_GCN = re.compile(r"^\s+([a-z]+_[a-z0-9_]+)(?:\s|$)", re.MULTILINE)
# `MUFU.RSQ64H` starts a square root on the upper half of a double.
_SASS_FP64 = re.compile(r"D(?:ADD|FMA|MUL|MNMX|SETP?|MMA)(?:\.|$)|\w+\.(?:\w+\.)*(?:F64|\w*64H)(?:\.|$)")
_GCN_FP64 = re.compile(r"_f64(?:_|$)")
_SASS_MATRIX = re.compile(r"(?:[HIDBQO]G?MMA|UTC[A-Z]*MMA)$")
_GCN_WIDTH = re.compile(r"_(?:(dwordx?(\d)?)|([ubis]+)(8|16|32|64|96|128)|(short|ushort|sshort)|([us]?byte))(?:_|$)")


@dataclass
class Code:
    """The counts of one kernel."""

    loads: Counter[int] = field(default_factory=Counter)  # width in bits -> instructions
    stores: Counter[int] = field(default_factory=Counter)
    local: int = 0  # instructions that access a thread's own memory
    fp64: int = 0  # instructions that compute in float64, or convert to or from it
    special: set[str] = field(default_factory=set)
    mix: Counter[str] = field(default_factory=Counter)

    def access(self, kind: str, bits: int) -> None:
        (self.loads if kind == "load" else self.stores)[bits] += 1
        self.mix[f"global {kind}"] += 1


def mean_bits(widths: Counter[int]) -> float:
    """The mean width of an access; 0 without accesses."""
    count = widths.total()
    return round(sum(bits * times for bits, times in widths.items()) / count, 1) if count else 0.0


def split_sass(text: str, sizes: Sequence[int]) -> list[str]:
    """nvdisasm's listing of concatenated kernels, split into one listing per kernel; `sizes`: of the kernels, bytes."""
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
        code.fp64 += bool(_SASS_FP64.match(opcode))
        if name in ("NOP", "BRA") and not modifiers:
            code.mix["other"] += name == "BRA"
        elif name in ("LDG", "LDGSTS", "LD"):
            code.access("load", _sass_bits(modifiers))
            if name == "LDGSTS":
                code.special.add("LDGSTS")
        elif name in ("STG", "ST"):
            code.access("store", _sass_bits(modifiers))
        elif name in ("UTMALDG", "UTMASTG", "UBLKCP", "UTMAREDG"):
            code.special.add(name)
            code.mix["bulk copy"] += 1
        elif name in ("LDL", "STL"):
            code.local += 1
            code.mix["local"] += 1
        elif _SASS_MATRIX.match(name):
            code.special.add(name)
            code.mix["matrix"] += 1
        elif name in ("LDS", "STS", "LDSM", "STSM", "ATOMS"):
            code.mix["shared"] += 1
        elif name in ("ATOM", "ATOMG", "RED", "REDG"):
            code.mix["atomic"] += 1
        elif name in ("BAR", "SYNCS", "WARPSYNC", "MEMBAR", "FENCE"):
            code.mix["barrier"] += 1
        else:
            if name == "F2FP" and {"E4M3", "E5M2"} & set(modifiers):
                code.special.add("F2FP.E4M3" if "E4M3" in modifiers else "F2FP.E5M2")
            code.mix["other"] += 1
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
        code.fp64 += bool(_GCN_FP64.search(name))
        if unit in ("global", "buffer", "flat") and operation.startswith(("load", "store")):
            code.access("load" if operation.startswith("load") else "store", _gcn_bits(name))
            if "_lds_" in name:
                code.special.add("load_lds")
        elif unit in ("global", "buffer", "flat") and operation.startswith("atomic"):
            code.mix["atomic"] += 1
        elif unit == "scratch":
            code.local += 1
            code.mix["local"] += 1
        elif name.startswith(("v_mfma", "v_smfmac", "v_wmma", "v_swmmac")):
            code.special.add(name.split("_")[1])
            code.mix["matrix"] += 1
        elif unit == "ds":
            code.mix["shared"] += 1
        elif name.startswith(("s_barrier", "s_waitcnt", "s_wait_")):
            code.mix["barrier"] += 1
        elif unit in ("v", "s"):
            if name.startswith(("v_cvt_pk_fp8", "v_cvt_pk_bf8", "v_cvt_scalef32_pk_fp8", "v_cvt_scalef32_pk_bf8")):
                code.special.add("cvt_fp8" if "fp8" in name else "cvt_bf8")
            code.mix["other"] += 1
    return code


def _gcn_bits(name: str) -> int:
    found = _GCN_WIDTH.search(name)
    if found is None:
        return 32
    dword, count, _, digits, short, byte = found.groups()
    if dword:
        return 32 * int(count or 1)
    return int(digits) if digits else 16 if short else 8 if byte else 32
