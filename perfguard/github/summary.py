"""What a job says on its own machine: its summary, and lines of its log that the runner takes for commands."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

MOST_BYTES = 2**20  # of a step's summary; one byte more, and GitHub shows none of it while the step stays green
_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_MESSAGE, ":": "%3A", ",": "%2C"}


def write_summary(environ: Mapping[str, str], sections: Sequence[str], pointer: str) -> str:
    """Append Markdown to the job's summary, GITHUB_STEP_SUMMARY; it takes 1 MiB a step.

    Args:
        sections: whole ones are written as long as they fit, so that no table or fence is cut open.
        pointer: written in place of those that do not fit: where the rest is.

    Returns:
        What went wrong, empty if nothing did or if there is no summary to write.
    """
    name = environ.get("GITHUB_STEP_SUMMARY", "")
    if not name:
        return ""
    try:
        with open(Path(name), "ab") as file:
            file.seek(0, os.SEEK_END)
            file.write(_fitting(sections, pointer, MOST_BYTES - file.tell()))
    except OSError as error:
        return f"{name}: the summary was not written ({error.strerror}); the report is in its file"
    return ""


def _fitting(sections: Sequence[str], pointer: str, room: int) -> bytes:
    blocks = [f"{section.rstrip()}\n\n".encode() for section in sections]
    if sum(map(len, blocks)) <= room:
        return b"".join(blocks)
    last = f"{pointer.rstrip()}\n\n".encode()
    taken: list[bytes] = []
    for block in blocks:
        if sum(map(len, taken)) + len(block) + len(last) > room:
            break
        taken.append(block)
    return b"".join([*taken, last]) if len(last) <= room else b""


def warning_command(message: str, title: str = "") -> str:
    """A line that shows `message` as a warning of the job."""
    name = f" title={_escaped(title, _PROPERTY)}" if title else ""
    return f"::warning{name}::{_escaped(message, _MESSAGE)}"


def without_commands(text: str) -> str:
    """Lines for a job's log that hold text of strangers: the runner takes none of them for a command."""
    mark = f"perfguard-{secrets.token_hex(16)}"
    return f"::stop-commands::{mark}\n{text}\n::{mark}::"


def _escaped(text: str, table: Mapping[str, str]) -> str:
    return "".join(table.get(sign, sign) for sign in text)
