"""The outcome of an overview: files, commit statuses, exit status, and whether a comment is needed.

With the setting `strict`, cases that are not guarded fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from perfguard.github.api.posts import TOTAL, Status
from perfguard.model.errors import ExitStatus
from perfguard.render.escaping import as_json
from perfguard.render.html import render_html
from perfguard.render.markdown import render_markdown, render_resolved
from perfguard.render.outputs import codequality
from perfguard.render.overview import Headline, Overview
from perfguard.render.title import title_of

_EVERYTHING = 64 * 2**20  # The limit of report.md in bytes, which is larger than the reports of all lanes.
_ALARMS = (Headline.WRONG, Headline.WORSE, Headline.INCOMPLETE, Headline.INCONCLUSIVE, Headline.NO_BASELINE)
_OPEN = (Headline.INCOMPLETE, Headline.INCONCLUSIVE, Headline.UNVERIFIED)
_UNGUARDED = (Headline.INCONCLUSIVE, Headline.UNDECIDED, Headline.NO_BASELINE)  # These fail with `strict`.


def comment_of(overview: Overview, strict: bool) -> str:
    """The text of the comment, without its marker."""
    return render_resolved(overview) if is_resolved(overview, strict) else render_markdown(overview)


def files_of(overview: Overview, strict: bool) -> dict[str, bytes]:
    """Name of a file -> its contents: what `perfguard comment` and `perfguard judge` leave for people and programs."""
    return {
        "comment.md": comment_of(overview, strict).encode(),
        "report.html": render_html(overview).encode(),
        "report.json": as_json(msgspec.json.format(msgspec.json.encode(overview), indent=1).decode()).encode(),
        "report.md": render_markdown(overview, _EVERYTHING).encode(),
        "codequality.json": codequality(overview).encode(),
    }


def statuses(overview: Overview, strict: bool) -> list[Status]:
    """The total `TOTAL`, which a branch rule requires, then `TOTAL/<lane>` for each lane. They name no cases.

    The total is set first, because the time of the job may end meanwhile.
    """
    parts = [(TOTAL, overview)]
    parts += [(f"{TOTAL}/{lane.name}", Overview(lanes=[lane], unread=overview.unread)) for lane in overview.lanes]
    return [Status(name, _state(part.headline, strict), title_of(part), overview.run_url) for name, part in parts]


def given_up(lanes: Sequence[str], link: str) -> list[Status]:
    """The statuses of a commit that could not be judged, in place of green ones of an earlier run."""
    names = [TOTAL, *(f"{TOTAL}/{lane}" for lane in lanes)]
    return [Status(name, "error", "not judged: the post job gave up; run it again", link) for name in names]


def _state(headline: Headline, strict: bool) -> Literal["success", "failure", "error"]:
    if headline in (Headline.WRONG, Headline.WORSE) or (strict and headline in _UNGUARDED):
        return "failure"
    return "error" if headline in _OPEN else "success"


def wants_comment(overview: Overview, strict: bool) -> bool:
    """Whether action or a review of edits is needed, so that a missing comment is created."""
    alarm = overview.headline in _ALARMS or _state(overview.headline, strict) != "success"
    return alarm or bool(overview.edits)


def is_resolved(overview: Overview, strict: bool) -> bool:
    """Whether all findings of an earlier comment are gone and there are no new ones."""
    return overview.headline in (Headline.FASTER, Headline.UNCHANGED) and not wants_comment(overview, strict)


def exit_status(overview: Overview, strict: bool) -> ExitStatus:
    """The exit status that the lanes' own runs would have had."""
    headline = overview.headline
    if headline is Headline.WRONG:
        return ExitStatus.WRONG
    if headline is Headline.WORSE:
        return ExitStatus.REGRESSED
    if headline is Headline.INCOMPLETE:
        nothing = all(lane.report is None for lane in overview.lanes)
        return ExitStatus.NOTHING_MEASURED if nothing else ExitStatus.TESTS_FAILED
    unguarded = headline in (Headline.INCONCLUSIVE, Headline.UNVERIFIED) or (strict and headline in _UNGUARDED)
    return ExitStatus.UNGUARDED if unguarded else ExitStatus.PASSED
