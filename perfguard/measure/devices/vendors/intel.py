"""Intel GPUs, through torch.xpu. It has no spin kernel, so waits are chains of matrix products."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from perfguard.measure.devices import architectures
from perfguard.measure.devices.torch_gpu import TorchGpu
from perfguard.measure.devices.vendor import TorchVendor
from perfguard.model.records import Conditions, Hardware


class IntelDevice(TorchGpu):
    """One Intel GPU (or tile), as torch.xpu numbers them."""

    kind: ClassVar[str] = "xpu"

    @cached_property
    def identity(self) -> Hardware:
        properties = self.properties
        cache = getattr(properties, "last_level_cache_size", None) or None
        warnings = [
            "xpu: torch reads no clocks, power or throttling; look at them with `xpu-smi`",
            "fp8: in software or hardware by driver, so none is listed; tests choose dtypes themselves",
        ]
        if cache is None:
            warnings.append("xpu: the cache size is unknown; cold readings write 256 MiB, check that it is enough")
        return Hardware(
            slug=architectures.slugify(properties.name, "intel"),
            vendor="intel",
            name=properties.name,
            architecture=self._architecture,
            memory_bytes=properties.total_memory,
            cache_bytes=cache,
            units=getattr(properties, "max_compute_units", None),
            index=self._index,
            warnings=warnings,
        )

    @property
    def driver(self) -> str | None:
        return getattr(self.properties, "driver_version", None)

    @property
    def toolkit(self) -> str | None:
        import torch

        return getattr(torch.version, "xpu", None)

    def conditions(self) -> Conditions:
        return Conditions()

    @property
    def _architecture(self) -> str:
        """'xe-' and the PCI device number, which identifies the generation."""
        number: Any = getattr(self.properties, "device_id", None)
        return f"xe-{number:04x}" if isinstance(number, int) else "xe"


class Intel(TorchVendor):
    """Intel's GPUs."""

    kind = "xpu"
    names = ("xpu", "xpu:<index>")
    auto = 30
    driver, build = "Intel", "XPU"

    def device(self, index: int) -> IntelDevice:
        return IntelDevice(index)

    def built_for(self, torch: ModuleType) -> str | None:
        return getattr(torch.version, "xpu", None)

    def has_driver(self, root: Path) -> bool:
        nodes = (root / "sys/class/drm").glob("renderD*/device/vendor")
        return any(node.read_text().strip() == "0x8086" for node in nodes)


VENDOR = Intel()
