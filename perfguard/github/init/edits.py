"""Edits of a repository's own files: pure functions from a text to a text that keep every line which is there."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

IGNORED = (".perfguard/", "__pycache__/")
_HEADER = re.compile(
    r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*perfguard[ \t]*\][ \t]*(?:#[^\r\n]*)?(?:\r?\n|\Z)", re.MULTILINE
)


def with_lanes(text: str, lanes: Sequence[str]) -> str | None:
    """pyproject.toml with `lanes` in `[tool.perfguard]`; None if the table has a form that is not edited.

    The edit counts only if the file then says what it said before, and the lanes: whatever a line looks like, it may be
    inside a string.
    """
    before = tomllib.loads(text)
    table = before.get("tool", {}).get("perfguard")
    line = f"lanes = {json.dumps(list(lanes))}"
    if table is None:
        edited = _appended(text, [*[""] * bool(text.strip()), "[tool.perfguard]", line])
    elif "lanes" not in table:
        header = _HEADER.search(text)
        end = header.end() if header else 0
        edited = _appended(text[:end], [line]) + text[end:]
    else:
        known = re.escape(f"lanes = {json.dumps(table['lanes'])}")
        edited = re.sub(rf"^{known}(?=[ \t]*(?:#[^\r\n]*)?\r?$)", lambda _: line, text, count=1, flags=re.MULTILINE)
    wanted: dict[str, Any] = {**before, "tool": {**before.get("tool", {})}}
    wanted["tool"]["perfguard"] = {**(table or {}), "lanes": list(lanes)}
    return edited if _reads(edited) == wanted else None


def _reads(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def with_ignored(text: str, above: Iterable[str]) -> str:
    """A .gitignore with what runs leave behind.

    Args:
        above: the texts of the .gitignore files in the folders above, which hold for this folder, too.
    """
    there = {_pattern(line) for each in (text, *above) for line in each.splitlines()}
    return _appended(text, [line for line in IGNORED if _pattern(line) not in there])


def _pattern(line: str) -> str:
    return line.strip().removeprefix("**/").strip("/")


def with_owners(text: str, baselines: str, settings: str, owners: Sequence[str]) -> str:
    """A CODEOWNERS in which `owners` review the baselines. A new file also names what decides how they are judged.

    In an existing file the last line that matches a path counts, so further lines would take paths from their owners.

    Args:
        baselines, settings: the folder and the file, from the top of the repository.
    """
    paths = [f"/{baselines}/", *["/.github/", f"/{settings}"] * (not text)]
    paths = [path.replace(" ", "\\ ") for path in paths]
    there = {_pattern(re.split(r"(?<!\\)\s", line.strip())[0]) for line in text.splitlines()}
    return _appended(text, [f"{path} {' '.join(owners)}" for path in paths if _pattern(path) not in there])


def _appended(text: str, lines: Sequence[str]) -> str:
    """`text` with further lines, which end as its first one does. A last line without an end gets one."""
    end = "\r\n" if text.partition("\n")[0].endswith("\r") else "\n"
    begun = end if lines and text and not text.endswith("\n") else ""
    return text + begun + "".join(f"{line}{end}" for line in lines)
