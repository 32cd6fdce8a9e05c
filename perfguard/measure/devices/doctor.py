"""The findings of `perfguard doctor`: what is present, what is missing, and the next step for each."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from perfguard.measure.devices.device import Device
from perfguard.model.errors import DeviceError
from perfguard.model.units import format_bytes

Import = Callable[[str], ModuleType]


class Finding(Struct, frozen=True):
    """One checked topic. `missing` is empty if all is well; otherwise `next_step` is the remedy."""

    topic: str
    value: str = ""
    missing: str = ""
    next_step: str = ""


def findings(
    open_device: Callable[[], Device], *, root: Path = Path("/"), load: Import = importlib.import_module
) -> list[Finding]:
    """All findings, from the machine down to the device.

    Args:
        open_device: opens the device to be described.
        root: the folder that holds `/proc`, `/sys` and `/dev`.
        load: imports a module by name.
    """
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("system", _system),
        ("torch", lambda: _torch(load)),
        ("triton", lambda: _triton(load)),
        ("driver", lambda: _drivers(root, load)),
        ("tools", lambda: _tools(root, load)),
        ("permissions", lambda: _permissions(root)),
        ("device", lambda: _device(open_device)),
    ]
    return [finding for topic, check in checks for finding in _safely(topic, check)]


def _safely(topic: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as error:  # every failed check becomes a finding; the doctor itself must not fail
        yield Finding(topic, "", f"{type(error).__name__}: {error}", "mend this, then run `perfguard doctor` again")


def _system() -> Iterator[Finding]:
    yield Finding("system", platform.platform())
    yield Finding("python", platform.python_version())


def _torch(load: Import) -> Iterator[Finding]:
    try:
        torch = load("torch")
    except ImportError as error:
        yield Finding("torch", "", f"cannot be imported: {error}", "pip install 'perfguard[kernels]'")
        return
    yield Finding("torch", f"{torch.__version__} ({_build(torch)})")


def _build(torch: ModuleType) -> str:
    for attribute, name in (("hip", "ROCm"), ("cuda", "CUDA"), ("xpu", "XPU")):
        version = getattr(torch.version, attribute, None)
        if version:
            return f"{name} {version}"
    return "CPU only"


def _triton(load: Import) -> Iterator[Finding]:
    try:
        triton = load("triton")
    except ImportError as error:
        step = "pip install 'perfguard[kernels]' (Linux only)"
        yield Finding("triton", "", f"cannot be imported: {error}", step)
        return
    yield Finding("triton", triton.__version__)


def _drivers(root: Path, load: Import) -> Iterator[Finding]:
    build = _build_or_none(load)
    present = [(vendor, word) for vendor, found, word in _vendors(root) if found]
    if not present and build in (None, "CPU only"):
        step = "none needed to guard the CPU; to guard a GPU install its driver (in a container: pass the GPU in)"
        yield Finding("GPU driver", "", "no NVIDIA, AMD or Intel driver is loaded", step)
    for vendor, word in present:
        missing = step = ""
        if build is not None and word not in build:
            missing = f"torch is built for {build}, so it cannot use the {vendor} GPU"
            step = f"install a {word} build of torch: https://pytorch.org/get-started/locally"
        yield Finding(f"{vendor} driver", "present", missing, step)
    if build not in (None, "CPU only") and not any(word in str(build) for _, word in present):
        missing = f"torch is built for {build}, but no such driver is loaded"
        yield Finding("driver", "", missing, "install the GPU's driver; in a container, pass the GPU in")


def _build_or_none(load: Import) -> str | None:
    try:
        return _build(load("torch"))
    except ImportError:
        return None


def _vendors(root: Path) -> list[tuple[str, bool, str]]:
    """Vendor, whether its driver is installed, and the name of a torch build for it."""
    return [
        ("NVIDIA", (root / "proc/driver/nvidia/version").exists() or (root / "dev/nvidiactl").exists(), "CUDA"),
        ("AMD", (root / "dev/kfd").exists(), "ROCm"),
        ("Intel", _has_render_node(root, "0x8086"), "XPU"),
    ]


def _has_render_node(root: Path, vendor: str) -> bool:
    nodes = (root / "sys/class/drm").glob("renderD*/device/vendor")
    return any(node.read_text().strip() == vendor for node in nodes)


def _tools(root: Path, load: Import) -> Iterator[Finding]:
    present = {vendor for vendor, found, _ in _vendors(root) if found}
    if "NVIDIA" in present:
        yield _module(load, "pynvml", "pip install nvidia-ml-py")
    if "AMD" in present:
        yield _module(load, "amdsmi", "install it from ROCm: /opt/rocm/share/amd_smi")


def _module(load: Import, name: str, next_step: str) -> Finding:
    try:
        module = load(name)
    except Exception as error:  # amdsmi raises various errors if its library is missing
        return Finding(name, "", f"cannot be imported: {error}; clocks and throttling may be unknown", next_step)
    return Finding(name, str(getattr(module, "__version__", "imports")))


def _permissions(root: Path) -> Iterator[Finding]:
    parameters = root / "proc/driver/nvidia/params"
    if parameters.exists():
        text = parameters.read_text()
        if "RmProfilingAdminOnly: 1" in text and os.geteuid() != 0:
            missing = "hardware counters are for administrators only (times and launches do not need them)"
            step = "load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0"
            yield Finding("NVIDIA counters", "", missing, step)
        else:
            yield Finding("NVIDIA counters", "readable")
    kfd = root / "dev/kfd"
    if kfd.exists() and not os.access(kfd, os.R_OK | os.W_OK):
        yield Finding("AMD device file", "", f"{kfd} may not be opened", "add yourself to the groups render and video")


def _device(open_device: Callable[[], Device]) -> Iterator[Finding]:
    try:
        device = open_device()
    except DeviceError as error:
        yield Finding("device", "", str(error), "choose another with --perfguard-device, or mend what is missing above")
        return
    identity, state, versions = device.identity, device.conditions(), device.toolchain()
    for topic, value in (
        ("hardware", identity.slug),
        ("name", identity.name),
        ("index", identity.index),
        ("board", device.board),
        ("architecture", identity.architecture),
        ("partition", identity.partition),
        ("memory", None if identity.memory_bytes is None else format_bytes(identity.memory_bytes)),
        ("last-level cache", None if identity.cache_bytes is None else format_bytes(identity.cache_bytes)),
        ("units", identity.units),
        ("fp8 dtypes", ", ".join(identity.fp8_dtypes) or "none"),
        ("power limit, W", identity.power_limit_watts),
        ("driver version", versions.driver),
        ("toolkit", versions.toolkit),
        ("clock, MHz", state.clock_mhz),
        ("memory clock, MHz", state.memory_clock_mhz),
        ("temperature, °C", state.temperature_celsius),
        ("power, W", state.power_watts),
    ):
        if value is not None:
            yield Finding(f"device {topic}", str(value))
    if state.throttle_reasons:
        yield Finding(
            "device throttling",
            ", ".join(state.throttle_reasons),
            "times are not at full clock",
            "let it cool, or raise its limits",
        )
    if state.other_processes:
        yield Finding("other processes", str(state.other_processes), "the device is shared", "measure when it is free")
    for warning in identity.warnings:
        said, _, step = warning.rpartition("; ")
        yield Finding("device", "", said, step)
