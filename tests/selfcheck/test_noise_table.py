"""The table of `python -m benchmarks.noise`: coefficients of variation between sessions, and their shares."""

from __future__ import annotations

import statistics

import msgspec
import pytest

from benchmarks.noise.__main__ import table
from tests.selfcheck.simulated import simulated_sessions


def test_each_time_has_its_variation_and_the_shares_follow() -> None:
    reports = simulated_sessions(6, 4, noise=0.004)
    lines = table(reports)
    case = reports[0].results[0].case.key
    values = [reading.value for report in reports for reading in report.results[0].readings if reading.timer]
    percent = 100 * statistics.stdev(values) / statistics.fmean(values)  # type: ignore[type-var]
    (row,) = [line for line in lines if line.startswith(f"| {case} |")]
    cells = row.split(" | ")
    assert (float(cells[3]), cells[4]) == (pytest.approx(percent, abs=0.005), "6 |")
    shown = [float(line.split(" | ")[3]) for line in lines if line.endswith("| 6 |")]
    assert len(shown) == 4
    assert lines[-1].startswith(f"median {statistics.median(shown):.2f}"[:-1])
    within = round(100 * sum(each <= 0.5 for each in shown) / 4)
    assert f"{within} % within 0.5 %" in lines[-1]


def test_one_session_varies_by_nothing() -> None:
    (report,) = simulated_sessions(1, 2)
    assert not any("within" in line for line in table([msgspec.structs.replace(report)]))
