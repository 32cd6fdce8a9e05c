"""Causes as annotations of GitHub Actions, which pull requests show beside the changed lines."""

from __future__ import annotations

from perfguard.render.escaping import clean
from perfguard.render.findings import Cause
from perfguard.render.overview import Overview
from perfguard.render.words import tally

ALONE = True
MOST = 10  # GitHub shows no more errors of one step.
_ESCAPED = str.maketrans({"%": "%25", ":": "%3A", ",": "%2C"})  # In properties; line breaks are removed before.


def render(overview: Overview) -> str:
    """A workflow command for each of the worst causes whose line is known; empty without any."""
    placed = [cause for cause in overview.causes if ":" in cause.place]
    return "\n".join(_command(cause, overview.changed_places.get(cause.place, cause.place)) for cause in placed[:MOST])


def _command(cause: Cause, place: str) -> str:
    path, _, line = place.partition(":")
    title = f"perfguard: {tally(cause.counts)}: {cause.name}"
    text = f"{cause.change}; worst {cause.worst_text}".removeprefix("; ")
    return (
        f"::error file={_property(path)},line={line},title={_property(title)}::{clean(text, 500).replace('%', '%25')}"
    )


def _property(text: str) -> str:
    return clean(text).translate(_ESCAPED)
