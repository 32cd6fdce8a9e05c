"""Tables of whole rows: where there are too many, the last ones go and are counted, and no row is ever cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Bytes that the line which counts the missing rows may take.
MORE_BYTES = 64


@dataclass(frozen=True)
class Bounds:
    """How much of a list may be shown: at most `rows` of it, in at most `size` UTF-8 bytes (None: no bound)."""

    rows: int | None = None
    size: int | None = None


def table(header: Sequence[str], rows: Iterable[Sequence[str]], total: int, bounds: Bounds) -> str:
    """A Markdown table of the first of `total` rows, then how many more there are. Cells are finished Markdown.

    `rows` is read no further than `bounds` allow. The text ends without a line break.
    """
    lines = [_row(header), "|" + " --- |" * len(header)]
    size = sum(len(line.encode()) + 1 for line in lines)
    shown = 0
    for cells in rows:
        if bounds.rows is not None and shown == bounds.rows:
            break
        line = _row(cells)
        size += len(line.encode()) + 1
        if bounds.size is not None and size > bounds.size - MORE_BYTES:
            break
        lines.append(line)
        shown += 1
    if shown < total:
        lines += ["", f"and {total - shown} more"]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
