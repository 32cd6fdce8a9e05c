"""Saves the report: files first, then the job's summary. Write errors are reported and do not stop the job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfguard.github.api.job_summary import write_summary
from perfguard.model.atomic_files import write_atomically
from perfguard.model.lane_summary import Overview
from perfguard.render.html import render_html
from perfguard.render.markdown import render_markdown

_EVERYTHING = 64 * 2**20  # bytes of report.md: more than the lanes' reports can hold
SUMMARY_BYTES = 1_000_000  # of the 1 MiB of a summary; larger texts are cut between whole parts
_POINTER = "_Cut at a section: everything is in report.md, report.html and report.json, the artifact of this run._"


def keep_files(folder: Path, overview: Overview) -> list[str]:
    """Write `report.md`, `report.html` and `report.json` to `folder`.

    Returns:
        Errors, a sentence each.
    """
    whole = render_markdown(overview, _EVERYTHING)[0]
    data = msgspec.json.format(msgspec.json.encode(overview), indent=1)
    problems = []
    page = render_html(overview).encode()
    for name, content in (("report.md", whole.encode()), ("report.html", page), ("report.json", data)):
        try:
            write_atomically(folder / name, content)
        except OSError as error:
            problems.append(f"{folder / name}: not written ({error.strerror}); make room or name another --output")
    return problems


def keep_summary(environ: Mapping[str, str], overview: Overview) -> list[str]:
    """Append the largest text that fits to the job's summary.

    Returns:
        Errors, a sentence each.
    """
    text = render_markdown(overview, SUMMARY_BYTES)[0]
    problem = write_summary(environ, [text], _POINTER)
    return [problem] if problem else []
