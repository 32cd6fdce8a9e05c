"""The self-contained HTML page."""

from __future__ import annotations

from perfguard.render.html import render_html
from perfguard.render.overview import Overview


def render(overview: Overview) -> str:
    """The page."""
    return render_html(overview)
