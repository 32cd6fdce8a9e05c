"""CPU time on one thread: on a simulated processor's clock, and on the processor that runs the tests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from perfguard._compat.torch_compiler import forget_compiled
from perfguard.measure.compiled.trace import traced
from perfguard.measure.devices.cpu import CpuDevice
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers import cpu, wall
from perfguard.measure.timers.timing import Workload
from tests.measure.timers.metering import measured


class Cpu(FakeDevice):
    """A simulated processor; `used_us` is what this process had of it, without the time of others."""

    asynchronous = False
    used_us = 0.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Cpu:
    made = Cpu(session_noise=0, block_noise=0, launch_noise=0, seed=1)
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


@pytest.mark.parametrize(
    ("us", "timer"), [(2_000.0, "cpu-u1"), (990.0, "cpu-u2"), (80.0, "cpu-u16"), (3.0, "cpu-u512")]
)
def test_calls_per_sample_fill_a_millisecond(device: Cpu, us: float, timer: str) -> None:
    timing = measured(cpu, busy(device, us), device, seconds=0.05)
    assert timing.timer == timer
    assert timing.value_us == pytest.approx(us, rel=1e-3)
    assert timing.floor_us <= 0.002 * us or timing.floor_us == 0.05


def test_what_others_use_is_not_in_it(device: Cpu) -> None:
    """Every other call waits for its turn ten times as long as it runs: only the wall's time trebles."""
    alone, beside = busy(device, 2_000.0), busy(device, 2_000.0, lambda n: 20_000.0 * (n % 2))
    wall_us = [measured(wall, call, device, stored="wall-u4").value_us for call in (alone, beside)]
    assert wall_us[1] > 3 * wall_us[0]
    assert measured(cpu, beside, device).value_us == pytest.approx(2_000.0)


def test_a_burst_of_other_work_is_waited_out(device: Cpu) -> None:
    """It makes calls up to three times as dear for a while, never cheaper: the floor is found behind it."""
    chance = random.Random(1)

    def call() -> None:
        us = 500.0 if device.host_us > 700_000 else 500.0 * chance.uniform(1.2, 3.0) ** 2
        device.used_us += us
        device.host_us += us

    timing = measured(cpu, call, device, seconds=1.5, stored="cpu-u1")
    assert timing.value_us == pytest.approx(500.0)
    assert len(timing.blocks) == 3


def test_without_a_floor_the_time_ends_it(device: Cpu) -> None:
    count = [0]

    def call() -> None:
        count[0] += 1
        device.used_us += 500.0 * 1.02 ** (count[0] // 20)
        device.host_us += 500.0

    started = device.host_us
    timing = measured(cpu, call, device, seconds=0.5, stored="cpu-u1")
    assert device.host_us - started < 1.2e6
    assert timing.blocks[0] < timing.blocks[1] < timing.blocks[2]


def test_a_stored_id_is_used_again_and_a_far_slower_candidate_keeps_the_budget(device: Cpu) -> None:
    timing = measured(cpu, busy(device, 500.0), device, stored="cpu-u64")
    assert (timing.timer, timing.value_us) == ("cpu-u64", pytest.approx(500.0))
    started = device.now_us()
    timing = measured(cpu, busy(device, 10_000.0), device, seconds=1.0, stored="cpu-u65536")
    assert (timing.timer, timing.value_us) == ("cpu-u65536", pytest.approx(10_000.0))
    assert device.now_us() - started < 2e6


def test_what_compiling_takes_does_not_choose_the_method(device: Cpu) -> None:
    """The first call on one thread may compile for seconds; how many calls fill a sample, the others tell."""
    first = [5e6]

    def call() -> None:
        device.used_us += 80.0
        device.host_us += 80.0 + (first.pop() if first else 0.0)

    assert measured(cpu, call, device, seconds=1.0).timer == "cpu-u16"


@pytest.mark.parametrize("stored", ["cpu-u0", "cpu-u999999", "cpu-16", "wall-u16", "", None])
def test_stored_id_that_cannot_be_honoured(device: Cpu, stored: str | None) -> None:
    assert measured(cpu, busy(device, 80.0), device, stored=stored).timer == "cpu-u16"


def test_the_process_is_charged_for_work_and_not_for_sleep() -> None:
    before = cpu.used_us()
    time.sleep(0.05)
    slept = cpu.used_us() - before
    before, started = cpu.used_us(), time.perf_counter()
    sum(range(2_000_000))
    worked, wall_us = cpu.used_us() - before, 1e6 * (time.perf_counter() - started)
    assert slept < 5_000 < worked
    assert worked < 1.1 * wall_us  # one thread's


def test_all_calls_run_on_one_thread_and_the_user_has_his_own_again(threads: int) -> None:
    seen = set()

    def call() -> None:
        seen.add(torch.get_num_threads())
        sum(range(1000))

    meter = cpu.prepare(Workload(call), CpuDevice(), seconds=0.05, stored=None)
    assert torch.get_num_threads() == threads
    assert meter.block() > 0  # type: ignore[operator]
    assert (seen, torch.get_num_threads()) == ({1}, threads)
    wall.prepare(Workload(call), CpuDevice(), seconds=0.05, stored=None).block()
    assert seen == {1, threads}


def test_a_call_that_fails_leaves_the_threads_as_they_were(threads: int) -> None:
    fails = [False]

    def call() -> None:
        if fails[0]:
            raise RuntimeError("out of registers")

    meter = cpu.prepare(Workload(call), CpuDevice(), seconds=0.01, stored=None)
    fails[0] = True
    with pytest.raises(RuntimeError, match="out of registers"):
        meter.block()
    assert torch.get_num_threads() == threads
    with pytest.raises(RuntimeError, match="out of registers"):
        cpu.prepare(Workload(call), CpuDevice(), seconds=0.01, stored=None)
    assert torch.get_num_threads() == threads


def test_what_is_compiled_for_one_thread_is_compiled_in_the_warm_up(threads: int) -> None:
    """The compiler's guards hold the number of threads: no block pays for that, and what was there is there again."""
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
