"""The forms of `perfguard report --as`: pure functions from all lanes of a commit to text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

import msgspec

from perfguard.model.records import Word, dump_report
from perfguard.render.escaping import as_json, clean
from perfguard.render.findings import Cause
from perfguard.render.html import render_html
from perfguard.render.markdown import render_markdown
from perfguard.render.overview import Overview
from perfguard.render.pytest_benchmark import pytest_benchmark
from perfguard.render.terminal import render_summary
from perfguard.render.title import title_of
from perfguard.render.words import tally

_SEVERITIES = {Word.WRONG: "blocker", Word.BROKEN: "critical"}
_MOST_ANNOTATIONS = 10  # GitHub shows no more errors of one step.
_ESCAPED = str.maketrans({"%": "%25", ":": "%3A", ",": "%2C"})  # In properties; line breaks are removed before.


def terminal(overview: Overview) -> str:
    """Each lane's summary with every case, as pytest prints it."""
    parts = []
    if len(overview.lanes) > 1:
        parts += [f"perfguard: {title_of(overview)}", *(f"warning: {warning}" for warning in overview.warnings)]
    for lane in overview.lanes:
        if lane.report is None:
            parts += ["", f"perfguard: {lane.name}: no result, {lane.problem}"]
            continue
        summary = render_summary(lane.report, verbose=True)
        named = "" if lane.name == lane.report.lane else f"{lane.name}: "
        parts += [""] * bool(parts)
        parts.append(f"perfguard: {named}{summary.title}")
        parts += [line.text for line in summary.lines]
    return "\n".join(clean(part, None) for part in parts)


def as_json_text(overview: Overview) -> str:
    """JSON with line breaks: one report as it was saved, or the overview of several."""
    if len(overview.lanes) == 1 and overview.lanes[0].report is not None:
        return as_json(dump_report(overview.lanes[0].report).decode())
    document = {"headline": overview.headline.value, **msgspec.to_builtins(overview)}
    return as_json(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())


def codequality(overview: Overview) -> str:
    """GitLab's code quality report, which merge requests show beside the changed lines: a JSON list with an entry for
    each cause, at its line if that is known, otherwise at the file of its test."""
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


def github_annotations(overview: Overview) -> str:
    """A workflow command of GitHub Actions for each of the worst causes whose line is known, which pull requests show
    beside the changed lines; empty without any."""
    placed = [cause for cause in overview.causes if ":" in cause.place][:_MOST_ANNOTATIONS]
    return "\n".join(_command(cause, overview.changed_places.get(cause.place, cause.place)) for cause in placed)


def _command(cause: Cause, place: str) -> str:
    path, _, line = place.partition(":")
    title = f"perfguard: {tally(cause.counts)}: {cause.name}"
    text = clean(f"{cause.change}; worst {cause.worst_text}".removeprefix("; "), 500).replace("%", "%25")
    return f"::error file={_property(path)},line={line},title={_property(title)}::{text}"


def _property(text: str) -> str:
    return clean(text).translate(_ESCAPED)


OUTPUTS: Mapping[str, Callable[[Overview], str]] = {
    "terminal": terminal,
    "markdown": render_markdown,
    "html": render_html,
    "json": as_json_text,
    "pytest-benchmark": pytest_benchmark,
    "codequality": codequality,
    "github-annotations": github_annotations,
}
#: Forms that show a single report alone, even if the settings expect other lanes.
ALONE = {"terminal", "json", "pytest-benchmark", "github-annotations"}
