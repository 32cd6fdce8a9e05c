"""Output of a job on its own runner: the job summary, and log lines that the runner parses as commands."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

MOST_BYTES = 2**20  # of a step's summary; above it GitHub shows nothing and the step stays green


def write_summary(environ: Mapping[str, str], sections: Sequence[str], pointer: str) -> str:
    """Append Markdown to the job's summary, GITHUB_STEP_SUMMARY, which holds 1 MiB a step.

    Args:
        sections: written whole as long as they fit, so that no table or fence is cut.
        pointer: written in place of the sections that do not fit; says where they are.

    Returns:
        The error; empty on success or without a summary file.
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


def without_commands(text: str) -> str:
    """Untrusted text for a job's log, in which the runner ignores workflow commands."""
    mark = f"perfguard-{secrets.token_hex(16)}"
    return f"::stop-commands::{mark}\n{text}\n::{mark}::"
