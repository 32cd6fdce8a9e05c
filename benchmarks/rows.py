"""What is kept of measurements, as a reviewer can read it: each row is a line of a diff, in JSON and on a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from perfguard.model.atomic_files import write_atomically

_WIDTH = 600  # characters: the longest rows of docs/*.json; a longer value is divided


def in_rows(value: object, *, indent: int = 0) -> str:
    """`value` as JSON, in which whatever fits is one line, and the rest is divided into its items."""
    text = json.dumps(value)
    if len(text) <= _WIDTH:
        return text
    if isinstance(value, Mapping):
        items = [f"{json.dumps(key)}: {in_rows(item, indent=indent + 1)}" for key, item in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = [in_rows(item, indent=indent + 1) for item in value]
    else:
        return text
    pad = "\n" + " " * indent
    return f"{text[0]}{pad} " + f",{pad} ".join(items) + f"{pad}{text[-1]}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table in Markdown. Cells may hold any text of one line."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)]
    first, *others = (f"| {' | '.join(row)} |" for row in cells)
    return [first, "|---" * len(head) + "|", *others]


def write_rows(path: Path, value: object) -> None:
    """Write `value` to `path`, atomically."""
    write_atomically(path, f"{in_rows(value)}\n".encode())
