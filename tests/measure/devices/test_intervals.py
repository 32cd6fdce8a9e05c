"""Raw profiler events joined to the calls that launched them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # re-exported without saying so

from perfguard.measure.devices import intervals, kineto

CPU, GPU = DeviceType.CPU, DeviceType.CUDA


def event(name: str, start: int, end: int, *, device: Any = CPU, correlation: int = 0, annotation: bool = False) -> Any:
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start,
        end_ns=lambda: end,
        device_type=lambda: device,
        correlation_id=lambda: correlation,
        is_user_annotation=lambda: annotation,
    )


def call(start: int, end: int) -> Any:
    return event("perfguard call", start, end, annotation=True)


def work(start: int, end: int, correlation: int) -> Any:
    return event("kernel", start, end, device=GPU, correlation=correlation)


def test_work_belongs_to_the_call_that_launched_it() -> None:
    events = [
        call(1000, 2000),
        call(5000, 6000),
        event("cudaLaunchKernel", 1100, 1110, correlation=7),
        event("cuLaunchKernelEx", 5100, 5110, correlation=9),
        event("hipModuleLaunchKernel", 1200, 1210, correlation=8),
        work(5300, 5400, 9),
        work(1500, 1700, 8),
        work(1300, 1400, 7),
    ]
    assert intervals.joined(events, GPU) == [[(0.3, 0.4), (0.5, 0.7)], [(4.3, 4.4)]]


def test_a_flush_does_not_leak_into_the_call_after_it() -> None:
    events = [
        event("cudaMemsetAsync", 900, 910, correlation=3),
        call(1000, 2000),
        event("cudaLaunchKernel", 1100, 1110, correlation=4),
        work(990, 1050, 3),  # its end lies within the call
        work(1010, 1060, 3),  # and this would, with clocks a little apart
        work(1300, 1400, 4),
    ]
    assert intervals.joined(events, GPU) == [[(0.3, 0.4)]]


def test_an_operator_of_the_same_number_launches_nothing() -> None:
    events = [
        event("aten::mul", 500, 600, correlation=4),
        call(1000, 2000),
        event("cudaLaunchKernel", 1100, 1110, correlation=4),
        event("custom::op", 2500, 2600, correlation=4),
        work(1300, 1400, 4),
    ]
    assert intervals.joined(events, GPU) == [[(0.3, 0.4)]]


def test_work_of_an_unknown_runtime_is_joined_by_its_time() -> None:
    events = [call(1000, 2000), call(3000, 4000), work(3100, 3200, 5), work(2500, 2600, 6), work(500, 600, 7)]
    assert intervals.joined(events, GPU) == [[], [(2.1, 2.2)]]


def test_times_are_told_to_the_nanosecond() -> None:
    now = 1_795_000_000_000_000_000  # ns since 1970
    (((start, end),),) = intervals.joined([call(now, now + 2000), work(now + 300, now + 401, 5)], GPU)
    assert end - start == pytest.approx(0.101, abs=1e-6)


def test_regions_on_the_device_are_no_work() -> None:
    region = event("perfguard call", 1200, 1500, device=GPU, annotation=True)
    assert intervals.joined([call(1000, 2000), region], GPU) == [[]]


def test_each_call_is_waited_for_and_so_is_what_comes_before(monkeypatch: Any) -> None:
    order: list[str] = []

    def events(conducted: Any, _activities: Any) -> list[Any]:
        conducted()
        return []

    monkeypatch.setattr(kineto, "raw_events", events)
    run, flush, wait = (lambda word=word: order.append(word) for word in ("run", "flush", "wait"))
    intervals.of_calls([run, run], flush, wait, "cuda")
    assert order == ["flush", "wait", "run", "wait"] * 2
