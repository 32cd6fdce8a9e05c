"""Tables of whole rows: surplus rows at the end are dropped and counted, and no row is ever cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

#: Bytes reserved for the line that counts the dropped rows.
MORE_BYTES = 64
MORE_BY_GROUP_BYTES = 1200  # the same if that line groups them by kernel


@dataclass(frozen=True)
class Bounds:
    """Limits of a list: at most `rows` rows in at most `size` UTF-8 bytes (None: no limit)."""

    rows: int | None = None
    size: int | None = None


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    total: int,
    bounds: Bounds,
    about: Callable[[int], str] | None = None,
) -> str:
    """A Markdown table of the first of `total` rows, then the number of dropped rows. Cells are finished Markdown.

    `rows` is read only as far as `bounds` allow. The text ends without a line break.

    Args:
        about: summary of the rows after the first n, in at most MORE_BY_GROUP_BYTES less MORE_BYTES.
    """
    lines = [_row(header), "|" + " --- |" * len(header)]
    size = sum(len(line.encode()) + 1 for line in lines)
    shown, spare = 0, MORE_BYTES if about is None else MORE_BY_GROUP_BYTES
    for cells in rows:
        if bounds.rows is not None and shown == bounds.rows:
            break
        line = _row(cells)
        size += len(line.encode()) + 1
        if bounds.size is not None and size > bounds.size - spare:
            break
        lines.append(line)
        shown += 1
    if shown < total:
        lines += ["", f"and {total - shown} more{f': {about(shown)}' if about else ''}"]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
