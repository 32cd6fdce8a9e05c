"""Facts about architectures that cannot be queried from a device."""

from __future__ import annotations

import re
from importlib import metadata

_OCP = ["float8_e4m3fn", "float8_e5m2"]
_FNUZ = ["float8_e4m3fnuz", "float8_e5m2fnuz"]

#: fp8 dtypes that the hardware computes with. The same bits mean values in fn and fnuz that differ by a factor of two.
FP8_DTYPES: dict[str, list[str]] = {
    "sm_70": [],
    "sm_75": [],
    "sm_80": [],
    "sm_86": [],
    "sm_87": [],
    "sm_89": _OCP,
    "sm_90": _OCP,
    "sm_100": _OCP,
    "sm_103": _OCP,
    "sm_120": _OCP,
    "sm_121": _OCP,
    "gfx90a": [],
    "gfx942": _FNUZ,
    "gfx950": _OCP,
    "gfx1030": [],
    "gfx1100": [],
    "gfx1101": [],
    "gfx1200": _OCP,
    "gfx1201": _OCP,
}

#: Last-level caches that the driver does not report (MI300 and MI350 report their 4 MB L2, not the cache behind it).
HIDDEN_CACHE_BYTES: dict[str, int] = {"gfx942": 256 * 2**20, "gfx950": 256 * 2**20}

#: Words of a marketing name that do not distinguish kinds of devices.
_NOISE = re.compile(
    r"\((?:r|tm|c)\)|\bhbm\d+e?\b|\binstinct\b|\boam\b|\bcpu\b|\bprocessors?\b|\b\d+-core\b|@.*", re.IGNORECASE
)


def fp8_dtypes(architecture: str) -> tuple[list[str], list[str]]:
    """fp8 dtypes of an architecture, and a warning if the table lacks it."""
    known = FP8_DTYPES.get(architecture)
    if known is None:
        return [], [f"fp8: nothing is known of {architecture}; add it to perfguard/measure/devices/architectures.py"]
    return list(known), []


def slugify(name: str, vendor: str) -> str:
    """'NVIDIA H100 80GB HBM3' -> 'nvidia-h100-80gb'; the vendor comes first, once."""
    words = re.findall(r"[a-z0-9]+", _NOISE.sub(" ", name).lower())
    return "-".join([vendor, *(word for word in words if word != vendor)])


def triton_version() -> str | None:
    """Version of triton, under any of its distribution names."""
    for distribution in ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-xpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None
