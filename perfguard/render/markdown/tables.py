"""Tables of whole rows: where there are too many, the last ones go and are counted, and no row is ever cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

#: Bytes that the line which counts the missing rows may take.
MORE_BYTES = 64
MORE_BY_GROUP_BYTES = 1200  # … where it names what they are about


@dataclass(frozen=True)
class Bounds:
    """How much of a list may be shown: at most `rows` of it, in at most `size` UTF-8 bytes (None: no bound)."""

    rows: int | None = None
    size: int | None = None


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    total: int,
    bounds: Bounds,
    about: Callable[[int], str] | None = None,
) -> str:
    """A Markdown table of the first of `total` rows, then how many more there are. Cells are finished Markdown.

    `rows` is read no further than `bounds` allow. The text ends without a line break.

    Args:
        about: what the rows behind the first ones are about, in at most MORE_BY_GROUP_BYTES less MORE_BYTES.
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
