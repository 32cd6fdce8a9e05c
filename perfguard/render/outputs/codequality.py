"""Causes in the format of GitLab's code quality reports, which merge requests show beside the changed lines."""

from __future__ import annotations

import hashlib
import json

from perfguard.model.records import Word
from perfguard.render.escaping import clean
from perfguard.render.findings import Cause
from perfguard.render.overview import Overview
from perfguard.render.words import tally

_SEVERITIES = {Word.WRONG: "blocker", Word.BROKEN: "critical"}


def render(overview: Overview) -> str:
    """A JSON list with an entry for each cause, at its line if that is known, otherwise at the file of its test."""
    return json.dumps([_entry(cause) for cause in overview.causes], indent=1)


def _entry(cause: Cause) -> dict[str, object]:
    path, _, line = cause.place.partition(":")
    file = path or cause.worst.result.case.nodeid.partition("::")[0]
    name = clean(cause.name)
    return {
        "description": clean(f"{tally(cause.counts)}: {cause.title}: {cause.change}; worst {cause.worst_text}", 500),
        "check_name": f"perfguard {cause.worst.verdict.word.lower()}",
        "fingerprint": hashlib.sha256(f"{file} {name} {cause.worst.verdict.word}".encode()).hexdigest(),
        "severity": _SEVERITIES.get(cause.worst.verdict.word, "major"),
        "location": {"path": clean(file, 1000), "lines": {"begin": int(line or 1)}},
    }
