"""The stored level of each time over the commits of its baseline file.

Its use is a picture, so unreadable parts are left out: a commit with another file layout, a folder outside git, no git
at all.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from perfguard.model.records.baseline import Recorded

MOST_COMMITS = 50  # latest commits that are read of one file
_SECONDS = 30.0
_CASE = re.compile(r"  (\S.*):")
_TIME = re.compile(r"    (\w+): \{sessions: \[([0-9., e+-]+)\], timer: ([^,}]+)(?:, anchor: ([0-9.e+-]+))?\}")

TimeName = tuple[str, str]  # case key, metric


def read_history(folder: Path, file: str) -> dict[TimeName, list[Recorded]]:
    """The stored values of each time where they changed, oldest first.

    Args:
        folder: the baselines folder.
        file: path inside it, for example `nvidia-h200/norms.yaml`.
    """
    found: dict[TimeName, list[Recorded]] = {}
    for commit, date, text in reversed(list(_versions(folder, file))):
        for name, timer, us, anchor in _times(text):
            known = found.setdefault(name, [])
            if not known or (known[-1].timer, known[-1].us, known[-1].anchor) != (timer, us, anchor):
                known.append(Recorded(commit, date, timer, us, anchor))
    return found


def _versions(folder: Path, file: str) -> Iterator[tuple[str, str, str]]:
    """Commit, date and text of the file, latest first."""
    listed = _git(folder, "log", f"--max-count={MOST_COMMITS}", "--format=%H %cs", "--", file).decode(
        "ascii", "replace"
    )
    commits = [line.split() for line in listed.splitlines()]
    data = _git(folder, "cat-file", "--batch", given="".join(f"{commit}:./{file}\n" for commit, _ in commits))
    place = 0
    for commit, date in commits:
        end = data.find(b"\n", place)
        head = data[place:end].split()
        place = end + 1
        if end < 0 or head[-1:] == [b"missing"]:  # removed in that commit
            continue
        size = int(head[-1])
        yield commit, date, data[place : place + size].decode("utf-8", "replace")
        place += size + 1


def _times(text: str) -> Iterator[tuple[TimeName, str, float, float]]:
    """The times in a file of perfguard's own layout, parsed line by line to keep fifty versions fast."""
    key = ""
    for line in text.splitlines():
        case = _CASE.fullmatch(line)
        if case:
            key = case[1]
            if key.startswith('"'):
                with contextlib.suppress(ValueError):
                    key = json.loads(key)
        time = _TIME.fullmatch(line)
        if time and key:
            with contextlib.suppress(ValueError):
                us = median(float(value) for value in time[2].split(","))
                yield (key, time[1]), time[3].strip('"'), us, float(time[4] or us)


def _git(folder: Path, *arguments: str, given: str = "") -> bytes:
    """Output of git in `folder`; empty if git fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, input=given.encode(), capture_output=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout
