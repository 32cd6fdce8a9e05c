"""The CPU, which 'auto' takes where no GPU can be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.devices.vendor import Vendor

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


class Cpu(Vendor):
    """This machine's processor. It needs no torch."""

    names = ("cpu",)
    auto = 1000

    def understands(self, name: str) -> bool:
        return name == "cpu"

    def is_here(self) -> bool:
        return True

    def open(self, name: str) -> Device:
        from perfguard.measure.devices.cpu import CpuDevice

        return CpuDevice()


VENDOR = Cpu()
