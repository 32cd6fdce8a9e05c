"""AMD GPUs, through torch.cuda (in ROCm builds it means AMD's GPUs), amdsmi and the kernel driver's files."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from perfguard.measure.devices.torch_gpu import TorchGpu
from perfguard.measure.devices.vendors import Finding, Import, TorchVendor, is_rocm, read_text, slugify, tool
from perfguard.model.records import Conditions, Hardware

_WHOLE = "SPX/NPS1"  # The slug omits this mode, that of an undivided device.
_VIOLATIONS = {
    "active_prochot_thrm": "processor_hot",
    "active_ppt_pwr": "power_cap",
    "active_socket_thrm": "socket_thermal",
    "active_vr_thrm": "regulator_thermal",
    "active_hbm_thrm": "memory_thermal",
}

# Last-level caches behind the 4 MB L2 that MI300 and MI350 report.
_HIDDEN_CACHE_BYTES = {"gfx942": 256 * 2**20, "gfx950": 256 * 2**20}


class AmdDevice(TorchGpu):
    """One AMD GPU, or one partition of it.

    Args:
        index: torch's number of the device.
        backend: `torch.cuda` of a ROCm build, or a stand-in for it.
        amdsmi: the module, if not the installed one.
        sysfs: the folder of the kernel's device files.
    """

    built_for = "hip"
    captures = True

    def __init__(self, index: int = 0, *, backend: Any = None, amdsmi: Any = None, sysfs: Path = Path("/sys")) -> None:
        super().__init__(index, backend=backend)
        self._amdsmi = amdsmi
        self._sysfs = sysfs

    @cached_property
    def identity(self) -> Hardware:
        properties, partition, warnings = self.properties, self._partition, []
        architecture = properties.gcnArchName.split(":")[0]
        name = properties.name or f"AMD {architecture}"
        slug = slugify(name, "amd")
        if slug == "amd-radeon-graphics":  # The driver uses this name for every device unknown to it.
            slug = f"{slug}-{architecture}"
        if partition not in (None, _WHOLE):
            slug = f"{slug}-{partition.lower().replace('/', '-')}"
        microwatts = None
        try:
            with self._smi() as (smi, handle):
                microwatts = _number(lambda: smi.amdsmi_get_power_cap_info(handle)["power_cap"])
        except Exception as error:  # amdsmi raises its own errors, or others if its library is missing.
            warnings.append(f"amdsmi: {error}; clocks and throttling are unknown: install it from ROCm")
        reported = getattr(properties, "L2_cache_size", 0) or 0
        return Hardware(
            slug=slug,
            vendor="amd",
            name=name,
            architecture=architecture,
            memory_bytes=properties.total_memory,
            cache_bytes=max(reported, _HIDDEN_CACHE_BYTES.get(architecture, 0)) or None,
            units=properties.multi_processor_count,
            partition=partition,
            power_limit_watts=None if microwatts is None else microwatts / 1e6,
            index=self._index,
            warnings=warnings,
        )

    @property
    def driver(self) -> str | None:
        return read_text(self._sysfs / "module/amdgpu/version") or os.uname().release  # A built-in driver has no file.

    def conditions(self) -> Conditions:
        try:
            with self._smi() as (smi, handle):
                clock = _number(lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)["clk"])
                violations = _asked(lambda: smi.amdsmi_get_violation_status(handle)) or {}
                processes = _asked(lambda: smi.amdsmi_get_gpu_process_list(handle))
        except Exception:  # `identity.warnings` reports the cause.
            return Conditions()
        return Conditions(
            clock_mhz=None if clock is None else int(clock),
            throttle_reasons=[name for key, name in _VIOLATIONS.items() if violations.get(key) in (True, 1)],
            other_processes=None if processes is None else sum(_pid(each) != os.getpid() for each in processes),
        )

    @property
    def _partition(self) -> str | None:
        """Compute and memory partition, e.g. 'SPX/NPS1'; None if the driver reports none."""
        if self._address is None:
            return None
        folder = self._sysfs / "bus/pci/devices" / self._address
        modes = [read_text(folder / f"current_{kind}_partition") for kind in ("compute", "memory")]
        return "/".join(mode for mode in modes if mode) or None

    @property
    def _address(self) -> str | None:
        """PCI address as Linux writes it."""
        properties = self.properties
        try:
            return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        except (AttributeError, TypeError, ValueError):
            return None

    @contextmanager
    def _smi(self) -> Iterator[tuple[Any, Any]]:
        """amdsmi and its handle of this device, matched by PCI address since visible devices may be renumbered."""
        smi = self._amdsmi or importlib.import_module("amdsmi")
        smi.amdsmi_init()
        try:
            handles = smi.amdsmi_get_processor_handles()
            address = self._address
            if address is None:
                yield smi, handles[self._index]
            else:
                matching = [handle for handle in handles if smi.amdsmi_get_gpu_device_bdf(handle).lower() == address]
                if not matching:
                    raise LookupError(f"knows no device at {address}")
                yield smi, matching[0]
        finally:
            smi.amdsmi_shut_down()


def _asked(question: Callable[[], Any]) -> Any:
    """The answer, or None if amdsmi raises because this device or driver does not support the query."""
    try:
        return question()
    except Exception:
        return None


def _number(question: Callable[[], Any]) -> float | None:
    """The answer if it is a number; None otherwise, because amdsmi may answer 'N/A'."""
    answer = _asked(question)
    return answer if isinstance(answer, int | float) and not isinstance(answer, bool) else None


def _pid(process: Any) -> int | None:
    return process.get("pid") if isinstance(process, dict) else None


class Amd(TorchVendor):
    """AMD's GPUs."""

    kind = "cuda"
    names = ("cuda", "cuda:<index>")
    auto = 20
    driver, build = "AMD", "ROCm"
    opens = AmdDevice

    def is_built(self) -> bool:
        return is_rocm()

    def has_driver(self, root: Path) -> bool:
        return (root / "dev/kfd").exists()

    def tools(self, root: Path, load: Import) -> Iterator[Finding]:
        yield tool(load, "amdsmi", "install it from ROCm: /opt/rocm/share/amd_smi")
        kfd = root / "dev/kfd"
        if not os.access(kfd, os.R_OK | os.W_OK):
            step = "add yourself to the groups render and video"
            yield Finding("AMD device file", "", f"{kfd} cannot be opened: permission denied", step)


VENDOR = Amd()
