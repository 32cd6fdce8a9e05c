"""NVIDIA identities from what torch and the driver say, through stand-ins."""

from __future__ import annotations

import re
from typing import Any

import pytest

from perfguard.measure.devices.vendors.nvidia import NvidiaDevice
from tests.measure.devices.test_nvml import BASIC, missing, pynvml

DRIVER = pynvml(
    **BASIC,
    nvmlSystemGetDriverVersion="580.159.04",
    nvmlDeviceGetEnforcedPowerLimit=700_000,
    nvmlDeviceGetCurrentClocksEventReasons=0x4,
)


def opened(backend: Any, index: int = 0, **properties: Any) -> NvidiaDevice:
    return NvidiaDevice(index, backend=backend(index + 1, **properties), pynvml=DRIVER)


def test_identity(backend: Any) -> None:
    device = opened(backend, index=2)
    identity = device.identity
    assert (identity.slug, identity.vendor, identity.architecture) == ("nvidia-h200", "nvidia", "sm_90")
    assert (identity.units, identity.cache_bytes, identity.memory_bytes) == (132, 62914560, 150109880320)
    assert identity.fp8_dtypes == ["float8_e4m3fn", "float8_e5m2"]
    assert (identity.index, identity.power_limit_watts, identity.partition) == (2, 700, None)
    assert identity.target is None
    assert identity.warnings == []
    assert str(device.torch_device) == "cuda:2"


def test_driver_and_state(backend: Any) -> None:
    device = opened(backend)
    assert device.toolchain().driver == "580.159.04"
    assert device.toolchain().torch is not None
    assert device.conditions().throttle_reasons == ["sw_power_cap"]


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-sxm4-40gb"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("Tesla T4", "nvidia-tesla-t4"),
        ("NVIDIA Future X1 (TM)", "nvidia-future-x1"),
    ],
)
def test_slug_of_any_name(backend: Any, name: str, slug: str) -> None:
    assert opened(backend, name=name).identity.slug == slug


def test_mig_partition_is_another_hardware(backend: Any) -> None:
    device = opened(backend, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert device.identity.slug == "nvidia-h100-80gb-mig-1g-10gb"
    assert device.identity.partition == "1g.10gb"
    assert device._uuid == "MIG-2b4e226c-662d-8eb5-2ff7-6251948a4286"


def test_unknown_architecture_is_guarded_with_a_warning(backend: Any) -> None:
    identity = opened(backend, name="NVIDIA Z999", major=99, minor=1).identity
    assert identity.slug == "nvidia-z999"
    assert identity.fp8_dtypes == []
    assert any("sm_991" in warning for warning in identity.warnings)


def test_older_torch_without_uuid(backend: Any) -> None:
    assert opened(backend, uuid=None)._uuid is None


def test_a_board_is_told_from_its_like_without_its_serial(backend: Any) -> None:
    here, again, there = (opened(backend, uuid=f"GPU-2b4e226c-{end}").board for end in ("1948", "1948", "77aa"))
    assert here == again
    assert here != there
    assert re.fullmatch(r"cuda-[0-9a-f]{8}", here or "")
    assert opened(backend, uuid=None).board is None


def test_a_missing_pynvml_is_a_warning(backend: Any) -> None:
    device = NvidiaDevice(backend=backend(), pynvml=missing())
    assert len(device.identity.warnings) == 1
    assert device.identity.power_limit_watts is None
