"""The comment in up to four sizes. Smaller sizes drop whole parts, never cut text, and name what is missing.

The first two lines of the comment, marker and state, are added by `perfguard.github.api`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfguard.model.lane_summary import Overview
from perfguard.render.escaping import code
from perfguard.render.markdown import sections
from perfguard.render.markdown.details import details
from perfguard.render.markdown.sections import Section
from perfguard.render.markdown.steps import next_steps
from perfguard.render.markdown.tables import Bounds
from perfguard.render.survey import QUIET, Survey, survey

#: GitHub refuses comments above 65,536 characters; this is 60,000 bytes less the room for marker and state.
COMMENT_BYTES = 57_000
MOST_OPEN_ROWS = 10
MOST_WORST_ROWS = 20  # a lane, in the third size
MOST_WARNINGS = 10

_OPEN: tuple[Section, ...] = (
    sections.numerics,
    sections.changed,
    sections.missing,
    sections.undecided,
    sections.edits,
    next_steps,
)
_LEFT_OUT = (
    "",
    "_Shortened: no details of lanes without findings._",
    "_Shortened: only the worst findings of each lane._",
    "_Shortened: counts only; every finding is in the run's summary and report._",
)


def render_markdown(overview: Overview, budget: int = COMMENT_BYTES) -> list[str]:
    """The comment's text in every size that fits and is smaller than the previous one; the last one always fits.

    Args:
        budget: maximum UTF-8 bytes of a text, at least 4,000.
    """
    assert budget >= 4000, "no room for headline and counts"
    found = survey(overview)
    sizes = (_everything, _lanes_with_findings, _worst, _counts)
    texts: list[str] = []
    for make, left_out in zip(sizes, _LEFT_OUT, strict=True):
        text = _assembled(make(found, budget), left_out, found, budget)
        if text is not None and (not texts or len(text) < len(texts[-1])):
            texts.append(text)
    return texts


def render_resolved(overview: Overview) -> str:
    """Three lines for a comment whose findings, from an earlier run, are all gone."""
    found = survey(overview)
    return (
        "\n\n".join(filter(None, (sections.headline(found), sections.resolved(found), sections.footer(found)))) + "\n"
    )


def _assembled(blocks: Iterable[str], left_out: str, found: Survey, budget: int) -> str | None:
    """The blocks joined by empty lines; None if larger than `budget`."""
    kept = []
    size = 0
    for block in (*blocks, sections.footer(found), left_out):
        if block:
            kept.append(block)
            size += len(block.encode()) + 2
            if size > budget:
                return None
    return "\n\n".join(kept) + "\n"


def _everything(found: Survey, budget: int) -> Iterator[str]:
    yield from _open(found, Bounds(rows=MOST_OPEN_ROWS))
    yield from details(found.lanes, Bounds(size=budget), all_cases=True)


def _lanes_with_findings(found: Survey, budget: int) -> Iterator[str]:
    yield from _open(found, Bounds(rows=MOST_OPEN_ROWS))
    telling = [lane for lane in found.lanes if any(word not in QUIET for _, word in lane.cases)]
    yield from details(telling, Bounds(size=budget), all_cases=True)


def _worst(found: Survey, budget: int) -> Iterator[str]:
    blocks = list(_open(found, Bounds(rows=MOST_OPEN_ROWS)))
    if sum(len(block.encode()) for block in blocks) > budget // 2:
        blocks = list(_open(found, Bounds(rows=MOST_OPEN_ROWS, size=budget // (2 * (len(_OPEN) + 2)))))
    yield from blocks
    each = budget // (3 * max(len(found.lanes), 1))
    yield from details(found.lanes, Bounds(rows=MOST_WORST_ROWS, size=each), all_cases=False)


def _counts(found: Survey, budget: int) -> Iterator[str]:
    yield sections.headline(found)
    yield sections.judged_by(found)
    yield sections.lanes(found, Bounds(size=budget // 2))


def _open(found: Survey, bounds: Bounds) -> Iterator[str]:
    yield sections.headline(found)
    yield sections.judged_by(found)
    yield sections.lanes(found, Bounds(size=bounds.size))
    yield from (section(found, bounds) for section in _OPEN)
    warnings = found.overview.warnings[:MOST_WARNINGS]
    yield "\n".join(f"- ⚠️ {code(warning)}" for warning in warnings)
