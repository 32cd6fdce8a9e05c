"""One self-contained page of all lanes: sortable, filterable, with each case's history; needs no network."""

from perfguard.render.html.page import render_html

__all__ = ["render_html"]
