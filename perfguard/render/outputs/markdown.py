"""The comment of a pull request."""

from __future__ import annotations

from perfguard.model.lane_summary import Histories, Overview
from perfguard.render.markdown import render_markdown

BASELINES = True


def render(overview: Overview, histories: Histories) -> str:
    """The comment's first part, which stands for all of it."""
    return render_markdown(overview)[0]
