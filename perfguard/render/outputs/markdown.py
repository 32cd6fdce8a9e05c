"""The comment of a pull request."""

from __future__ import annotations

from perfguard.render.markdown import render_markdown
from perfguard.render.overview import Overview


def render(overview: Overview) -> str:
    """The comment in its largest size that fits."""
    return render_markdown(overview)
