"""Time to a case's first result in a process with nothing compiled, tuned or cached, and torch.compile's share of it:
with empty caches, with the caches of the first process, and for one more equal layer.

The measuring process starts pytest for the one test with empty caches of Triton and torch.compile. That process takes
one step, forward and backward, and answers with the seconds since its start. These include Python, imports, collection,
inputs, compiling and tuning, as at the start of a training run. If something was compiled, it takes two more steps: the
first step minus the third is the compile time. Further processes do the same with the caches kept, and with candidates
of other numbers of layers.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression
from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.compiled import cached_graphs, traced
from perfguard.measure.metrics import times
from perfguard.measure.replay import steps
from perfguard.model.call import Call
from perfguard.model.errors import MeasurementError
from perfguard.model.records import Case, CaseResult, Reading
from perfguard.model.units import Unit
from perfguard.session.child import ChildCommand, Cold, Request
from perfguard.session.child_process import ask_child

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMER = "process"
_CACHES = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
_BINARIES = ("*.cubin", "*.hsaco", "*.spv")  # Each kernel that Triton compiled has one of these.

_NOTHING_US = 1.0  # A time is above 0.


def first_results(call: Call, case: Case, request: Cold, device: Device) -> list[CaseResult]:
    """In the cold process: take one step and return its total time and torch.compile's.

    Other calls of the same test return nothing.
    """
    if not request.wants(case):
        return []
    if request.layers is not None and isinstance(call.cold_start, Mapping):
        call = replace(call, fn=call.cold_start[request.layers]())
    (step,) = steps(replace(call, walk=()))
    with traced() as trace:
        first = _seconds(step, device)
    readings = [_time("cold_start_us", time.monotonic() - request.started)]
    if trace.frames:
        hits, misses = cached_graphs()
        _seconds(step, device)
        readings.append(_time("compile_time_us", first - _seconds(step, device)))
        if hits or misses:
            readings.append(_count("graph_cache_misses", misses))
            readings.append(_count("graph_cache_hits", hits, gated=False))
    return [CaseResult(case=case, readings=readings)]


def _seconds(step: Callable[[], object], device: Device) -> float:
    started = time.monotonic()
    step()
    device.synchronize()
    return time.monotonic() - started


def _time(metric: str, seconds: float) -> Reading:
    us = max(_NOTHING_US, 1e6 * seconds)
    limits = times.LIMITS[metric]
    return Reading(
        metric, Unit.MICROSECONDS, us, timer=TIMER, blocks=[us], promise=limits.promise, floor=limits.floor, drifts=True
    )  # fmt: skip


def _count(metric: str, value: int, details: str = "warm_compile_time_us", gated: bool = True) -> Reading:
    return Reading(metric, Unit.COUNT, value, drifts=True, rank=20, details=details, gated=gated)


def cold_starts(
    command: ChildCommand, slug: str, minutes: float, case: Case, depths: Sequence[int] = ()
) -> list[Reading]:
    """`cold_start_us`, and on a GPU `compiled_kernels`, the number of Triton kernels compiled. With torch.compile also
    `compile_time_us`, the same with caches kept (`warm_compile_time_us`, `graph_cache_misses`, `graph_cache_hits`), and
    the cost of one more layer over the numbers of layers in `depths` (`compile_layer_us`, `warm_compile_layer_us`).

    Args:
        command: starts a process as this one was started.
        slug: name of the run's hardware.
        minutes: time limit of one process.

    Raises:
        MeasurementError: a process gave no reading.
    """

    def started(layers: int | None, caches: Path) -> list[Reading]:
        """The readings of one process."""
        variables = {variable: str(caches / name) for variable, name in _CACHES.items()}
        request = Request(slug, tests=[case.nodeid], cold=Cold(case.suite, case.name, time.monotonic(), layers))
        reply = ask_child(command, request, minutes, name="the cold process", variables=variables)
        results = [] if reply.report is None else reply.report.results
        result = next((each for each in results if each.case.name == case.name and each.readings), None)
        if result is None:
            raise MeasurementError(
                f"cold_start_us: the process that started cold gave no result ({reply.problem or 'it ended well'}); "
                "run the test alone, or leave cold_start out"
            )
        return result.readings

    def cold_and_warm(layers: int | None) -> tuple[list[Reading], list[Reading]]:
        """Readings of a process with empty caches, and of one with the caches it left. The latter are empty if nothing
        was compiled."""
        with tempfile.TemporaryDirectory(prefix="perfguard-") as caches:
            cold = started(layers, Path(caches))
            compiled = sum(1 for pattern in _BINARIES for _ in (Path(caches) / "triton").rglob(pattern))
            cold = [each for each in cold if not each.metric.startswith("graph_cache")]  # The empty cache has no hits.
            warm = started(layers, Path(caches)) if _compiling(cold) else []
        return [*cold, _count("compiled_kernels", compiled, "cold_start_us")], warm

    readings, warm = cold_and_warm(None)
    if warm:
        points = [cold_and_warm(layers) for layers in depths]
        for name, at in (("compile_layer_us", 0), ("warm_compile_layer_us", 1)):
            seconds = [_compile_seconds(pair[at]) for pair in points]
            readings += [_time(name, linear_regression(depths, seconds).slope)] if depths else []
        (time_us,) = (msgspec.structs.replace(each, metric=f"warm_{each.metric}") for each in _compiling(warm))
        readings += [time_us, *(each for each in warm if each.metric.startswith("graph_cache"))]
    return readings


def _compiling(readings: Sequence[Reading]) -> list[Reading]:
    return [reading for reading in readings if reading.metric == "compile_time_us"]


def _compile_seconds(readings: Sequence[Reading]) -> float:
    return sum(1e-6 * float(reading.value) for reading in _compiling(readings) if isinstance(reading.value, float))
