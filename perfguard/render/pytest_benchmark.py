"""JSON in the format of pytest-benchmark (`--benchmark-json`), for tools that read it. Times are in seconds."""

from __future__ import annotations

import json
import statistics
from typing import Any

from perfguard.model.errors import UsageError
from perfguard.model.records import CaseResult, Reading
from perfguard.render.overview import Overview


def pytest_benchmark(overview: Overview) -> str:
    """One benchmark for every timed reading of one report; the blocks are its rounds.

    Raises:
        UsageError: there are several lanes, or none has a report.
    """
    reports = [lane.report for lane in overview.lanes if lane.report is not None]
    if len(overview.lanes) != 1 or not reports:
        raise UsageError("--as pytest-benchmark: its format holds one machine; give one report at a time")
    (report,) = reports
    hardware = report.hardware
    document: dict[str, Any] = {
        "machine_info": {
            "node": hardware.slug,
            "processor": hardware.name,
            "machine": hardware.architecture,
            "python_version": report.toolchain.python,
            "torch_version": report.toolchain.torch,
            "triton_version": report.toolchain.triton,
        },
        "commit_info": {"id": report.commit, "dirty": bool(report.commit and report.commit.endswith("+"))},
        "benchmarks": [
            _benchmark(result, reading) for result in report.results for reading in result.readings if reading.timed
        ],
        "datetime": report.started,
        "version": f"perfguard {report.perfguard}",
    }
    return json.dumps(document, indent=2)


def _benchmark(result: CaseResult, reading: Reading) -> dict[str, Any]:
    assert isinstance(reading.value, int | float)
    seconds = sorted(1e-6 * block for block in reading.blocks) or [1e-6 * reading.value]
    first, third = _quartiles(seconds)
    mean = statistics.fmean(seconds)
    return {
        "group": result.case.suite,
        "name": f"{result.case.key}:{reading.metric}",
        "fullname": f"{result.case.nodeid}/{result.case.direction}:{reading.metric}",
        "params": None,
        "param": None,
        "extra_info": {"timer": reading.timer, "rejected_blocks": reading.rejected_blocks},
        "options": {},
        "stats": {
            "min": seconds[0],
            "max": seconds[-1],
            "mean": mean,
            "stddev": statistics.stdev(seconds) if len(seconds) > 1 else 0.0,
            "rounds": len(seconds),
            "median": 1e-6 * reading.value,
            "iqr": third - first,
            "q1": first,
            "q3": third,
            "iqr_outliers": 0,
            "stddev_outliers": 0,
            "outliers": "0;0",
            "ld15iqr": seconds[0],
            "hd15iqr": seconds[-1],
            "ops": 1 / mean if mean else 0.0,  # So does pytest-benchmark.
            "total": sum(seconds),
            "iterations": 1,
            "data": seconds,
        },
    }


def _quartiles(ordered: list[float]) -> tuple[float, float]:
    if len(ordered) == 1:
        return ordered[0], ordered[0]
    first, _, third = statistics.quantiles(ordered, n=4, method="inclusive")
    return first, third
