"""Simulated devices, which are opened by name only: 'fake', 'fake:1', 'fake:some-slug'. 'fake*2' means two devices."""

from __future__ import annotations

import re

from perfguard.measure.devices.vendors import Vendor
from perfguard.testing.fake import SLUG, FakeDevice

_SEVERAL = re.compile(r"fake\*([1-9]\d*)")


class Fake(Vendor):
    """Devices on which no real time passes."""

    names = ("fake", "fake:<index>", "fake:<slug>", "fake*<count>")

    def understands(self, name: str) -> bool:
        return name == "fake" or re.fullmatch(r"fake:.+", name) is not None or _SEVERAL.fullmatch(name) is not None

    def open(self, name: str) -> FakeDevice:
        suffix = name.partition(":")[2]
        return FakeDevice(index=int(suffix)) if suffix.isdecimal() else FakeDevice(suffix or SLUG)

    def find(self, name: str) -> dict[str, str]:
        several = _SEVERAL.fullmatch(name)
        names = [f"fake:{index}" for index in range(int(several[1]))] if several else [name]
        return {each: self.open(each).key for each in names}


VENDOR = Fake()
