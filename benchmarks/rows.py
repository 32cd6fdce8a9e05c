"""JSON as a reviewer can read it: a row of a table is a line, so that a new figure is a line of a diff."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def write_rows(path: Path, value: object) -> None:
    """Write `value` to `path`, atomically."""
    write_atomically(path, f"{in_rows(value)}\n".encode())
