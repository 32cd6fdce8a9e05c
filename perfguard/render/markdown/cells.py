"""Tables and their cells. Text of our own is used as it is; untrusted text is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from perfguard.model.records import Value
from perfguard.render.escaping import code
from perfguard.render.findings import Finding
from perfguard.render.words import MOST_OF_A_VALUE

NAME = 80  # The most characters of a name of a lane, device or metric in a table.
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
    """A table of whole rows, without columns that are empty in all rows, then the number of items that are left out.

    Args:
        row: returns the cells of an item as Markdown; called for shown items only.
        most, size: the most rows, and about the most UTF-8 bytes of them; None: no limit.
        rest: returns a summary of the items that are left out.
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


def quantity(of: Value | None, shown: str) -> str:
    """The text of a value: a number with its unit, anything else as code."""
    return code(shown) if shown and isinstance(of, str | list | dict) else together(shown)


def together(quantity: str) -> str:
    """A quantity with non-breaking spaces, so that a narrow column keeps number and unit together."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", quantity)


def values(row: Finding) -> tuple[str, str]:
    """The cells of the value before and now."""
    of = row.verdict.before if row.verdict.before is not None or row.reading is None else row.reading.value
    before, now = row.values(MOST_OF_A_VALUE)
    return quantity(of, before), quantity(of, now)
