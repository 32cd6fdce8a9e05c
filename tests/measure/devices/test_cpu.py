"""The CPU for real, and identities of other CPUs from files written for the test."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from perfguard.measure.devices.vendors import cpu
from perfguard.measure.devices.vendors.cpu import CpuDevice

XEON = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz\n\nprocessor\t: 1\nmodel name\t: x"
SHORT = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n"
CLOUD = "cpu family\t: 6\nmodel\t\t: 79\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


@pytest.mark.parametrize(
    ("cpuinfo", "slug"),
    [
        (XEON, "cpu-xeon-platinum-8481c"),
        (SHORT, "cpu-epyc-family-25-model-17"),
        (CLOUD, "cpu-xeon-family-6-model-79"),
        ("model name : AMD EPYC 9354 32-Core Processor", "cpu-epyc-9354"),
        ("model name : 13th Gen Intel(R) Core(TM) i7-13700H", "cpu-13th-gen-core-i7-13700h"),
        (ARM, f"cpu-{platform.machine().replace('_', '-')}-implementer-0x41-part-0xd0c"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_slug_names_the_model_whatever_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, slug: str, threads: int
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    identity = CpuDevice(root=tmp_path).identity
    assert (identity.slug, identity.target) == (slug, "cpu")
    assert identity.units == min(threads, len(os.sched_getaffinity(0)))


def test_a_machine_without_these_files_still_has_a_name(tmp_path: Path) -> None:
    identity = CpuDevice(root=tmp_path).identity
    assert identity.slug.startswith("cpu-")
    assert identity.cache_bytes is None


def test_last_level_caches_are_added_up_once_each(tmp_path: Path) -> None:
    for number, core in enumerate(sorted(os.sched_getaffinity(0))):
        caches = [(1, "32K", str(core)), (2, "1024K", str(core)), (3, "16M", "0-99")]
        if number == 0:
            caches.append((3, "16M", "100-199"))
        for index, (level, size, shared) in enumerate(caches):
            folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(text + "\n")
    assert cpu.cache_bytes(tmp_path) == 32 * 2**20


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)])
def test_a_quota_limits_the_cores_in_use(
    tmp_path: Path, quota: str, cores: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # a worker of a run over all cores has one
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota + "\n")
    assert cpu.cores_in_use(tmp_path) == (cores or min(2, len(os.sched_getaffinity(0))))


@torch.library.custom_op("perfguard_tests::negate", mutates_args=())
def negate(x: torch.Tensor) -> torch.Tensor:
    return x.abs().neg()


negate.register_autograd(lambda _context, gradient: gradient.neg())


def test_launches_are_operators_below_autograd() -> None:
    device = CpuDevice()
    x = torch.ones(4, requires_grad=True)
    assert list(device.activity(lambda: x * 2 + 1).launches) == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert list(device.activity(lambda: negate(x)).launches) == ["perfguard_tests.negate"]  # and none of those in it
    y = negate(x).sum()
    assert "aten.neg" in device.activity(lambda: torch.autograd.grad(y, x)).launches
    assert not device.activity(lambda: None).launches


def test_compiled_regions_are_not_counted_as_eager() -> None:
    runs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Any:
        def run(*inputs: torch.Tensor) -> Any:
            runs.append(1)
            return graph(*inputs)

        return run

    compiled = torch.compile(lambda x: torch.relu(x * 2) + 1, backend=backend)
    x = torch.ones(4)
    compiled(x)
    assert CpuDevice().activity(lambda: compiled(x)).launches == ["aten.mul.Tensor", "aten.relu", "aten.add.Tensor"]
    assert len(runs) == 2


def test_the_copy_ceiling_counts_bytes_read_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "_LEAST_COPY_BYTES", 1 << 20)
    device = CpuDevice(root=tmp_path)
    ticks = iter(range(0, 10**6, 50))
    monkeypatch.setattr(device, "now_us", lambda: float(next(ticks)))
    assert device.copy_bytes_per_second() == pytest.approx(2 * (1 << 20) / 50e-6)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")
def test_a_settled_process_keeps_freed_memory() -> None:
    """In a process of its own, since it stays so. Two large blocks are freed at the top of the heap in each call."""
    script = """
import resource, torch
from perfguard.measure.devices.vendors.cpu import CpuDevice
CpuDevice().settle()
def call():
    return torch.ones(3_000_000).add_(1.0)
for _ in range(10):
    call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    call()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200  # 12 MB anew are some 3,000 pages a call
