"""Simulated devices, opened by name only: 'fake', 'fake:1' of several, 'fake:some-slug'. 'fake*2' is two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.devices.vendor import Vendor

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device


class Fake(Vendor):
    """Devices on which no real time passes."""

    names = ("fake", "fake:<index>", "fake:<slug>", "fake*<count>")

    def understands(self, name: str) -> bool:
        kind, colon, rest = name.partition(":")
        return _count(name) is not None or (kind == "fake" and bool(rest or not colon))

    def open(self, name: str) -> Device:
        from perfguard.measure.devices.fake import SLUG, FakeDevice

        rest = name.partition(":")[2]
        return FakeDevice(index=int(rest)) if rest.isdecimal() else FakeDevice(rest or SLUG)

    def find(self, name: str) -> dict[str, str]:
        count = _count(name)
        names = [name] if count is None else [f"fake:{index}" for index in range(count)]
        return {each: self.open(each).key for each in names}


def _count(name: str) -> int | None:
    """2 for 'fake*2', a machine of two simulated devices."""
    kind, star, count = name.partition("*")
    return int(count) if kind == "fake" and star and count.isdecimal() and int(count) > 0 else None


VENDOR = Fake()
