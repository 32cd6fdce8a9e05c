"""Devices: `open_device` opens a device by name, and `diagnose` reports on this machine's hardware and packages."""

from __future__ import annotations

from collections.abc import Sequence

from perfguard.measure.devices.device import Device, Event
from perfguard.measure.devices.vendors import Finding, Vendor, all_vendors, require_torch
from perfguard.model.errors import UsageError

__all__ = ["Device", "Event", "Finding", "diagnose", "known_names", "open_device", "require_torch"]

_AUTO = "auto"


def known_names() -> list[str]:
    """The values of `--perfguard-device`, including devices that this machine lacks."""
    return list(dict.fromkeys([_AUTO, *(name for vendor in all_vendors() for name in vendor.names)]))


def open_device(name: str) -> Device:
    """Open the device called `name`, one of `known_names`. 'auto' takes a CUDA or ROCm GPU, else an Intel GPU, else the
    CPU. The CPU needs no torch.

    Raises:
        UsageError: the name is unknown.
        DeviceError: the device or torch is absent.
    """
    vendor, meant = _vendor_of(name)
    return vendor.open(meant)


def find_devices(name: str) -> dict[str, str]:
    """The devices that `name` allows: names for `open_device` -> `Device.key`. No GPU is opened.

    'auto', 'cuda' and 'xpu' mean all devices of a kind, 'fake*2' two simulated ones, and a name with an index one.

    Raises:
        UsageError: the name is unknown.
        DeviceError: the device or torch is absent.
    """
    vendor, meant = _vendor_of(name)
    devices = vendor.find(meant)
    return {name: devices[meant]} if list(devices) == [meant] else devices


def _vendor_of(name: str) -> tuple[Vendor, str]:
    """The vendor of a device, and the name that the vendor understands, which 'auto' is not."""
    if name == _AUTO:
        vendor = next(vendor for vendor in all_vendors() if vendor.auto is not None and vendor.is_here())
        return vendor, vendor.names[0]
    for vendor in all_vendors():
        if vendor.understands(name):
            return vendor, name
    raise UsageError(f"device {name!r}: unknown; known: {', '.join(known_names())}")


def diagnose(device: str = _AUTO, targets: Sequence[str] = ()) -> list[Finding]:
    """All findings that `perfguard doctor` prints about this machine, and about the `targets` of the settings. It never
    raises, and works without torch."""
    from perfguard.measure.devices import doctor

    return doctor.findings(lambda: open_device(device), targets=targets)
