"""AMD identities and state through stand-ins of torch.cuda, amdsmi and sysfs. Nobody ran this on an AMD GPU yet."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any

import pytest

from perfguard.measure.devices.vendors.amd import AmdDevice
from perfguard.model.records import Conditions

MI300X = {
    "name": "AMD Instinct MI300X",
    "gcnArchName": "gfx942:sramecc+:xnack-",
    "L2_cache_size": 4 * 2**20,
    "multi_processor_count": 304,
    "pci_domain_id": 0,
    "pci_bus_id": 0x65,
    "pci_device_id": 0,
}


class NoSmi:
    def __getattr__(self, name: str) -> Any:
        raise ImportError("libamd_smi.so")


class Smi:
    """amdsmi with two devices, of which the second is ours; it supports what `unsupported` does not name."""

    AmdSmiClkType = enum.Enum("AmdSmiClkType", ["GFX"])

    def __init__(self, *unsupported: str) -> None:
        self.open = 0
        self.unsupported = unsupported

    def amdsmi_init(self) -> None:
        self.open += 1

    def amdsmi_shut_down(self) -> None:
        self.open -= 1

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["0000:05:00.0", "0000:65:00.0"]

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return handle.upper()

    def _answer(self, name: str, handle: str, answer: Any) -> Any:
        assert handle == "0000:65:00.0"
        if name in self.unsupported:
            raise RuntimeError("not supported")
        return answer

    def amdsmi_get_clock_info(self, handle: str, kind: Any) -> Any:
        return self._answer("clock", handle, {"clk": {self.AmdSmiClkType.GFX: 2100}[kind]})

    def amdsmi_get_power_cap_info(self, handle: str) -> Any:
        return self._answer("cap", handle, {"power_cap": "N/A" if "limit" in self.unsupported else 750_000_000})

    def amdsmi_get_violation_status(self, handle: str) -> Any:
        answer = {"active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": "N/A"}
        return self._answer("violation", handle, answer)

    def amdsmi_get_gpu_process_list(self, handle: str) -> Any:
        return self._answer("processes", handle, [{"pid": os.getpid()}, {"pid": 1}])


def sysfs(path: Path, compute: str | None = None, memory: str | None = None) -> Path:
    folder = path / "bus/pci/devices/0000:65:00.0"
    folder.mkdir(parents=True)
    for kind, mode in (("compute", compute), ("memory", memory)):
        if mode is not None:
            (folder / f"current_{kind}_partition").write_text(f"{mode}\n")
    (path / "module/amdgpu").mkdir(parents=True)
    (path / "module/amdgpu/version").write_text("6.12.12\n")
    return path


def opened(backend: Any, root: Path, smi: Any = None, **properties: Any) -> AmdDevice:
    return AmdDevice(backend=backend(**{**MI300X, **properties}), amdsmi=smi or Smi(), sysfs=root)


def test_identity(backend: Any, tmp_path: Path) -> None:
    device = opened(backend, sysfs(tmp_path, "SPX", "NPS1"))
    identity = device.identity
    assert (identity.slug, identity.vendor, identity.architecture) == ("amd-mi300x", "amd", "gfx942")
    assert identity.cache_bytes == 256 * 2**20  # not the 4 MB that are reported
    assert (identity.partition, identity.power_limit_watts) == ("SPX/NPS1", 750)
    assert identity.warnings == []
    assert device.toolchain().driver == "6.12.12"


@pytest.mark.parametrize(
    ("compute", "memory", "slug", "partition"),
    [
        ("CPX", "NPS4", "amd-mi300x-cpx-nps4", "CPX/NPS4"),
        ("SPX", "NPS4", "amd-mi300x-spx-nps4", "SPX/NPS4"),
        (None, None, "amd-mi300x", None),
    ],
)
def test_partitions_are_other_hardware(
    backend: Any, tmp_path: Path, compute: str | None, memory: str | None, slug: str, partition: str | None
) -> None:
    identity = opened(backend, sysfs(tmp_path, compute, memory)).identity
    assert (identity.slug, identity.partition) == (slug, partition)


@pytest.mark.parametrize(
    ("name", "architecture", "slug"),
    [
        ("AMD Instinct MI300X OAM", "gfx942", "amd-mi300x"),
        ("AMD Radeon RX 9070 XT", "gfx1201", "amd-radeon-rx-9070-xt"),
        ("AMD Radeon Graphics", "gfx1103", "amd-radeon-graphics-gfx1103"),
        ("", "gfx950", "amd-gfx950"),
    ],
)
def test_slugs(backend: Any, tmp_path: Path, name: str, architecture: str, slug: str) -> None:
    device = opened(backend, sysfs(tmp_path), name=name, gcnArchName=architecture)
    assert device.identity.slug == slug


def test_conditions_leave_out_what_is_not_available(backend: Any, tmp_path: Path) -> None:
    smi = Smi()
    assert opened(backend, sysfs(tmp_path), smi).conditions() == Conditions(
        clock_mhz=2100,
        throttle_reasons=["power_cap"],
        other_processes=1,
    )
    assert smi.open == 0


@pytest.mark.parametrize("cap", ["cap", "limit"])
def test_a_device_that_supports_nothing(backend: Any, tmp_path: Path, cap: str) -> None:
    smi = Smi("clock", "violation", "processes", cap)
    device = opened(backend, sysfs(tmp_path), smi)
    assert device.conditions() == Conditions()
    assert device.identity.power_limit_watts is None


def test_without_amdsmi(backend: Any, tmp_path: Path) -> None:
    device = opened(backend, sysfs(tmp_path, "CPX", "NPS1"), NoSmi())
    assert device.conditions() == Conditions()
    assert device.identity.slug == "amd-mi300x-cpx-nps1"
    assert [warning.split(":")[0] for warning in device.identity.warnings] == ["amdsmi"]


def test_address_that_amdsmi_does_not_know(backend: Any, tmp_path: Path) -> None:
    device = opened(backend, sysfs(tmp_path), pci_bus_id=0x66)
    assert "0000:66:00.0" in device.identity.warnings[0]
