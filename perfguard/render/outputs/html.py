"""One page that needs nothing else, with the histories of times."""

from __future__ import annotations

from perfguard.render.html import render_html
from perfguard.render.overview import Histories, Overview

HISTORIES = True


def render(overview: Overview, histories: Histories) -> str:
    """The page."""
    return render_html(overview, histories)
