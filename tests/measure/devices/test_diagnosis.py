"""Findings of the doctor on machines made of files and stand-in modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from perfguard.measure.devices import diagnose, doctor
from perfguard.measure.devices.device import Device
from perfguard.measure.devices.vendors import Finding
from perfguard.model.errors import DeviceError
from perfguard.testing.fake import FakeDevice


def modules(**present: Any) -> Callable[[str], ModuleType]:
    def load(name: str) -> Any:
        if name not in present:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return present[name]

    return load


def torch(**versions: str) -> SimpleNamespace:
    return SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(**versions))


def found(root: Path, open_device: Callable[[], Any] = FakeDevice, **present: Any) -> dict[str, Finding]:
    findings = doctor.findings(open_device, root=root, load=modules(**present))
    return {finding.topic: finding for finding in findings}


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_everything_missing_names_its_next_step(tmp_path: Path) -> None:
    def absent() -> Any:
        raise DeviceError("cuda: no device; look for one")

    findings = found(tmp_path, absent)
    assert all(findings[topic].missing and findings[topic].next_step for topic in ("torch", "triton", "device"))
    assert findings["system"].value
    assert findings["python"].value


@pytest.mark.parametrize(
    ("versions", "build"),
    [
        ({}, "CPU only"),
        ({"cuda": "13.0"}, "CUDA 13.0"),
        ({"hip": "6.4", "cuda": ""}, "ROCm 6.4"),
        ({"xpu": "20250101"}, "XPU 20250101"),
    ],
)
def test_build_of_torch(tmp_path: Path, versions: dict[str, str], build: str) -> None:
    assert found(tmp_path, torch=torch(**versions))["torch"] == Finding("torch", f"2.13.0 ({build})")


@pytest.mark.parametrize(
    ("path", "text", "vendor", "word"),
    [
        ("proc/driver/nvidia/version", "NVRM", "NVIDIA", "CUDA"),
        ("dev/kfd", "", "AMD", "ROCm"),
        ("sys/class/drm/renderD128/device/vendor", "0x8086\n", "Intel", "XPU"),
    ],
)
def test_driver_that_torch_cannot_use(tmp_path: Path, path: str, text: str, vendor: str, word: str) -> None:
    write(tmp_path / path, text)
    finding = found(tmp_path, torch=torch())[f"{vendor} driver"]
    assert "CPU only" in finding.missing
    assert word in finding.next_step
    version = {"CUDA": "cuda", "ROCm": "hip", "XPU": "xpu"}[word]
    assert found(tmp_path, torch=torch(**{version: "1"}))[f"{vendor} driver"].missing == ""


def test_a_file_of_the_system_that_cannot_be_read_is_no_driver(tmp_path: Path) -> None:
    (tmp_path / "sys/class/drm/renderD128/device/vendor").mkdir(parents=True)
    assert "Intel driver" not in found(tmp_path, torch=torch())


def test_torch_without_its_driver(tmp_path: Path) -> None:
    assert "no such driver" in found(tmp_path, torch=torch(cuda="13.0"))["driver"].missing


def test_tools_only_where_they_matter(tmp_path: Path) -> None:
    assert not {"pynvml", "amdsmi"} & set(found(tmp_path, torch=torch()))
    write(tmp_path / "dev/nvidiactl")
    write(tmp_path / "dev/kfd")
    findings = found(tmp_path, torch=torch(cuda="13"), pynvml=SimpleNamespace(__version__="13.0"))
    assert findings["pynvml"] == Finding("pynvml", "13.0")
    assert "ROCm" in findings["amdsmi"].next_step


def test_device_and_its_troubles(tmp_path: Path) -> None:
    device = FakeDevice("fake-slug")
    device.state = msgspec.structs.replace(device.state, throttle_reasons=["hw_slowdown"], other_processes=2)
    device._identity = msgspec.structs.replace(device.identity, warnings=["clocks: unknown; install x"])
    assert "device board" not in found(tmp_path, lambda: device)
    device.board = "cuda-3f9a01bc"
    findings = found(tmp_path, lambda: device)
    assert findings["device hardware"].value == "fake-slug"
    assert findings["device board"].value == "cuda-3f9a01bc"
    assert findings["device throttling"].value == "hw_slowdown"
    assert findings["other processes"].missing
    assert findings["device"] == Finding("device", "", "clocks: unknown", "install x")


def test_whether_the_profiler_works(tmp_path: Path) -> None:
    class Blind(FakeDevice):
        intervals = Device.intervals

    assert found(tmp_path)["device profiler"] == Finding("device profiler", "works")
    finding = found(tmp_path, Blind)["device profiler"]
    assert finding.missing == "fake-gpu: this kind of device reports no intervals of its work"
    assert finding.next_step


def test_what_can_be_measured_here(tmp_path: Path) -> None:
    class Cpu(FakeDevice):
        asynchronous = False

    def findings(open_device: Callable[[], Any], **present: Any) -> dict[str, Finding]:
        listed = doctor.findings(open_device, targets=["sm_90", "gfx942"], root=tmp_path, load=modules(**present))
        return {finding.topic: finding for finding in listed}

    here = findings(lambda: Cpu("cpu-mine"), torch=torch(), triton=SimpleNamespace(__version__="3.9"))
    assert "--perfguard-lane=cpu" in here["lane cpu"].value
    assert here["targets of kernels"].value == "sm_90, gfx942: registers, spills, shared memory, without these GPUs"
    assert "TRITON_INTERPRET=1" in here["Triton kernels"].value
    assert here["times"].value == "times of cpu-mine"
    assert here["times"].missing == "times of a GPU"
    gpu = findings(FakeDevice, torch=torch())
    assert gpu["times"] == Finding("times", "times of fake-gpu")
    assert gpu["targets of kernels"].next_step == "pip install 'perfguard[kernels]'"


def test_a_broken_check_is_a_finding(tmp_path: Path) -> None:
    def broken() -> Any:
        raise RuntimeError("driver fell over")

    finding = found(tmp_path, broken)["device"]
    assert "driver fell over" in finding.missing
    assert finding.next_step


def test_this_machine() -> None:
    findings = diagnose("cpu")
    assert {"system", "python", "torch", "triton", "device hardware"} <= {finding.topic for finding in findings}
    assert all(bool(finding.missing) == bool(finding.next_step) for finding in findings)
