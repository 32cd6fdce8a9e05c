"""The JSON of pytest-benchmark, for tools that read it."""

from __future__ import annotations

from perfguard.model.errors import UsageError
from perfguard.model.lane_summary import Overview
from perfguard.render.benchmark_json import render_benchmark_json
from perfguard.render.html.data import Histories

ALONE = True


def render(overview: Overview, histories: Histories) -> str:
    """The JSON of one report."""
    reports = [lane.report for lane in overview.lanes if lane.report is not None]
    if len(overview.lanes) != 1 or not reports:
        raise UsageError("--as pytest-benchmark: its format holds one machine; give one report at a time")
    return render_benchmark_json(reports[0])
