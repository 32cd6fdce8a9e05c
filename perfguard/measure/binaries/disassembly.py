"""Counts from the text of a compiled kernel; pure functions.

From assembly: memory accesses and their width, special units, spills, the mix. From the first IR: operations that the
kernel's author requests by name, beyond arithmetic, loads and stores. No pass has run on that IR, so other tiles or
compiler schedules do not change these counts. A removed operation may mean a race, or a slowdown on another chip,
neither of which a run's numbers need to show.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

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


def read_sass(text: str) -> Code:  # noqa: C901  # one branch for each class of instructions
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


_OPERATION = re.compile(
    r'^\s*(?:%[\w:#, %]+ = )?"?(?:tt|ttg|ttng|gpu|nvvm|rocdl|amdg|amdgpu)\.(\w+)"?(.*)$', re.MULTILINE
)
_ORDERS = re.compile(r"barrier|wait|fence|commit|sleep")
_INLINE = re.compile(r"\b(?:griddepcontrol|fence|membar|mbarrier|bar|barrier|s_waitcnt|s_barrier)\b[\w.:]*")
_MODIFIER = re.compile(r"(?:cache_modifier|cacheModifier) = (\w+)")
_EVICTION = re.compile(r"(?:eviction_policy|evictionPolicy) = (\w+)")
_LOCATION = re.compile(r"^#loc.*$|\s*loc\([^\n]*\)$", re.MULTILINE)
_UNSAID = ("none", "evict_normal", "1")  # default values of both attributes, by name and by number


def asked(assembly: Mapping[str, Any]) -> str:
    """`2 atomic_rmw fadd acq_rel gpu, 1 load volatile, 3 wait_barrier`; "" if there are none.

    Args:
        assembly: the stages of a compiled kernel by name, as in Triton's `asm`.
    """
    found: Counter[str] = Counter()
    for name, rest in _OPERATION.findall(_first_stage(assembly)):
        if name.startswith("atomic"):
            words = [word.strip() for word in rest.split("%")[0].split(",")]
            found[" ".join([name, *filter(None, words)])] += 1
        elif name == "elementwise_inline_asm":
            found.update(_INLINE.findall(rest))
        elif _ORDERS.search(name):
            found[name] += 1
        elif hints := _hints(rest):
            found[f"{name} {hints}"] += 1
    return ", ".join(f"{count} {what}" for what, count in sorted(found.items()))


def written(assembly: Mapping[str, Any]) -> str:
    """Hash of the code as the author wrote it, independent of comments, names of variables and line numbers."""
    return hashlib.sha256(_LOCATION.sub("", _first_stage(assembly)).encode()).hexdigest()[:16]


def _first_stage(assembly: Mapping[str, Any]) -> str:
    return next((str(assembly[stage]) for stage in ("source", "ttir", "ttgir") if stage in assembly), "")


def _hints(attributes: str) -> str:
    said = [found[1] for pattern in (_MODIFIER, _EVICTION) if (found := pattern.search(attributes))]
    volatile = ["volatile"] if "isVolatile = true" in attributes else []
    return " ".join(volatile + [word for word in said if word not in _UNSAID])
