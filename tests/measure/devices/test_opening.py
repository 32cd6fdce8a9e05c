"""`open_device` and its errors; what `import perfguard.measure.devices` must not load."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure import devices
from perfguard.measure.devices import find_devices, open_device
from perfguard.measure.devices.torch_gpu import device_key
from perfguard.measure.devices.vendors import slugify
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.model.errors import DeviceError, UsageError


@given(st.text(), st.sampled_from(["nvidia", "amd", "intel", "cpu"]))
def test_a_slug_is_a_folder_name(name: str, vendor: str) -> None:
    slug = slugify(name, vendor)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert slug.split("-").count(vendor) == 1


@pytest.mark.parametrize(
    ("name", "slug"), [("fake", "fake-gpu"), ("fake:other-slug", "other-slug"), ("cpu", CpuDevice().identity.slug)]
)
def test_names(name: str, slug: str) -> None:
    assert open_device(name).identity.slug == slug


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "cuda:-1", "cuda:", "cpu:1", "auto:0", "fake:", "CUDA"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError, match="known: auto, cuda"):
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


def test_torch_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceError, match=r"^device 'cuda': torch .*perfguard\[kernels\]"):
        open_device("cuda")
    assert open_device("auto").identity.vendor == "cpu"
    assert open_device("fake").identity.vendor == "fake"
    assert any(finding.topic == "torch" and finding.missing for finding in devices.diagnose())


def test_importing_loads_no_torch() -> None:
    code = "import sys, perfguard.measure.devices, perfguard.testing.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_simulated_devices_have_places() -> None:
    assert open_device("fake:1").identity.index == 1
    assert open_device("fake*2").key == open_device("fake").key == "fake-gpu-0"
    assert open_device("fake:1").key != open_device("fake:0").key
    for name in ("fake*0", "fake*", "fake*two", "cuda*2"):
        with pytest.raises(UsageError, match="known: auto"):
            open_device(name)


def test_the_devices_to_choose_from(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_devices("fake*2") == {"fake:0": "fake-gpu-0", "fake:1": "fake-gpu-1"}
    assert find_devices("fake") == {"fake": "fake-gpu-0"}
    assert find_devices("cpu") == {"cpu": "cpu"}
    monkeypatch.setattr(torch, "xpu", backend(0))
    monkeypatch.setattr(torch, "cuda", backend(0))
    assert find_devices("auto") == {"auto": "cpu"}
    with pytest.raises(DeviceError, match="cuda"):
        find_devices("cuda")
    gpus = backend(2)
    monkeypatch.setattr(torch, "cuda", gpus)
    monkeypatch.setattr(torch, "version", SimpleNamespace(hip=None, cuda="12.8"))
    for name in ("auto", "cuda"):
        found = find_devices(name)
        assert list(found) == ["cuda:0", "cuda:1"]
    assert gpus.current is None  # opening one would put a context on it
    assert found["cuda:1"] == open_device("cuda:1").key
    assert find_devices("cuda:1") == {"cuda:1": found["cuda:1"]}
    with pytest.raises(UsageError, match="known: auto"):
        find_devices("gpu")


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"uuid": "2b4e226c", "pci_bus_id": 3}, "cuda-2b4e226c"),
        ({"pci_domain_id": 1, "pci_bus_id": 0xC1, "pci_device_id": 0}, "cuda-0001-c1-00"),
        ({}, "cuda-1"),
    ],
)
def test_a_key_tells_one_device_from_another(properties: dict[str, Any], key: str) -> None:
    assert device_key("cuda", 1, SimpleNamespace(**properties)) == key
