"""The metrics on the processor that runs the tests: real operators, real allocations, real time."""

from __future__ import annotations

import pytest
import torch

from perfguard.hardware.cpu import CpuDevice
from perfguard.metrics import device_time, host_time, launches, memory
from perfguard.metrics.subject import Subject
from perfguard.records import Reading
from tests.metrics.reading import read_all

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


def test_time_is_wall_time_and_there_is_no_host_time(cpu: CpuDevice) -> None:
    subject = Subject(run=add_and_double, seconds=0.02, stored_timers={"device_time_us": "wall-u8"})
    (reading,) = device_time.read(subject, cpu)
    assert isinstance(reading.value, float)
    assert reading.value > 0
    assert reading.timer == "wall-u8"
    assert len(reading.blocks) >= 3
    assert host_time.read(subject, cpu) == []


def test_own_choice_of_calls_is_a_power_of_two(cpu: CpuDevice) -> None:
    (reading,) = device_time.read(Subject(run=add_and_double, seconds=0.02), cpu)
    assert reading.timer is not None
    calls = int(reading.timer.removeprefix("wall-u"))
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
