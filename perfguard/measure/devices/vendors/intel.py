"""Intel GPUs, through torch.xpu, which has no spin kernel, so that waits are chains of matrix products."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from perfguard.measure.devices.torch_gpu import TorchGpu
from perfguard.measure.devices.vendors import TorchVendor, read_text, slugify
from perfguard.model.records import Conditions, Hardware


class IntelDevice(TorchGpu):
    """One Intel GPU, or one tile, with torch.xpu's number."""

    kind = built_for = "xpu"

    @cached_property
    def identity(self) -> Hardware:
        properties = self.properties
        number = getattr(properties, "device_id", None)
        cache = getattr(properties, "last_level_cache_size", None) or None
        warnings = ["xpu: torch reads no clocks, power or throttling; look at them with `xpu-smi`"]
        if cache is None:
            warnings.append("xpu: the cache size is unknown; cold readings write 256 MiB, check that it is enough")
        return Hardware(
            slug=slugify(properties.name, "intel"),
            vendor="intel",
            name=properties.name,
            # The PCI device number identifies the generation.
            architecture=f"xe-{number:04x}" if isinstance(number, int) else "xe",
            memory_bytes=properties.total_memory,
            cache_bytes=cache,
            units=getattr(properties, "max_compute_units", None),
            index=self._index,
            warnings=warnings,
        )

    @property
    def driver(self) -> str | None:
        return getattr(self.properties, "driver_version", None)

    def conditions(self) -> Conditions:
        return Conditions()


class Intel(TorchVendor):
    """Intel's GPUs."""

    kind = "xpu"
    names = ("xpu", "xpu:<index>")
    auto = 30
    driver, build = "Intel", "XPU"
    opens = IntelDevice

    def has_driver(self, root: Path) -> bool:
        nodes = (root / "sys/class/drm").glob("renderD*/device/vendor")
        return any(read_text(node) == "0x8086" for node in nodes)


VENDOR = Intel()
