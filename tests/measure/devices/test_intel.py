"""Intel identities through a stand-in for torch.xpu. Nobody ran this on an Intel GPU yet."""

from __future__ import annotations

from typing import Any

from perfguard.measure.devices.vendors.intel import IntelDevice
from perfguard.model.records import Conditions

MAX = {
    "name": "Intel(R) Data Center GPU Max 1550",
    "driver_version": "1.6.33578",
    "device_id": 0x0BD5,
    "max_compute_units": 512,
}


def test_identity(backend: Any) -> None:
    device = IntelDevice(1, backend=backend(2, **MAX))
    identity = device.identity
    assert (identity.slug, identity.vendor) == ("intel-data-center-gpu-max-1550", "intel")
    assert (identity.architecture, identity.units, identity.index) == ("xe-0bd5", 512, 1)
    assert identity.cache_bytes is None
    assert any("cache" in warning for warning in identity.warnings)
    assert str(device.torch_device) == "xpu:1"
    assert device.toolchain().driver == "1.6.33578"
    assert device.conditions() == Conditions()


def test_generations_differ(backend: Any) -> None:
    arc = {"name": "Intel(R) Arc(TM) B580 Graphics", "device_id": 0xE20B, "last_level_cache_size": 18 * 2**20}
    identity = IntelDevice(backend=backend(**{**MAX, **arc})).identity
    assert (identity.slug, identity.architecture) == ("intel-arc-b580-graphics", "xe-e20b")
    assert identity.cache_bytes == 18 * 2**20
    assert not any("cache" in warning for warning in identity.warnings)
    assert IntelDevice(backend=backend(name="Intel Graphics")).identity.architecture == "xe"
