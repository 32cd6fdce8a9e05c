"""The summaries of all lanes as pytest prints them in a terminal, one after the other."""

from __future__ import annotations

from perfguard.render.escaping import clean
from perfguard.render.overview import Overview
from perfguard.render.terminal import render_summary
from perfguard.render.title import title_of

ALONE = True


def render(overview: Overview) -> str:
    """Each lane's summary with every case."""
    parts = []
    if len(overview.lanes) > 1:
        parts += [f"perfguard: {title_of(overview)}", *(f"warning: {warning}" for warning in overview.warnings)]
    for lane in overview.lanes:
        if lane.report is None:
            parts += ["", f"perfguard: {lane.name}: no result, {lane.problem}"]
            continue
        summary = render_summary(lane.report, verbose=True)
        named = "" if lane.name == lane.report.lane else f"{lane.name}: "
        parts += [""] * bool(parts)
        parts.append(f"perfguard: {named}{summary.title}")
        parts += [line.text for line in summary.lines]
    return "\n".join(clean(part, None) for part in parts)
