"""The metric modules together: found, ordered, and each describing its readings."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from perfguard.measure import metrics
from perfguard.measure.devices import fake
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.metrics import all_metrics, read_exact, read_timed
from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Better
from tests.measure.metrics.reading import read_all


def names() -> list[str]:
    return [getattr(metric, "__name__", "").rpartition(".")[2] for metric in all_metrics()]


def work() -> int:
    with fake.allocate(3 * 2**20):
        fake.launch("first", us=10.0, host_us=4.0)
        fake.launch("second", us=20.0, host_us=4.0)
    return 7


def quiet() -> FakeDevice:
    return FakeDevice(session_noise=0, block_noise=0, launch_noise=0, seed=1)


def test_exact_metrics_come_before_timed_ones() -> None:
    exact = [name for name, metric in zip(names(), all_metrics(), strict=True) if not metric.TIMED]
    assert names()[: len(exact)] == exact
    assert {"contract", "launches", "memory"} <= set(exact)
    assert exact[-1] == "compilation"  # leaves nothing compiled for others to count


def test_a_new_file_is_a_new_metric(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("more")
    (folder / "abacus.py").write_text("TIMED = False\ndef read(subject, device): return []\n")
    (folder / "base.py").write_text("TIMED = False  # no read(): no metric\n")
    before = names()
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(folder)])
    loaded = dict(sys.modules)
    try:
        assert names() == ["abacus", *before]
    finally:
        for name in set(sys.modules) - set(loaded):
            del sys.modules[name]


def test_the_modules_are_the_same_each_time() -> None:
    assert all(isinstance(metric, ModuleType) for metric in all_metrics())
    assert all_metrics() == all_metrics()


def test_readings_of_a_gpu_case() -> None:
    readings = {reading.metric: reading for reading in read_all(Subject(run=work), quiet())}
    assert list(readings)[-2:] == ["device_time_us", "host_time_us"]
    assert {"contract", "fingerprint", "launches", "kernels", "peak_memory_bytes"} <= set(readings)
    assert readings["contract"].value == "int"
    assert readings["launches"].value == 2
    assert readings["kernels"].value == ["first", "second"]
    assert readings["peak_memory_bytes"].value == 3 * 2**20
    assert readings["device_time_us"].value == pytest.approx(30.0)
    assert readings["host_time_us"].value == pytest.approx(8.0)


def test_how_the_readings_gate() -> None:
    readings = {reading.metric: reading for reading in read_all(Subject(run=work), quiet())}
    contract, launches, kernels = (readings[name] for name in ("contract", "launches", "kernels"))
    memory, device_time, host_time = (
        readings[name] for name in ("peak_memory_bytes", "device_time_us", "host_time_us")
    )
    assert (contract.better, contract.portable, contract.drifts) == (Better.SAME, True, False)
    assert (launches.better, launches.gated, launches.drifts) == (Better.LOWER, True, True)
    assert (kernels.better, kernels.gated, kernels.drifts) == (Better.SAME, False, True)
    assert (memory.tolerance, memory.floor, memory.drifts) == (0.005, 2**20, True)
    assert (device_time.promise, device_time.floor, device_time.drifts) == (0.03, 0.05, True)
    assert (host_time.floor, host_time.drifts) == (2.0, True)
    assert [reading.metric for reading in readings.values() if reading.timed] == ["device_time_us", "host_time_us"]


@pytest.mark.parametrize(("host_us", "promise"), [(100.0, 0.50), (8.0, 0.75)])
def test_short_host_times_promise_what_two_microseconds_allow(host_us: float, promise: float) -> None:
    subject = Subject(run=lambda: fake.launch("kernel", us=10.0, host_us=host_us))
    readings = {reading.metric: reading for reading in read_all(subject, quiet())}
    assert readings["host_time_us"].promise == pytest.approx(promise)
    assert readings["device_time_us"].promise == 0.03


def test_an_untimed_subject_has_exact_readings_only() -> None:
    readings = read_all(Subject(run=work, timed=False), quiet())
    assert {"contract", "launches", "kernels", "peak_memory_bytes"} <= {reading.metric for reading in readings}
    assert not any(reading.timed for reading in readings)


def test_times_that_need_no_reading_are_left_out() -> None:
    subject, device = Subject(run=work), quiet()
    assert not any(reading.timed for reading in read_exact(subject, device))
    assert [reading.metric for reading in read_timed(subject, device)] == ["device_time_us", "host_time_us"]
    assert [reading.metric for reading in read_timed(subject, device, {"device_time_us"})] == ["host_time_us"]


def test_stored_timers_reach_their_metrics() -> None:
    stored = {"device_time_us": "queue-warm-u8", "host_time_us": "host-low-u32"}
    subject = Subject(run=work, cache="warm", stored_timers=stored)
    timers = {reading.metric: reading.timer for reading in read_all(subject, quiet()) if reading.timed}
    assert timers == stored


def test_blocks_and_their_spread_are_kept() -> None:
    reading = next(reading for reading in read_all(Subject(run=work), FakeDevice(seed=1)) if reading.timed)
    assert len(reading.blocks) >= 3
    assert reading.spread > 0
    assert reading.rejected_blocks == 0


def test_a_call_that_waits_for_the_device_is_timed_by_the_profiler() -> None:
    device = quiet()

    def waits() -> None:
        work()
        device.synchronize()

    readings = {reading.metric: reading for reading in read_all(Subject(run=waits), device)}
    assert readings["device_time_us"].timer == "profile-cold"
    assert readings["device_time_us"].value == pytest.approx(30.0)
    assert readings["host_time_us"].timer == "host-low-u16-blocked"


def test_first_call_does_not_count() -> None:
    """Compiling and autotuning launch and allocate; the second call is what is guarded."""
    for metric in all_metrics():
        calls: list[int] = []

        def tunes(calls: list[int] = calls) -> None:
            calls.append(1)
            if len(calls) == 1:
                with fake.allocate(2**30):
                    fake.launch("tuning")
            work()

        for reading in metric.read(Subject(run=tunes, timed=False), quiet()):
            assert reading.value not in (3, 2**30, ["tuning", "first", "second"])
            assert reading.metric != "peak_memory_bytes" or reading.value == 3 * 2**20


@pytest.mark.parametrize(
    "metric",
    [metric for metric in all_metrics() if metric.read(Subject(run=work), quiet())],  # not those of other devices
    ids=lambda metric: metric.__name__.rpartition(".")[2],
)
def test_exceptions_of_the_call_propagate(metric: metrics.Metric) -> None:
    def broken() -> None:
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        metric.read(Subject(run=broken), quiet())
