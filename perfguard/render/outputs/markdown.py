"""The comment of a pull request."""

from __future__ import annotations

from perfguard.model.lane_summary import Histories, Overview
from perfguard.render.markdown import render_markdown

BASELINES = True


def render(overview: Overview, histories: Histories) -> str:
    """The comment in its largest size that fits."""
    return render_markdown(overview)
