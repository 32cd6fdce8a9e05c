"""NVIDIA identities and state from what torch and NVML say, through stand-ins."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfguard.measure.devices.vendors.nvidia import NvidiaDevice
from perfguard.model.records import Conditions


class NVMLError(Exception):
    pass


class Missing:
    def __getattr__(self, attribute: str) -> Any:
        raise ImportError("pynvml")


class Pynvml(SimpleNamespace):
    """Every function gives the answer with its name, or says 'not supported'."""

    NVMLError, NVML_CLOCK_SM = NVMLError, 1

    def __init__(self, **answers: Any) -> None:
        basic = {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetHandleByUUID": "gpu"}
        super().__init__(answers=basic | answers, asked=[])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def function(*args: object) -> Any:
            self.asked.append((name, args))
            if name not in self.answers:
                raise NVMLError("not supported")
            answer = self.answers[name]
            return answer(*args) if callable(answer) else answer

        return function


def opened(backend: Any, index: int = 0, pynvml: Any = None, **properties: Any) -> NvidiaDevice:
    return NvidiaDevice(index, backend=backend(index + 1, **properties), pynvml=pynvml or Pynvml())


def test_identity(backend: Any) -> None:
    device = opened(backend, 2, Pynvml(nvmlDeviceGetEnforcedPowerLimit=700_000))
    identity = device.identity
    assert (identity.slug, identity.vendor, identity.architecture) == ("nvidia-h200", "nvidia", "sm_90")
    assert (identity.units, identity.cache_bytes, identity.memory_bytes) == (132, 62914560, 150109880320)
    assert (identity.index, identity.power_limit_watts, identity.partition) == (2, 700, None)
    assert (identity.target, identity.warnings) == (None, [])
    assert str(device.torch_device) == "cuda:2"
    assert device.toolchain().torch is not None


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-sxm4-40gb"),
        ("NVIDIA GeForce RTX 4090", "nvidia-geforce-rtx-4090"),
        ("Tesla T4", "nvidia-tesla-t4"),
        ("NVIDIA Future X1 (TM)", "nvidia-future-x1"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "nvidia-h100-80gb-mig-1g-10gb"),
    ],
)
def test_slug_of_any_name(backend: Any, name: str, slug: str) -> None:
    assert opened(backend, name=name).identity.slug == slug


def test_a_board_is_told_from_its_like_without_its_serial(backend: Any) -> None:
    here, again, there = (opened(backend, uuid=f"GPU-2b4e226c-{end}").board for end in ("1948", "1948", "77aa"))
    assert here == again != there
    assert re.fullmatch(r"cuda-[0-9a-f]{8}", here or "")
    assert opened(backend, uuid=None).board is None


@pytest.mark.parametrize(("mask", "reasons"), [(0x1, []), (0x5, ["sw_power_cap"]), (0x8, ["hw_slowdown"])])
@pytest.mark.parametrize("kind", ["Event", "Throttle"])  # older modules have the second name
def test_nvml_is_asked_for_the_device_by_uuid(backend: Any, mask: int, reasons: list[str], kind: str) -> None:
    pynvml = Pynvml(
        nvmlSystemGetDriverVersion=b"535.104.05",
        nvmlDeviceGetClockInfo=lambda _handle, kind: {1: 1980}[kind],
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)],
        **{f"nvmlDeviceGetCurrentClocks{kind}Reasons": mask},
    )
    device = opened(backend, pynvml=pynvml)
    assert device.conditions() == Conditions(clock_mhz=1980, throttle_reasons=reasons, other_processes=1)
    assert ("nvmlDeviceGetHandleByUUID", ("GPU-2b4e226c-662d-8eb5-2ff7-6251948a4286",)) in pynvml.asked
    assert pynvml.asked[-1][0] == "nvmlShutdown"
    assert device.driver == "535.104.05"


def test_a_gpu_that_supports_little_and_has_no_uuid(backend: Any) -> None:
    device = opened(backend, pynvml=Pynvml(nvmlDeviceGetHandleByIndex="gpu"), uuid=None)
    assert device.conditions() == Conditions()
    assert device.identity.warnings == []


def test_clocks_of_a_mig_partition_are_the_boards(backend: Any) -> None:
    pynvml = Pynvml(
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle="board",
        nvmlDeviceGetClockInfo=lambda handle, _kind: {"board": 1755}[handle],
    )
    device = opened(backend, pynvml=pynvml, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert device.conditions().clock_mhz == 1755
    assert ("nvmlDeviceGetHandleByUUID", ("MIG-2b4e226c-662d-8eb5-2ff7-6251948a4286",)) in pynvml.asked
    assert device.identity.partition == "1g.10gb"


ME, PARENT, NOBODY = os.getpid(), os.getppid(), 2**22 + 1  # above the largest process number of Linux


@pytest.mark.parametrize(
    ("pids", "others"),
    [([], 0), ([ME], 0), ([ME, PARENT], 1), ([PARENT], 1), ([NOBODY], 0)],  # one number of the host's is this process
)
def test_other_processes(backend: Any, pids: list[int], others: int) -> None:
    processes = [SimpleNamespace(pid=pid) for pid in pids]
    device = opened(backend, pynvml=Pynvml(nvmlDeviceGetComputeRunningProcesses=processes))
    assert device.conditions().other_processes == others


@pytest.mark.parametrize(
    ("pynvml", "problem"),
    [(Missing(), "pynvml is not installed"), (Pynvml(nvmlInit=lambda: 1 / 0), "pynvml: division by zero")],
    ids=["absent", "broken"],
)
@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("something else", None),
    ],
)
def test_without_nvml_the_kernel_tells_the_driver_and_a_warning_the_remedy(
    backend: Any, tmp_path: Path, pynvml: Any, problem: str, text: str, version: str | None
) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(text)
    device = NvidiaDevice(backend=backend(), pynvml=pynvml, root=tmp_path)
    assert (device.driver, device.conditions(), device.identity.power_limit_watts) == (version, Conditions(), None)
    (warning,) = device.identity.warnings
    assert problem in warning
    assert warning.endswith("pip install nvidia-ml-py")
    assert NvidiaDevice(backend=backend(), pynvml=pynvml, root=tmp_path / "absent").driver is None
