"""As pytest's summary in a terminal, one lane behind the other."""

from __future__ import annotations

from perfguard.model.lane_summary import Histories, Overview
from perfguard.render.survey import survey
from perfguard.render.terminal import render_summary

ALONE = True


def render(overview: Overview, histories: Histories) -> str:
    """Each lane's summary with every case."""
    parts = []
    if len(overview.lanes) > 1:
        parts += [f"perfguard: {survey(overview).title}", *(f"warning: {warning}" for warning in overview.warnings)]
    for lane in overview.lanes:
        if lane.report is None:
            parts += ["", f"perfguard: {lane.name}: no result, {lane.problem}"]
            continue
        summary = render_summary(lane.report, verbose=True)
        named = "" if lane.name == lane.report.lane else f"{lane.name}: "
        parts += [""] * bool(parts)
        parts.append(f"perfguard: {named}{summary.title}")
        parts += [line.text for line in summary.lines]
    return "\n".join(parts)
