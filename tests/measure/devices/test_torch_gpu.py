"""The primitives that all GPUs share, on a stand-in for torch.cuda with the fake device's clock."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from perfguard.measure.devices import gpu_queue, torch_gpu
from perfguard.measure.devices.torch_gpu import TorchGpu
from perfguard.model.errors import DeviceError
from perfguard.model.records import Conditions, Hardware


class Gpu(TorchGpu):
    """A vendor whose memory is the CPU's."""

    identity = Hardware("gpu", "none", "GPU", "none", cache_bytes=2**20)  # type: ignore[assignment]
    torch_device = torch.device("cpu")  # type: ignore[assignment]

    def conditions(self) -> Conditions:
        return Conditions()


def elapsed(gpu: Gpu, call: Any) -> float:
    start, end = gpu.event(), gpu.event()
    start.record()
    call()
    end.record()
    gpu.synchronize()
    return start.elapsed_us(end)


def test_opening_makes_the_device_current_or_reports_its_absence(backend: Any) -> None:
    machine = backend(4)
    Gpu(3, backend=machine)
    assert machine.current == 3
    with pytest.raises(DeviceError, match=r"^cuda: .*doctor"):
        Gpu(backend=backend(0))
    with pytest.raises(DeviceError, match=r"^cuda:2: .*cuda:0 to :1"):
        Gpu(2, backend=backend(2))


def test_sleep_is_calibrated(backend: Any) -> None:
    gpu = Gpu(backend=backend())
    gpu.sleep(1)
    gpu.synchronize()
    for microseconds in (10, 1000, 250_000):
        assert elapsed(gpu, lambda wait=microseconds: gpu.sleep(wait)) == pytest.approx(microseconds, abs=3)


@pytest.mark.parametrize("breakage", ["absent", "raises", "no wait"])
def test_without_a_spin_sleep_is_a_chain(backend: Any, monkeypatch: Any, breakage: str) -> None:
    machine = backend()

    def raises(cycles: int) -> None:
        raise RuntimeError("gone")

    machine._sleep = {"absent": None, "raises": raises, "no wait": lambda _cycles: None}[breakage]

    def product(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        machine.gpu.enqueue(300 * (left.shape[0] / 1024) ** 3)
        return out

    monkeypatch.setattr(torch, "mm", product)
    gpu = Gpu(backend=machine)
    gpu.sleep(1)
    gpu.synchronize()
    assert elapsed(gpu, lambda: gpu.sleep(1000)) == pytest.approx(1200, abs=5)


def test_no_wait_at_all(backend: Any, monkeypatch: Any) -> None:
    machine = backend()
    machine._sleep = None
    monkeypatch.setattr(gpu_queue, "_LARGEST_SIDE", 512)
    monkeypatch.setattr(torch, "mm", lambda *_factors, out: out)
    with pytest.raises(DeviceError, match="GPU: no wait"):
        Gpu(backend=machine).sleep(1)


def test_a_lost_device_has_no_memory_to_free(backend: Any) -> None:
    """An error here would end the run, whose cases say that the device is lost."""

    class Lost:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("CUDA error: device-side assert triggered")

    gpu = Gpu(backend=backend())
    gpu._backend = Lost()
    gpu.free_memory()


def test_events_not_passed(backend: Any) -> None:
    gpu = Gpu(backend=backend())
    start, end = gpu.event(), gpu.event()
    start.record()
    gpu.sleep(100)
    end.record()
    assert not end.query()
    with pytest.raises(DeviceError, match="synchronize"):
        start.elapsed_us(end)


@pytest.mark.parametrize(("counts", "peak"), [(True, 30), (False, 30 + 512)])
def test_peak_is_of_what_was_asked_for_where_that_is_counted(backend: Any, counts: bool, peak: int) -> None:
    machine = backend()
    machine.counts = counts
    machine.rounded = 512  # by what the allocator happens to have: no other than that of a fresh process
    held = machine.allocate(1000)
    assert Gpu(backend=machine).memory(lambda: machine.allocate(30).free()).peak == peak
    held.free()


def test_flush_writes_twice_the_cache_and_keeps_its_buffer(backend: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch_gpu, "_LEAST_FLUSH_BYTES", 1)
    gpu = Gpu(backend=backend())
    gpu.flush_cache()
    buffer = gpu._flush_buffer
    buffer.fill_(1)
    gpu.flush_cache()
    assert buffer.numel() == 2 * 2**20
    assert buffer.count_nonzero() == 0
    assert gpu._flush_buffer is buffer


def test_copy_counts_bytes_read_and_written(backend: Any, monkeypatch: Any) -> None:
    machine = backend()
    size = 2**16
    monkeypatch.setattr(torch_gpu, "_COPY_BYTES", size)

    class Buffer:
        def copy_(self, source: Any) -> None:
            machine.gpu.enqueue(500.0, host_us=5.0)

    monkeypatch.setattr(TorchGpu, "_buffer", lambda *_: Buffer())
    assert Gpu(backend=machine).copy_bytes_per_second() == pytest.approx(2 * size / 500e-6, rel=1e-6)


def test_no_memory_is_a_device_error(backend: Any, monkeypatch: Any) -> None:
    def full(*args: Any, **options: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(DeviceError, match="free the device's memory"):
        Gpu(backend=backend()).flush_cache()
