"""What the kernels have to know of a chip: one row an architecture, read at call time.

Kernels and launchers ask this table; nothing in them asks for a vendor. A row without a figure for
something holds None: it is not known, and nobody guesses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

E4M3FN = torch.float8_e4m3fn
E4M3FNUZ = torch.float8_e4m3fnuz
E5M2 = torch.float8_e5m2
E5M2FNUZ = torch.float8_e5m2fnuz


@dataclass(frozen=True)
class Hardware:
    """One architecture."""

    arch: str
    default_fp8: torch.dtype
    native_fp8: tuple[torch.dtype, ...]  # conversions from fp32 that the chip does itself
    wave_width: int | None = None
    shared_memory_bytes: int | None = None  # a block
    max_threads: int | None = None  # a block
    launches_early: bool = False  # a kernel may start before the one ahead of it has ended

    @property
    def max_warps(self) -> int | None:
        """The most warps (waves) a program may have."""
        if self.max_threads is None or self.wave_width is None:
            return None
        return self.max_threads // self.wave_width


def _rows() -> dict[str, Hardware]:
    ocp, fnuz = (E4M3FN, E5M2), (E4M3FNUZ, E5M2FNUZ)
    rows = (
        Hardware("sm_80", E4M3FN, (), 32, 163 << 10, 1024),
        Hardware("sm_89", E4M3FN, ocp, 32, 99 << 10, 1024),
        Hardware("sm_90", E4M3FN, ocp, 32, 227 << 10, 1024, launches_early=True),
        Hardware("sm_100", E4M3FN, ocp, 32, 227 << 10, 1024, launches_early=True),
        Hardware("sm_120", E4M3FN, ocp, 32, 99 << 10, 1024, launches_early=True),
        Hardware("gfx942", E4M3FNUZ, fnuz, 64, 64 << 10, 1024),
        Hardware("gfx950", E4M3FN, ocp, 64, 160 << 10, 1024),
        Hardware("gfx12", E4M3FN, ocp, 32, 64 << 10, 1024),
        Hardware("xpu", E4M3FN, ()),
        Hardware("cpu", E4M3FN, ()),
    )
    return {row.arch: row for row in rows}


HARDWARE = _rows()
_FAMILIES = {  # architectures that behave as another row does
    "sm_86": "sm_80",
    "sm_87": "sm_80",
    "sm_103": "sm_100",
    "sm_121": "sm_120",
    "gfx940": "gfx942",
    "gfx941": "gfx942",
    "gfx1200": "gfx12",
    "gfx1201": "gfx12",
}


def hardware_of(arch: str) -> Hardware:
    """The row of an architecture; one that has none gets OCP formats and converts by software."""
    return HARDWARE.get(_FAMILIES.get(arch, arch)) or Hardware(arch, E4M3FN, ())


def arch_of(device: torch.device) -> str:
    """`sm_90`, `gfx942`, `xpu`, `cpu`: asked of the device now, never at import."""
    return _chip(_numbered(device), torch.cuda.get_device_properties)[0]


def processors_of(device: torch.device) -> int:
    """Multiprocessors (compute units) of the device; the interpreter needs no more than two programs."""
    return _chip(_numbered(device), torch.cuda.get_device_properties)[1]


def _numbered(device: torch.device) -> torch.device:
    if device.index is None and device.type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


@cache
def _chip(device: torch.device, properties_of: Callable[[torch.device], Any]) -> tuple[str, int]:
    """Architecture and multiprocessors. Who answers belongs to the key: a process may pretend to have another chip."""
    if device.type == "xpu":
        return "xpu", int(torch.xpu.get_device_properties(device).gpu_subslice_count)
    if device.type != "cuda":
        return device.type, 2
    properties = properties_of(device)
    if torch.version.hip is not None:
        arch = properties.gcnArchName.split(":", maxsplit=1)[0]
    else:
        arch = f"sm_{properties.major}{properties.minor}"
    return arch, properties.multi_processor_count


def default_fp8_dtype(device: torch.device | str) -> torch.dtype:
    """The 8-bit format that the device's matrix units multiply; e4m3fn where there are none."""
    return hardware_of(arch_of(torch.device(device))).default_fp8
