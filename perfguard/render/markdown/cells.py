"""Tables and their cells. Our own text is used as it is; possibly untrusted text is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from perfguard.model.records import Value, Verdict
from perfguard.model.units import Unit, counted, format_apart, format_value
from perfguard.render.escaping import code
from perfguard.render.findings import MOVED
from perfguard.render.words import MOST_OF_A_VALUE, change_text, interval_text, moved, percent

NAME = 80  # characters of a lane's, device's or metric's name in a table
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=\S)")

Item = TypeVar("Item")


def table(
    header: Sequence[str],
    items: Sequence[Item],
    row: Callable[[Item], Sequence[str]],
    *,
    most: int | None = None,
    size: int | None = None,
    rest: Callable[[Sequence[Item]], str] = lambda _: "",
) -> str:
    """A table of whole rows, without the columns that no row fills, then the number of items that it leaves out.

    Args:
        row: the cells of an item, finished Markdown. It is called for shown items only.
        most, size: most rows, and about the most UTF-8 bytes of them; None: no limit.
        rest: summary of the items left out.
    """
    rows: list[Sequence[str]] = []
    for item in items[:most]:
        cells = row(item)
        if size is not None:
            size -= sum(len(cell.encode()) + 3 for cell in cells)
            if size < 0:
                break
        rows.append(cells)
    filled = [place for place in range(len(header)) if not rows or any(cells[place] for cells in rows)]
    lines = [f"| {' | '.join(cells[place] for place in filled)} |" for cells in (header, ["---"] * len(header), *rows)]
    if left := items[len(rows) :]:
        about = rest(left)
        lines += ["", f"and {len(left)} more{f': {about}' if about else ''}"]
    return "\n".join(lines)


def text(words: str, most: int = 200) -> str:
    """Untrusted text, escaped; empty for an empty text."""
    return code(words, most) if words else ""


def value(of: Value | None, unit: Unit, nothing: str = "") -> str:
    """A reading's value in its unit."""
    if of is None:
        return nothing
    shown = format_value(of, unit)
    return code(shown) if isinstance(of, str | list | dict) else together(shown)


def together(quantity: str) -> str:
    """A quantity with non-breaking spaces, so that a narrow column keeps number and unit together."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", quantity)


def before_and_after(verdict: Verdict) -> tuple[str, str]:
    """Value before and after; for lists and parts, their size before and their difference."""
    before, after = verdict.before, verdict.after
    if isinstance(before, list | dict) and type(after) is type(before):
        size = counted(len(before), "part") if isinstance(before, dict) else f"{len(before)} entries"
        return size, code(change_text(before, after, verdict.unit))
    return apart(before, after, verdict.unit)


def apart(before: Value | None, after: Value | None, unit: Unit, none: str = "", gone: str = "") -> tuple[str, str]:
    """Two values, by what differs in them."""
    if before is None or after is None or not isinstance(before, str | list | dict):
        return value(before, unit, none), value(after, unit, gone)
    then, now = format_apart(before, after, unit, MOST_OF_A_VALUE)
    return code(then), code(now)


def change(verdict: Verdict) -> str:
    """The size of a change: in words if the verdict reports a change, else as a plain difference."""
    if verdict.unit is Unit.TEXT:
        return "different" if verdict.word in MOVED else ""
    if verdict.word in MOVED:
        return together(moved(verdict))
    if verdict.ratio is None:
        return ""
    interval = interval_text(verdict)
    return together(f"{percent(verdict)}{f' ({interval})' if interval else ''}")
