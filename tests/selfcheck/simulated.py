"""Sessions of a simulated suite, drawn from noise that is known."""

from __future__ import annotations

import numpy as np

from perfguard.model.records import SCHEMA, Case, CaseResult, Conditions, Hardware, Reading, Report, Toolchain
from perfguard.model.units import Unit

HARDWARE = Hardware(slug="fake-gpu", vendor="fake", name="Fake GPU", architecture="fake")
TIMER = "clock-cold"


def simulated_sessions(
    sessions: int, cases: int, *, noise: float = 0.002, blocks: int = 5, seed: int = 7
) -> list[Report]:
    """Reports of one commit; `noise` is the standard deviation between sessions, relative."""
    random = np.random.default_rng(seed)
    reports = []
    for number in range(sessions):
        results = []
        for case in range(cases):
            value = 50.0 * float(np.exp(noise * random.standard_normal()))
            medians = sorted(value * float(np.exp(1e-4 * random.standard_normal())) for _ in range(blocks))
            readings = [
                Reading("launches", Unit.COUNT, 1, covers=["span_us"]),
                Reading("span_us", Unit.MICROSECONDS, medians[blocks // 2], timer=TIMER, blocks=medians),
            ]
            name = Case("suite", f"case[{case:03d}]", "forward", f"test_suite.py::test_case[{case:03d}]")
            board = Conditions(board="board-0")
            results.append(CaseResult(name, "float32[4]", readings=readings, conditions=board, seconds=0.1))
        started = f"2026-11-{number + 1:02d}T00:00:00+00:00"
        reports.append(Report(SCHEMA, HARDWARE, Toolchain(torch="2.11.0"), started, results=results, complete=True))
    return reports
