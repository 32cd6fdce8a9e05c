"""Times: which ones a device has, how they gate, and the time beside a rival's."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest
import torch

from perfguard.measure.devices.device import Device
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import read_timed
from perfguard.measure.metrics.subject import Subject
from perfguard.measure.metrics.times import BESIDE_RIVAL, CPU_TIME, DEVICE_TIME, HOST_TIME
from perfguard.measure.timers.timing import Workload
from perfguard.model.call import Call, Work
from perfguard.model.config import Settings
from perfguard.model.records import Case, CaseResult, Reading
from perfguard.session.case_pipeline import Runner
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice


def quiet() -> FakeDevice:
    return FakeDevice(session_noise=0, block_noise=0, launch_noise=0, seed=1)


def work() -> None:
    fake.launch("first", us=10.0, host_us=4.0)
    fake.launch("second", us=20.0, host_us=4.0)


def add_and_double() -> torch.Tensor:
    return (torch.ones(8, 8) + 1) * 2


def by_name(readings: list[Reading]) -> dict[str, Reading]:
    return {reading.metric: reading for reading in readings}


def test_a_device_with_a_queue_has_its_own_time_and_the_hosts() -> None:
    device, host = read_timed(Subject(run=work), quiet())
    assert (device.metric, device.value) == (DEVICE_TIME, pytest.approx(30.0))
    assert (host.metric, host.value) == (HOST_TIME, pytest.approx(8.0))
    assert (device.promise, device.floor, host.floor) == (0.03, 0.05, 2.0)
    assert device.timed
    assert device.drifts
    assert read_timed(Subject(run=work, timed=False), quiet()) == []
    assert [each.metric for each in read_timed(Subject(run=work), quiet(), {DEVICE_TIME})] == [HOST_TIME]


@pytest.mark.parametrize(("host_us", "promise"), [(100.0, 0.50), (8.0, 0.75)])
def test_short_host_times_promise_what_two_microseconds_allow(host_us: float, promise: float) -> None:
    subject = Subject(run=lambda: fake.launch("kernel", us=10.0, host_us=host_us))
    assert by_name(read_timed(subject, quiet()))[HOST_TIME].promise == pytest.approx(promise)


def test_stored_timers_reach_their_times() -> None:
    stored = {DEVICE_TIME: "queue-warm-u8", HOST_TIME: "host-low-u32"}
    subject = Subject(run=work, cache="warm", stored_timers=stored)
    assert {each.metric: each.timer for each in read_timed(subject, quiet())} == stored


def test_inputs_that_a_call_uses_up_are_restored_between_two_times() -> None:
    restored: list[int] = []
    read_timed(Subject(run=work, put_back=lambda: restored.append(1)), quiet())
    assert len(restored) >= 2


@pytest.fixture(scope="module")
def cpu() -> CpuDevice:
    return CpuDevice()


def test_on_a_cpu_the_time_of_one_thread_is_judged(cpu: CpuDevice) -> None:
    subject = Subject(run=add_and_double, seconds=0.02, stored_timers={CPU_TIME: "cpu-u8"})
    (judged,) = read_timed(subject, cpu)
    assert (judged.metric, judged.timer, judged.gated, judged.promise) == (CPU_TIME, "cpu-u8", True, 0.10)
    assert len(judged.blocks) >= 3


def measure(call: Call, cpu: CpuDevice) -> CaseResult:
    runner = Runner(cpu, Settings(case_seconds=0.05), copy_bytes_per_second=1e10)
    (result,) = runner.measure(call, Case("suite", "scaled[64]", "forward"))
    return result


def test_throughput_follows_from_the_time(cpu: CpuDevice) -> None:
    result = measure(Call(torch.sin, (torch.ones(1 << 16),), torch.sin, work=Work(bytes=1 << 19)), cpu)
    read = result.reading(CPU_TIME)
    assert read is not None
    assert result.throughput is not None
    assert result.throughput.bytes_per_second == pytest.approx((1 << 19) / (1e-6 * float(str(read.value))))


def test_the_ceiling_of_computation_is_a_product_and_asked_once(cpu: CpuDevice) -> None:
    """Of two dtypes: one that this processor multiplies, and one that torch does not."""
    state = torch.get_rng_state()
    rate = cpu.matmul_flop_per_second(torch.float32)
    assert 1e8 < rate < 1e15
    assert cpu.matmul_flop_per_second(torch.float32) == rate  # measured again, it would differ in some digit
    assert cpu.matmul_flop_per_second(torch.float8_e4m3fn) == 0.0
    assert torch.equal(state, torch.get_rng_state())


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_times_leave_what_is_compiled_as_it_was(cpu: CpuDevice, two_threads: None) -> None:
    """A CPU's time is read on one thread, for which everything is compiled anew: no count of compiling may show it, of
    this case or of one that follows."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    walk = ((torch.ones(3, 4),), (torch.ones(5, 4),))
    call = Call(torch.compile(scaled, backend="eager"), (torch.ones(2, 4),), scaled, walk=walk)
    names = ("graphs", "graph_operators", "graph_breaks", "eager_frames", "recompiles", "guards", "recompile_guards")
    first, second = (
        {each.metric: each.value for each in result.readings} for result in (measure(call, cpu), measure(call, cpu))
    )
    assert CPU_TIME in first
    assert first["recompiles"] == 1  # the second size makes it dynamic
    assert [first[name] for name in names] == [second[name] for name in names]


def beside(ours_us: float, theirs_us: float, device: Device, launches: int = 1, **options: object) -> Reading:
    """The reading beside a rival."""

    def ours() -> None:
        for _ in range(launches):
            fake.launch("ours", us=ours_us / launches)

    rival = Workload(lambda: fake.launch("theirs", us=theirs_us), options.get("cache", "cold"))  # type: ignore[arg-type]
    subject = Subject(ours, rival=lambda: rival, **options)  # type: ignore[arg-type]
    (reading,) = read_timed(subject, device, {DEVICE_TIME, HOST_TIME})
    return reading


def test_beside_a_rival_the_ratio_is_read() -> None:
    reading = beside(30.0, 50.0, quiet())
    assert (reading.metric, reading.value, reading.rival) == (BESIDE_RIVAL, pytest.approx(30.0), pytest.approx(50.0))
    assert "-beside-" in (reading.timer or "")
    assert reading.note == ""


def test_a_clock_that_moves_moves_both() -> None:
    """Sessions of a device whose clock is anywhere within 20 %: its time moves by as much, the ratio hardly."""
    times, shares = [], []
    for seed in range(16):
        device = FakeDevice(block_noise=0.02, seed=seed)
        device.slowdown = 1000 / (900 + 25 * (seed % 8))
        reading = beside(60.0, 50.0, device)
        assert isinstance(reading.value, float)
        times.append(reading.value / 60.0)
        shares.append(reading.value / reading.rival / 1.2)
    assert statistics.stdev(times) > 0.05
    assert statistics.stdev(shares) < 0.02
    assert abs(statistics.mean(shares) - 1) < 0.01


def test_more_launches_than_the_rival_are_noted() -> None:
    assert beside(60.0, 50.0, FakeDevice(seed=1), launches=6).note == "6 launches, its rival 1"


def test_a_fresh_process_reads_both_as_its_parent_did() -> None:
    stored = {BESIDE_RIVAL: "queue-warm-u8-beside-queue-warm-u4"}
    assert beside(30.0, 50.0, quiet(), cache="warm", stored_timers=stored).timer == stored[BESIDE_RIVAL]


def test_on_a_cpu_cpu_times_are_read_beside_a_rival(cpu: CpuDevice) -> None:
    rival = Workload(lambda: sum(range(200_000)))
    subject = Subject(lambda: sum(range(20_000)), rival=lambda: rival, seconds=0.1)
    (reading,) = read_timed(subject, cpu, {CPU_TIME})
    assert isinstance(reading.value, float)
    assert reading.value < reading.rival
    assert (reading.timer or "").startswith("cpu-u")
