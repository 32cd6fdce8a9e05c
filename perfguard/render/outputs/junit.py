"""JUnit's XML, for CI systems that show it."""

from __future__ import annotations

from perfguard.model.lane_summary import Overview
from perfguard.render.html.data import Histories
from perfguard.render.junit import render_junit


def render(overview: Overview, histories: Histories) -> str:
    """The XML."""
    return render_junit(overview)
