"""The page: headline, lanes, environments and baseline edits as HTML, and the cases as data for its script.

Style and script are inline. The content security policy allows only these two, so that a name that is not escaped by
mistake could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template

from perfguard.model.units import counted
from perfguard.render.escaping import clean
from perfguard.render.html.data import cases
from perfguard.render.overview import SIGNS, BaselineEdit, LaneView, Overview
from perfguard.render.title import title_of
from perfguard.render.words import MOST_OF_A_VALUE, environment, listed, tally


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
    document = {"lanes": [clean(lane.name) for lane in overview.lanes], "cases": cases(overview)}
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(words: str, most: int = 400) -> str:
    return escape(clean(words, most))


def _subtitle(overview: Overview) -> str:
    parts = [f"{overview.reported} of {counted(len(overview.lanes), 'lane')} reported"]
    if overview.head:
        parts.insert(0, f"commit <code>{_text(overview.head[:12])}</code>")
    if overview.base:
        parts.append(f"judged by the baselines at <code>{_text(overview.base[:12])}</code>")
    return " · ".join(parts)


def _list(lines: Iterable[str], name: str) -> str:
    items = "".join(f"<li>{_text(line, 1000)}</li>" for line in lines)
    return f'<ul class="{name}">{items}</ul>' if items else ""


def _lane(lane: LaneView) -> str:
    report = lane.report
    head = f'<h2>{_text(lane.name)}</h2><p class="verdict">{SIGNS[lane.headline]} '
    if report is None:
        why = f": {_text(lane.problem, 1000)}" if lane.problem else ""
        return f'<article class="lane silent">{head}<strong>no result</strong>{why}</p></article>'
    counts = tally(lane.counts) or "nothing moved"
    counts += f", {lane.absent} not measured" if lane.absent else ""
    missing = _list((f"{case}: {why}" for case, why in lane.missing), "missing")
    remarks = [f"{remark}: {listed(names)}" for remark, names in lane.remarks]
    return (
        f'<article class="lane">{head}{escape(lane.verdict)}</p>'
        f"<p>{counts}; {lane.guarded} guarded</p>"
        f"{_list(remarks, 'remarks')}"
        f'<p class="environment">{_text(environment(report))} · {_text(report.started)}</p>'
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
        f"<td>{measured}</td><td>{_text(edit.reason) or 'no reason'}</td></tr>"
    )
