"""The table of `python -m benchmarks.noise`: coefficients of variation between sessions, and their shares."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.noise.__main__ import of_baselines, of_reports, table
from tests.selfcheck.simulated import simulated_sessions


def test_each_time_has_its_variation_and_the_shares_follow() -> None:
    reports = simulated_sessions(6, 4, noise=0.004)
    lines = table(of_reports(reports))
    case = reports[0].results[0].case.key
    values = [reading.value for report in reports for reading in report.results[0].readings if reading.timer]
    percent = 100 * statistics.stdev(values) / statistics.fmean(values)  # type: ignore[type-var]
    (row,) = [line for line in lines if line.startswith(f"| {case} |")]
    cells = row.split(" | ")
    assert (float(cells[3]), cells[4]) == (pytest.approx(percent, abs=0.005), "6 |")
    shown = [float(line.split(" | ")[3]) for line in lines if line.endswith("| 6 |")]
    assert len(shown) == 4
    (shares,) = [line for line in lines if line.startswith("all ")]
    assert shares.startswith(f"all 4: median {statistics.median(shown):.2f}"[:-1])
    within = round(100 * sum(each <= 0.5 for each in shown) / 4)
    assert f"{within} % within 0.5 %" in shares


FILE = """\
schema: 1
hardware: nvidia-h200
provenance: {torch: 2.11.0}
cases:
  short/forward:
    device_time_us: {sessions: [2.0, 3.0], timer: profile-cold}
    launches: 1
  long/forward:
    device_time_us: {sessions: [100.0, 100.2, 100.4], timer: queue-cold}
...
"""


def test_the_sessions_of_baselines(tmp_path: Path) -> None:
    """What is shorter than 3 µs counts among all, and not among those that are promised anything."""
    folder = tmp_path / "nvidia-h200"
    folder.mkdir()
    (folder / "suite.yaml").write_text(FILE)
    lines = table(of_baselines(folder))
    assert "| long/forward | queue-cold | 100.2 | 0.20 | 3 |" in lines
    assert "all 2: median 14.24 %; 50 % within 0.3 %, 50 % within 0.5 %" in lines
    assert "those from 3 µs to 10 ms, 1: median 0.20 %; 100 % within 0.3 %, 100 % within 0.5 %" in lines
