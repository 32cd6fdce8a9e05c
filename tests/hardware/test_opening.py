"""`open_device` and its errors; what `import perfguard.hardware` must not load."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfguard import hardware
from perfguard.errors import DeviceError, UsageError
from perfguard.hardware import open_device


def test_fakes() -> None:
    assert open_device("fake").identity.slug == "fake-gpu"
    assert open_device("fake:other-slug").identity.slug == "other-slug"


def test_cpu() -> None:
    assert open_device("cpu").identity.vendor == "cpu"


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "cuda:-1", "cuda:", "cpu:1", "auto:0", "fake:", "CUDA"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="known: auto, cpu, cuda"):
        open_device(name)


@pytest.mark.parametrize(
    ("cuda", "xpu", "hip", "vendor"),
    [
        (True, True, None, "NvidiaDevice"),
        (True, False, "6.4", "AmdDevice"),
        (False, True, None, "IntelDevice"),
        (False, False, None, "CpuDevice"),
    ],
)
def test_auto_takes_what_torch_sees(
    backend: Any, monkeypatch: pytest.MonkeyPatch, cuda: bool, xpu: bool, hip: str | None, vendor: str
) -> None:
    monkeypatch.setattr(torch, "cuda", backend(int(cuda)))
    monkeypatch.setattr(torch, "xpu", backend(int(xpu)))
    monkeypatch.setattr(torch, "version", SimpleNamespace(hip=hip, cuda=None))
    assert type(open_device("auto")).__name__ == vendor


def test_index(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", backend(2))
    monkeypatch.setattr(torch, "version", SimpleNamespace(hip=None))
    assert str(open_device("cuda:1").torch_device) == "cuda:1"
    with pytest.raises(DeviceError, match="cuda:2"):
        open_device("cuda:2")


def test_absent_device(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", backend(0))
    with pytest.raises(DeviceError, match="perfguard doctor"):
        open_device("cuda")


def test_torch_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceError, match=r"^device 'cpu': torch .*perfguard\[kernels\]"):
        open_device("cpu")
    assert open_device("fake").identity.vendor == "fake"
    assert any(finding.topic == "torch" and finding.missing for finding in hardware.diagnose())


def test_importing_loads_no_torch() -> None:
    code = "import sys, perfguard.hardware, perfguard.hardware.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
