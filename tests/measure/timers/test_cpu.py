"""CPU time on one thread: on a simulated processor, and on the one that runs the tests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from perfguard._compat.torch_compiler import forget_compiled
from perfguard.measure.compiled import traced
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.timers import cpu
from perfguard.measure.timers.timing import Workload
from perfguard.testing.fake import FakeDevice
from tests.measure.timers.metering import measured, quiet


class Cpu(FakeDevice):
    """A simulated processor; `used_us` is this process's share of it, without the time of others."""

    asynchronous = False
    used_us = 0.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Cpu:
    made: Cpu = quiet(Cpu)
    monkeypatch.setattr(cpu, "used_us", lambda: made.used_us)
    return made


@pytest.fixture
def threads() -> Iterator[int]:
    """Three threads, whatever the machine has; as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def busy(device: Cpu, us: float, others_us: Callable[[int], float] = lambda _: 0.0) -> Callable[[], None]:
    """A call of `us`; call number n waits for `others_us(n)` besides."""
    count = [0]

    def call() -> None:
        count[0] += 1
        device.used_us += us
        device.host_us += us + others_us(count[0])

    return call


@pytest.mark.parametrize(("us", "calls"), [(2_000.0, 1), (990.0, 2), (80.0, 16), (3.0, 512)])
def test_calls_per_sample_fill_a_millisecond(device: Cpu, us: float, calls: int) -> None:
    reading = measured(cpu.prepare, busy(device, us), device, seconds=0.05)
    assert reading.timer == f"cpu-u{calls}"
    assert reading.value == pytest.approx(us, rel=1e-3)


@pytest.mark.parametrize(
    ("stored", "calls"), [("u64", 64), ("u0", 16), ("u999999", 16), ("16", 16), ("other-u64", 16), ("", 16)]
)
def test_stored_id(device: Cpu, stored: str, calls: int) -> None:
    assert measured(cpu.prepare, busy(device, 80.0), device, stored=f"cpu-{stored}").timer == f"cpu-u{calls}"


def test_a_far_slower_candidate_keeps_its_id_and_the_budget(device: Cpu) -> None:
    reading = measured(cpu.prepare, busy(device, 10_000.0), device, stored="cpu-u65536")
    assert (reading.timer, reading.value) == ("cpu-u65536", pytest.approx(10_000.0))
    assert device.now_us() < 2e6


def test_cpu_time_excludes_waiting_for_other_processes(device: Cpu) -> None:
    """Every other call waits for its turn ten times as long as it runs."""
    beside = busy(device, 2_000.0, lambda n: 20_000.0 * (n % 2))
    assert measured(cpu.prepare, beside, device).value == pytest.approx(2_000.0)


def test_cpu_time_waits_for_the_end_of_a_burst(device: Cpu) -> None:
    """Other work makes calls up to three times as slow for a while, never faster: the floor lies behind it."""
    chance = random.Random(1)

    def call() -> None:
        us = 500.0 if device.host_us > 700_000 else 500.0 * chance.uniform(1.2, 3.0) ** 2
        device.used_us += us
        device.host_us += us

    reading = measured(cpu.prepare, call, device, seconds=1.5, stored="cpu-u1")
    assert reading.value == pytest.approx(500.0)
    assert len(reading.blocks) == 3


def test_without_a_floor_the_time_limit_ends_the_blocks(device: Cpu) -> None:
    count = [0]

    def call() -> None:
        count[0] += 1
        device.used_us += 500.0 * 1.02 ** (count[0] // 20)
        device.host_us += 500.0

    measured(cpu.prepare, call, device, seconds=0.5, stored="cpu-u1")
    assert device.host_us < 1.2e6


def test_the_process_is_charged_for_work_and_not_for_sleep() -> None:
    before = cpu.used_us()
    time.sleep(0.05)
    slept = cpu.used_us() - before
    before, started = cpu.used_us(), time.perf_counter()
    sum(range(2_000_000))
    worked, wall_us = cpu.used_us() - before, 1e6 * (time.perf_counter() - started)
    assert slept < 5_000 < worked
    assert worked < 1.1 * wall_us  # one thread's


def test_cpu_time_is_one_threads_and_the_users_threads_are_restored(threads: int) -> None:
    seen, fails = set(), [False]

    def call() -> None:
        seen.add(torch.get_num_threads())
        if fails[0]:
            raise RuntimeError("out of registers")
        sum(range(1000))

    device = CpuDevice()
    meter = cpu.prepare(Workload(call), device, seconds=0.05, stored=None)
    assert (meter.block() or 0) > 0
    assert (seen, torch.get_num_threads()) == ({1}, threads)
    fails[0] = True
    for fail in (meter.block, lambda: cpu.prepare(Workload(call), device, seconds=0.01, stored=None)):
        with pytest.raises(RuntimeError, match="out of registers"):
            fail()
        assert torch.get_num_threads() == threads


def test_compilation_for_one_thread_happens_in_the_warm_up(threads: int) -> None:
    """The compiler's guards hold the number of threads: no block pays for that, and the user's code is kept."""
    forget_compiled()
    compiled = torch.compile(lambda x: x.sin() * 2, backend="eager")
    x = torch.ones(64)
    compiled(x)
    with traced() as warming:
        meter = cpu.prepare(Workload(lambda: compiled(x)), CpuDevice(), seconds=0.05, stored=None)
    assert len(warming.frames) == 1
    with traced() as after:
        meter.block()
        compiled(x)  # by the user, on all threads
        meter.block()
    assert after.frames == []
    forget_compiled()
