"""The findings of `perfguard doctor`: parts that are present, parts that are missing, and the next step for each."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from perfguard.measure.devices.device import Device
from perfguard.measure.devices.vendors import Finding, Import, Vendor, all_vendors
from perfguard.model.errors import DeviceError
from perfguard.model.units import format_bytes

_CPU_ONLY = "CPU only"
_INSTALL = "pip install 'perfguard[kernels]'"


def findings(
    open_device: Callable[[], Device],
    *,
    targets: Sequence[str] = (),
    root: Path = Path("/"),
    load: Import = importlib.import_module,
) -> list[Finding]:
    """All findings: on the machine, its packages and the device, then on the possible measurements.

    Args:
        open_device: opens the device.
        targets: the GPUs that kernels are compiled for, as the settings name them.
        root: the folder that holds `/proc`, `/sys` and `/dev`.
        load: imports a module by name.
    """
    vendors = all_vendors()
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("system", _system),
        ("torch", lambda: _package(load, "torch", _INSTALL, vendors)),
        ("triton", lambda: _package(load, "triton", f"{_INSTALL} (Linux only)")),
        ("driver", lambda: _drivers(root, load, vendors)),
        *(("tools", lambda v=each: v.tools(root, load)) for each in vendors if _has_driver(each, root)),
        ("device", lambda: _device(open_device)),
        ("lane cpu", lambda: _measurable(open_device, targets, load)),
    ]
    return [finding for topic, check in checks for finding in _safely(topic, check)]


def _safely(topic: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except Exception as error:  # A failed check becomes a finding; the doctor itself must not fail.
        yield Finding(topic, "", f"{type(error).__name__}: {error}", "fix this, then run `perfguard doctor` again")


def _system() -> Iterator[Finding]:
    yield Finding("system", platform.platform())
    yield Finding("python", platform.python_version())


def _package(load: Import, name: str, step: str, vendors: Sequence[Vendor] = ()) -> Iterator[Finding]:
    """The version of torch or triton; for torch also its build."""
    try:
        module = load(name)
    except ImportError as error:
        yield Finding(name, "", f"cannot be imported: {error}", step)
        return
    yield Finding(name, f"{module.__version__} ({_build(module, vendors)})" if vendors else module.__version__)


def _build(torch: ModuleType, vendors: Sequence[Vendor]) -> str:
    versions = ((vendor.build, vendor.built_for(torch)) for vendor in vendors)
    return next((f"{build} {version}" for build, version in versions if version), _CPU_ONLY)


def _drivers(root: Path, load: Import, vendors: Sequence[Vendor]) -> Iterator[Finding]:
    try:
        build = _build(load("torch"), vendors)
    except ImportError:
        build = None
    present = [vendor for vendor in vendors if _has_driver(vendor, root)]
    if not present and build in (None, _CPU_ONLY):
        *names, last = (vendor.driver for vendor in vendors if vendor.driver)
        step = "none needed to guard the CPU; to guard a GPU install its driver (in a container: pass the GPU in)"
        yield Finding("GPU driver", "", f"no {', '.join(names)} or {last} driver is loaded", step)
        interpreted = (
            "perfguard's interpreter: pytest --perfguard sets TRITON_INTERPRET=1; for plain pytest set it yourself"
        )
        yield Finding("Triton kernels", interpreted)
    for vendor in present:
        missing = step = ""
        if build is not None and vendor.build not in build:
            missing = f"torch is built for {build}, so it cannot use the {vendor.driver} GPU"
            step = f"install a {vendor.build} build of torch: https://pytorch.org/get-started/locally"
        yield Finding(f"{vendor.driver} driver", "present", missing, step)
    if build not in (None, _CPU_ONLY) and not any(vendor.build in str(build) for vendor in present):
        missing = f"torch is built for {build}, but no such driver is loaded"
        yield Finding("driver", "", missing, "install the GPU's driver; in a container, pass the GPU in")


def _measurable(open_device: Callable[[], Device], targets: Sequence[str], load: Import) -> Iterator[Finding]:
    """Findings on the measurements that are possible here, and on those that need another machine."""
    exact = "results, operators, copies, host reads, memory, equal on every CPU; no times"
    yield Finding("lane cpu", f"pytest --perfguard --perfguard-lane=cpu: {exact}")
    try:
        load("triton")
        compiled = f"{', '.join(targets)}: registers, spills, shared memory, without these GPUs" if targets else ""
        yield Finding("targets of kernels", compiled or "none: the setting targets is empty")
    except ImportError:
        yield Finding("targets of kernels", "", "Triton is missing, so nothing is compiled for them", _INSTALL)
    try:
        device = open_device()
    except DeviceError:
        return  # The finding on the device says why.
    step = "" if device.asynchronous else "run pytest --perfguard on a machine with the GPU"
    yield Finding("times", f"times of {device.identity.slug}", step and "times of a GPU", step)


def _has_driver(vendor: Vendor, root: Path) -> bool:
    return bool(vendor.driver) and vendor.has_driver(root)


def _device(open_device: Callable[[], Device]) -> Iterator[Finding]:
    try:
        device = open_device()
    except DeviceError as error:
        yield Finding(
            "device", "", str(error), "choose another by --perfguard-device, or install what is missing above"
        )
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
        ("power limit, W", identity.power_limit_watts),
        ("driver version", versions.driver),
        ("toolkit", versions.toolkit),
        ("clock, MHz", state.clock_mhz),
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
    if device.asynchronous:
        yield _profiler(device)
    for warning in identity.warnings:
        missing, _, step = warning.rpartition("; ")
        yield Finding("device", "", missing, step)


def _profiler(device: Device) -> Finding:
    """Whether the profiler sees the device's work. It counts launches, and times short calls and calls that wait."""
    try:
        device.intervals([device.flush_cache])
    except Exception as error:  # Profilers fail in many ways.
        step = "end other profilers of this device; use a build of torch with Kineto"
        return Finding("device profiler", "", str(error).partition(";")[0], step)
    return Finding("device profiler", "works")
