"""The metrics on the processor that runs the tests: real operators, real allocations, real time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from perfguard.measure.devices.device import Device
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import launches, memory, read_timed, times
from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers.timing import Blocks, Meter
from perfguard.model.call import Call, Work
from perfguard.model.config import Settings
from perfguard.model.records import Case, CaseResult, Reading
from perfguard.session.case_pipeline import Runner
from tests.measure.metrics.reading import read_all

MIB = 2**20


@pytest.fixture(scope="module")
def cpu() -> CpuDevice:
    return CpuDevice()


def add_and_double() -> torch.Tensor:
    return (torch.ones(8, 8) + 1) * 2


def by_name(readings: list[Reading]) -> dict[str, Reading]:
    return {reading.metric: reading for reading in readings}


def test_operators_are_counted_and_named(cpu: CpuDevice) -> None:
    readings = by_name(launches.read(Subject(run=add_and_double), cpu))
    assert list(readings)[:2] == ["operators", "operator_names"]
    assert readings["operators"].value == 3
    assert readings["operator_names"].value == ["aten.ones", "aten.add.Tensor", "aten.mul.Tensor"]
    assert readings["operators"].gated
    assert not readings["operator_names"].gated
    assert all(reading.portable and reading.drifts for reading in readings.values())


def test_one_operator_more_is_one_more(cpu: CpuDevice) -> None:
    before, *_ = launches.read(Subject(run=add_and_double), cpu)
    after, *_ = launches.read(Subject(run=lambda: add_and_double().t().contiguous()), cpu)
    assert isinstance(before.value, int)
    assert isinstance(after.value, int)
    assert after.value > before.value


def test_peak_of_a_known_pattern(cpu: CpuDevice) -> None:
    def temporary_of_eight_mib() -> torch.Tensor:
        temporary = torch.empty(8 * MIB, dtype=torch.uint8)
        result = torch.empty(4 * MIB, dtype=torch.uint8)
        del temporary
        return result

    reading, *_ = memory.read(Subject(run=temporary_of_eight_mib), cpu)
    assert isinstance(reading.value, int)
    assert reading.value == pytest.approx(12 * MIB, rel=0.01)
    leaner, *_ = memory.read(Subject(run=lambda: torch.empty(4 * MIB, dtype=torch.uint8)), cpu)
    assert leaner.value == pytest.approx(4 * MIB, rel=0.01)
    assert (reading.floor, reading.portable) == (4096, False)


def test_cpu_time_is_judged_and_wall_time_is_shown(cpu: CpuDevice) -> None:
    stored = {"cpu_time_us": "cpu-u8", "wall_time_us": "wall-u4"}
    judged, shown = read_timed(Subject(run=add_and_double, seconds=0.02, stored_timers=stored), cpu)
    assert {judged.metric: judged.timer, shown.metric: shown.timer} == stored
    assert (judged.gated, judged.promise, shown.gated) == (True, 0.10, False)
    for reading in (judged, shown):
        assert isinstance(reading.value, float)
        assert reading.value > 0
        assert len(reading.blocks) >= 3


def test_time_on_the_wall_is_no_conductors_business_and_cheap(cpu: CpuDevice) -> None:
    def asked(metric: str, meter: Meter, device: Device, seconds: float) -> Blocks:
        raise AssertionError(metric)

    started = cpu.now_us()
    (reading,) = read_timed(Subject(run=add_and_double, collect=asked), cpu, {times.CPU_TIME})
    assert reading.metric == "wall_time_us"
    assert cpu.now_us() - started < 0.5e6  # 0.1 s on a machine of one's own


def test_an_untimed_call_has_no_times(cpu: CpuDevice) -> None:
    assert read_timed(Subject(run=add_and_double, timed=False), cpu) == []


def test_own_choice_of_calls_is_a_power_of_two(cpu: CpuDevice) -> None:
    (reading,) = read_timed(Subject(run=add_and_double, seconds=0.02), cpu, {times.WALL_TIME})
    assert reading.timer is not None
    calls = int(reading.timer.removeprefix("cpu-u"))
    assert calls > 0
    assert calls & (calls - 1) == 0


def test_backward_pass(cpu: CpuDevice) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    output = (x * x).sum(0)
    upstream = torch.randn(6)

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad([output], [x], [upstream], retain_graph=True)

    readings = by_name(read_all(Subject(run=backward, direction="backward", timed=False, args=(x,)), cpu))
    assert readings["contract"].value == "(float32[4,6] strides (6,1))"
    operators = readings["operators"].value
    assert isinstance(operators, int)
    assert operators > 1


def test_nothing_that_counts_stays_on_for_the_timers(cpu: CpuDevice) -> None:
    """Times are read after counting: a dispatch mode or a profiler left behind would slow them."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    read_all(Subject(run=add_and_double, timed=False), cpu)
    assert _get_current_dispatch_mode() is None
    assert not torch._C._autograd._profiler_enabled()


CASE = Case("suite", "scaled[64]", "forward", "tests/test_suite.py::test_scaled[64]")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def measure(call: Call, cpu: CpuDevice) -> CaseResult:
    runner = Runner(cpu, Settings(case_seconds=0.05), copy_bytes_per_second=1e10)
    (result,) = runner.measure(call, CASE)
    return result


def test_throughput_is_what_the_user_waits_for(cpu: CpuDevice) -> None:
    """By time on the wall: what is judged ran on one thread."""
    result = measure(Call(torch.sin, (torch.ones(1 << 16),), torch.sin, work=Work(bytes=1 << 19)), cpu)
    wall, judged = result.reading("wall_time_us"), result.reading("cpu_time_us")
    assert wall is not None
    assert judged is not None
    assert result.throughput is not None
    assert isinstance(wall.value, float)
    assert result.throughput.bytes_per_second == pytest.approx((1 << 19) / (1e-6 * wall.value))
    assert judged.value != wall.value


def test_times_leave_what_is_compiled_as_it_was(cpu: CpuDevice, two_threads: None) -> None:
    """A CPU's time is read on one thread, for which everything is compiled anew: no count of compiling may show it, of
    this case or of one that follows."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    call = Call(
        torch.compile(scaled, backend="eager"),
        (torch.ones(2, 4),),
        scaled,
        walk=((torch.ones(3, 4),), (torch.ones(5, 4),)),
    )
    names = ("graphs", "graph_operators", "graph_breaks", "eager_frames", "recompiles", "guards", "recompile_guards")

    def counts(result: CaseResult) -> list[object]:
        return [reading.value for reading in result.readings if reading.metric in names]

    first, second = measure(call, cpu), measure(call, cpu)
    assert first.reading("cpu_time_us") is not None
    assert len(counts(first)) == len(names)
    assert counts(first) == counts(second)
    assert first.reading("recompiles").value == 1  # type: ignore[union-attr]  # the second size makes it dynamic
