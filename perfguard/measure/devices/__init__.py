"""Devices: `open_device` opens one by its name, `diagnose` reports what this machine has and what it lacks."""

from __future__ import annotations

import contextlib

from perfguard.measure.devices import doctor
from perfguard.measure.devices.device import Device, Event
from perfguard.measure.devices.doctor import Finding
from perfguard.model.errors import DeviceError, UsageError

__all__ = ["Device", "Event", "Finding", "diagnose", "open_device", "require_torch"]

KNOWN = (
    "auto", "cpu", "cuda", "cuda:<index>", "xpu", "xpu:<index>", "fake", "fake:<index>", "fake:<slug>", "fake*<count>",
)  # fmt: skip


def open_device(name: str) -> Device:
    """The device called `name`, one of `KNOWN`. 'auto' takes a CUDA or ROCm GPU, else an Intel GPU, else the CPU. The
    CPU needs no torch.

    Raises:
        UsageError: no such name.
        DeviceError: the device is absent, or torch is.
    """
    kind, colon, rest = name.partition(":")
    if _fake_count(name) is not None:
        kind, colon, rest = "fake", "", ""
    if kind == "fake" and (rest or not colon):
        from perfguard.measure.devices.fake import SLUG, FakeDevice

        return FakeDevice(index=int(rest)) if rest.isdecimal() else FakeDevice(rest or SLUG)
    if name not in ("auto", "cpu") and not (kind in ("cuda", "xpu") and (rest.isdecimal() or not colon)):
        raise UsageError(f"device {name!r}: unknown; known: {', '.join(KNOWN)}")
    if kind == "auto":
        kind = _best_kind()
    if kind == "cpu":
        from perfguard.measure.devices.cpu import CpuDevice

        return CpuDevice()
    require_torch(f"device {name!r}")
    import torch

    return _open_gpu(kind, int(rest or 0), rocm=torch.version.hip is not None)


def require_torch(what: str) -> None:
    """
    Raises:
        DeviceError: torch, which `what` needs, cannot be imported.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise DeviceError(f"{what}: torch cannot be imported ({error}); pip install 'perfguard[kernels]'") from error


def _best_kind() -> str:
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "xpu" if torch.xpu.is_available() else "cpu"


def find_devices(name: str) -> dict[str, str]:
    """The devices that `name` allows: names for `open_device` -> `Device.key`. No GPU is opened.

    'auto', 'cuda' and 'xpu' stand for all of a kind, 'fake*2' for two simulated ones, a name with an index for one.

    Raises:
        UsageError: no such name.
        DeviceError: the device is absent, or torch is.
    """
    count = _fake_count(name)
    if count is not None:
        return {f"fake:{index}": open_device(f"fake:{index}").key for index in range(count)}
    with contextlib.suppress(ImportError):  # open_device reports it better
        import torch

        kinds = ("cuda", "xpu") if name == "auto" else (name,) if name in ("cuda", "xpu") else ()
        for kind in kinds:
            backend = getattr(torch, kind)
            if backend.is_available():
                from perfguard.measure.devices.torch_gpu import device_key

                indices = range(backend.device_count())
                return {f"{kind}:{i}": device_key(kind, i, backend.get_device_properties(i)) for i in indices}
    return {name: open_device(name).key}


def _fake_count(name: str) -> int | None:
    """2 for 'fake*2', a machine of two simulated devices."""
    kind, star, count = name.partition("*")
    return int(count) if kind == "fake" and star and count.isdecimal() and int(count) > 0 else None


def _open_gpu(kind: str, index: int, *, rocm: bool) -> Device:
    if kind == "xpu":
        from perfguard.measure.devices.intel import IntelDevice

        return IntelDevice(index)
    if rocm:
        from perfguard.measure.devices.amd import AmdDevice

        return AmdDevice(index)
    from perfguard.measure.devices.nvidia import NvidiaDevice

    return NvidiaDevice(index)


def diagnose(device: str = "auto") -> list[Finding]:
    """Everything `perfguard doctor` prints about this machine; never raises, and works without torch."""
    return doctor.findings(lambda: open_device(device))
