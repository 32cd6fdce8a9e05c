"""A case's first result in a process of its own, and how that process is asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from perfguard.judge.statistics import least_effect
from perfguard.model.call import Call
from perfguard.model.errors import MeasurementError
from perfguard.model.records import SCHEMA, Case, CaseResult, Hardware, Reading, Report, Toolchain
from perfguard.model.units import Unit
from perfguard.session import cold_start
from perfguard.session.child import ChildCommand, Cold, Request
from perfguard.session.child_process import Reply
from perfguard.session.cold_start import cold_starts, first_results
from perfguard.testing.fake import FakeDevice

CASE = Case("suite", "f[64]", "forward", "test_suite.py::test_f[64]")
ANY = Hardware("any", "fake", "Any", "x")
READING = Reading("cold_start_us", Unit.MICROSECONDS, 5e6, timer="process")


def test_the_first_result_with_its_gradients() -> None:
    calls: list[str] = []

    def double(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(lambda grad: calls.append("backward"))
        calls.append("forward")
        return 2 * x

    call = Call(double, (torch.ones(3, requires_grad=True),), lambda x: 2 * x)
    request = Cold("suite", "f[64]", time.monotonic() - 3.0)
    (result,) = first_results(call, CASE, request, FakeDevice(seed=1))
    (reading,) = result.readings
    assert calls[0] == "forward"
    assert "backward" in calls
    assert isinstance(reading.value, float)
    assert 3e6 <= reading.value < 60e6
    assert reading.timer == "process"
    assert first_results(call, Case("suite", "g", "forward"), request, FakeDevice(seed=1)) == []


@pytest.mark.parametrize(("seconds", "ratio"), [(10.0, 1.5), (2.0, 2.7), (100.0, 1.5)])
def test_below_half_as_much_again_and_two_seconds_nothing_fails(seconds: float, ratio: float) -> None:
    call = Call(lambda: None, (), lambda: None)
    (result,) = first_results(call, CASE, Cold("suite", "f[64]", 0.0), FakeDevice(seed=1))
    reading = result.readings[0]
    theta = least_effect(reading.promise, reading.floor, 1e6 * seconds)
    assert 2.718281828**theta == pytest.approx(ratio, rel=0.01)


COMMAND = ChildCommand(("--perfguard",), Path("/project"))


class Compiling:
    """Stands for processes that compile, longer with empty caches and for more layers; remembers how each began."""

    def __init__(self) -> None:
        self.begun: list[tuple[int | None, str]] = []

    def __call__(
        self, command: ChildCommand, request: Request, minutes: float, *, name: str, variables: dict[str, str]
    ) -> Reply:
        cold, kept = request.cold, Path(variables["TORCHINDUCTOR_CACHE_DIR"])
        assert cold is not None
        warm = kept.exists()
        assert variables["TORCHINDUCTOR_CACHE_DIR"] != variables["TRITON_CACHE_DIR"]
        assert request.tests == ["test_suite.py::test_f[64]"]
        assert cold.wants(CASE)
        assert 0 <= time.monotonic() - cold.started < 60
        for number in range(0 if warm else 3):
            binary = Path(variables["TRITON_CACHE_DIR"], str(number), "kernel.cubin")
            binary.parent.mkdir(parents=True)
            binary.write_bytes(b"")
        kept.mkdir(parents=True, exist_ok=True)
        layers = cold.layers
        self.begun.append((layers, "warm" if warm else "cold"))
        seconds = 2.0 if warm else 20.0
        if layers is not None:
            seconds = 1.0 + 0.25 * layers if warm else 10.0 + 1.5 * layers
        readings = [
            READING,
            Reading("compile_time_us", Unit.MICROSECONDS, 1e6 * seconds, timer="process"),
            Reading("graph_cache_misses", Unit.COUNT, 0 if warm else 4),
            Reading("graph_cache_hits", Unit.COUNT, 4 if warm else 0, gated=False),
        ]
        results = [CaseResult(CASE, readings=readings)]
        return Reply(Report(SCHEMA, ANY, Toolchain(), "", results=results))


def test_compiling_cold_and_warm_and_for_one_more_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Compiling()
    monkeypatch.setattr(cold_start, "ask_child", started)
    readings = cold_starts(COMMAND, "any", 1.0, CASE, (1, 4))
    values = {reading.metric: reading.value for reading in readings}
    assert started.begun == [(layers, caches) for layers in (None, 1, 4) for caches in ("cold", "warm")]
    assert len(values) == len(readings)
    assert values == {
        "cold_start_us": 5e6, "compiled_kernels": 3, "compile_time_us": 20e6, "warm_compile_time_us": 2e6,
        "graph_cache_misses": 0, "graph_cache_hits": 4, "compile_layer_us": pytest.approx(1.5e6),
        "warm_compile_layer_us": pytest.approx(0.25e6),
    }  # fmt: skip
    assert {reading.metric for reading in readings if reading.timed} == {name for name in values if name[-3:] == "_us"}


def test_without_layers_there_is_no_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Compiling()
    monkeypatch.setattr(cold_start, "ask_child", started)
    names = {reading.metric for reading in cold_starts(COMMAND, "any", 1.0, CASE)}
    assert started.begun == [(None, "cold"), (None, "warm")]
    assert "warm_compile_time_us" in names
    assert not any("layer" in name for name in names)


def test_what_compiling_takes_is_told_from_running() -> None:
    def slow_to_compile(graph: Any, _inputs: Any) -> Any:
        time.sleep(0.5)
        return graph.forward

    def slow_to_run(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        return 2 * x

    compiled = torch.compile(lambda x: 2 * x, backend=slow_to_compile)
    layers = {n: lambda: torch.compile(lambda x: 2 * x, backend="eager") for n in (1, 2)}
    call = Call(lambda x: compiled(slow_to_run(x)), (torch.ones(3),), lambda x: 4 * x, cold_start=layers)
    found = {}
    for depth in (None, 1):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()  # a process of its own has compiled nothing before
        (result,) = first_results(call, CASE, Cold("suite", "f[64]", time.monotonic(), depth), FakeDevice(seed=1))
        found[depth] = {reading.metric: float(reading.value) for reading in result.readings}  # type: ignore[arg-type]
    assert list(found[None]) == list(found[1]) == ["cold_start_us", "compile_time_us"]  # no inductor: no cache
    assert found[None]["compile_time_us"] > 0.5e6
    assert found[None]["cold_start_us"] > found[None]["compile_time_us"] + 0.2e6
    torch._dynamo.reset()


def test_a_process_without_a_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "ask_child", lambda *_, **__: Reply(None, "the process ended with status 7"))
    with pytest.raises(MeasurementError, match=r"^cold_start_us: .*status 7.*leave cold_start out$"):
        cold_starts(COMMAND, "any", 1.0, CASE)
