"""JSON for programs: one report as it was saved, or the overview of several."""

from __future__ import annotations

import msgspec

from perfguard.model.records import dump_report
from perfguard.render.escaping import as_json
from perfguard.render.overview import Overview

ALONE = True


def render(overview: Overview) -> str:
    """JSON with line breaks."""
    if len(overview.lanes) == 1 and overview.lanes[0].report is not None:
        return as_json(dump_report(overview.lanes[0].report).decode())
    document = {"headline": overview.headline.value, **msgspec.to_builtins(overview)}
    return as_json(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())
