"""The page: headline, lanes, environments and baseline edits as HTML, and the cases as data for its script.

Style and script are inline. The content security policy allows only these two, so that a name that is not escaped by
mistake could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from string import Template
from urllib.parse import quote, urlencode

from perfguard.model.units import counted
from perfguard.render.escaping import clean
from perfguard.render.findings import BaselineEdit, Cause
from perfguard.render.html.data import cases
from perfguard.render.markdown.comment import MOST_CAUSES
from perfguard.render.markdown.steps import commands_of
from perfguard.render.overview import SIGNS, LaneView, Overview
from perfguard.render.title import title_of
from perfguard.render.words import MOST_OF_A_VALUE, environment, listed, short, tally


def render_html(overview: Overview) -> str:
    """The whole page."""
    style, script = _part("page.css"), _part("page.js")
    return Template(_part("page.html")).substitute(
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; "
        "form-action 'none'",
        title=escape(f"perfguard: {title_of(overview)}"),
        sign=overview.sign,
        headline=escape(title_of(overview)),
        subtitle=_subtitle(overview),
        warnings=_list(overview.warnings, "warnings"),
        causes=_causes(overview),
        lanes="".join(_lane(lane) for lane in overview.lanes),
        edits=_edits(overview.edits),
        style=style,
        script=script,
        data=_data(overview),
    )


def _part(name: str) -> str:
    return (files("perfguard.render.html") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(overview: Overview) -> str:
    """JSON that cannot close its own script element, whatever the names contain."""
    start, _, known = overview.source_url.rpartition("/blob/")
    commits = f"{start}/commit/" if known and start.startswith(("https://", "http://")) else ""
    document = {"lanes": [clean(lane.name) for lane in overview.lanes], "cases": cases(overview), "commits": commits}
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(words: str, most: int = 400) -> str:
    return escape(clean(words, most))


def _subtitle(overview: Overview) -> str:
    parts = [f"{overview.reported} of {counted(len(overview.lanes), 'lane')} reported"]
    if overview.head:
        parts.insert(0, f"commit <code>{_text(short(overview.head))}</code>")
    if overview.base:
        parts.append(f"judged by the baselines at <code>{_text(short(overview.base))}</code>")
    return " · ".join(parts)


def _list(lines: Iterable[str], name: str) -> str:
    items = "".join(f"<li>{_text(line, 1000)}</li>" for line in lines)
    return f'<ul class="{name}">{items}</ul>' if items else ""


def _causes(overview: Overview) -> str:
    """The first block of the comment: a row for each cause, then the commands."""
    if not overview.causes:
        return ""
    head = (
        "<tr><th></th><th>kernel or line</th><th>what changed in it</th><th>cases</th><th>worst</th><th>lanes</th></tr>"
    )
    rows = "".join(_cause(overview, *each) for each in enumerate(overview.causes[:MOST_CAUSES], 1))
    more = len(overview.causes) - MOST_CAUSES
    rest = f"<p>and {counted(more, 'more cause')}: in the table of cases</p>" if more > 0 else ""
    steps = "\n".join(commands_of(overview))
    shown = f'<pre class="command">{escape(steps)}</pre>' if steps else ""
    return f'<section class="causes"><h2>Causes</h2><table>{head}{rows}</table>{rest}{shown}</section>'


def _cause(overview: Overview, number: int, cause: Cause) -> str:
    path, _, line = cause.place.partition(":")
    place = _link(cause.place, f"{overview.source_url}{path}#L{line or 1}" if overview.source_url else "")
    jobs = {lane.name: lane.job_url for lane in overview.lanes}
    lanes = ", ".join(_link(name, jobs.get(name, "")) for name in cause.lanes)
    case = f"#{urlencode({'find': clean(cause.worst.result.case.key, 400)})}"
    return (
        f"<tr><td>{number}</td><td><strong>{_text(cause.name)}</strong> {place}</td><td>{_text(cause.change)}</td>"
        f'<td>{_text(tally(cause.counts))}</td><td><a href="{escape(case)}">{_text(cause.worst_text)}</a></td>'
        f"<td>{lanes}</td></tr>"
    )


def _link(text: str, url: str) -> str:
    """The text, linked if `url` is http(s)."""
    if not url.startswith(("https://", "http://")):
        return _text(text)
    return f'<a href="{escape(quote(url, safe=":/?#&=%+,;~"))}">{_text(text)}</a>'


def _date(started: str) -> str:
    """`2026-11-21 08:30 UTC`; the text itself if it is no date."""
    try:
        return datetime.fromisoformat(started).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return started


def _lane(lane: LaneView) -> str:
    report = lane.report
    head = f'<h2>{_text(lane.name)}</h2><p class="verdict">{SIGNS[lane.headline]} '
    if report is None:
        why = f"<strong>no result</strong>{_text(f': {lane.problem}' if lane.problem else '', 1000)}"
        return f'<article class="lane{" silent" * lane.silent}">{head}{(lane.verdict, why)[lane.silent]}</p></article>'
    counts = tally(lane.counts) or "nothing moved"
    counts += f", {lane.absent} not measured" if lane.absent else ""
    missing = _list((f"{case}: {why}" for case, why in lane.missing), "missing")
    remarks = [f"{remark}: {listed(names)}" for remark, names in lane.remarks]
    return (
        f'<article class="lane">{head}{escape(lane.verdict)}</p>'
        f"<p>{counts}; {lane.guarded} guarded</p>"
        f"{_list(remarks, 'remarks')}"
        f'<p class="environment">{_text(environment(report))} · {_text(_date(report.started))}</p>'
        f"{_list(report.hardware.warnings, 'warnings')}{missing}</article>"
    )


def _edits(edits: list[BaselineEdit]) -> str:
    if not edits:
        return ""
    head = "<tr><th>folder</th><th>case</th><th>metric</th><th>old → new</th><th>measured here</th><th>reason</th></tr>"
    rows = "".join(map(_edit, edits))
    return f'<section class="edits"><h2>Edits of baselines and settings</h2><table>{head}{rows}</table></section>'


def _edit(edit: BaselineEdit) -> str:
    old, new, measured = map(_text, edit.values(MOST_OF_A_VALUE))
    return (
        f"<tr{' class=loose' if edit.loosens else ''}><td>{_text(edit.folder)}</td><td>{_text(edit.case)}</td>"
        f"<td>{_text(edit.metric)}</td><td>{old} → {new}{edit.loosens and f' (looser: {escape(edit.loosens)})'}</td>"
        f"<td data-label=measured>{measured}</td><td data-label=reason>{_text(edit.reason) or 'no reason'}</td></tr>"
    )
