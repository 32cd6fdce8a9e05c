"""One self-contained page for all lanes: sortable, filterable, without network access."""

from perfguard.render.html.page import render_html

__all__ = ["render_html"]
