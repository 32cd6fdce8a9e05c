"""Unique names of suites (test files) and cases (tests)."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

_SHORT = re.compile(r"tests/((?:\w[\w-]*/)*)test_(?!test_)([\w-]+)\.py")
_WHOLE = re.compile(r"((?:\w[\w-]*/)*test_[\w-]*)\.py")


@functools.cache
def suite_of(path: Path, root: Path) -> str:
    """The name of a test file, and of its baseline files.

    `tests/kernels/test_norm.py` is `kernels.norm`. Outside `tests`, the whole path is the name:
    `kernels/test_norm.py` is `kernels.test_norm`. In all other names, `+` replaces a dot, and `++20` replaces a
    character (here a space) that the name of a baseline file should not contain.
    """
    name = Path(os.path.relpath(path, root)).as_posix()
    if short := _SHORT.fullmatch(name):
        return f"{short[1]}{short[2]}".replace("/", ".")
    if whole := _WHOLE.fullmatch(name):
        return whole[1].replace("/", ".")
    written = re.sub(r"(\.)(?=\w)|[^\w/-]", _escape, name).replace("/", ".")
    return written if "+" in written else f"{written}+"


def file_of(suite: str, root: Path) -> Path:
    """The file whose suite this is: the inverse of `suite_of`."""
    name = suite.replace(".", "/")
    if "+" in suite:
        name = re.sub(r"(?:\+\+[0-9a-f]{2})+|\+", _unescape, name)
    elif name.rpartition("/")[2].startswith("test_"):
        name += ".py"
    else:
        folders, slash, last = name.rpartition("/")
        name = f"tests/{folders}{slash}test_{last}.py"
    return root / name


def name_of(nodeid: str) -> str:
    """`tests/test_a.py::TestB::test_c[64]` -> `TestB.c[64]`."""
    _, _, inside = nodeid.partition("::")
    function, bracket, parameters = inside.partition("[")
    *classes, last = function.split("::")
    rest = last.removeprefix("test_")
    # pytest also collects `testc`, whose name `test_testc` must not get.
    return ".".join([*classes, last if rest.startswith("test") else rest]) + bracket + parameters


def _escape(match: re.Match[str]) -> str:
    return "+" if match[1] else "".join(f"++{byte:02x}" for byte in os.fsencode(match[0]))


def _unescape(match: re.Match[str]) -> str:
    if match[0] == "+":
        return "" if match.end() == len(match.string) else "."
    return os.fsdecode(bytes.fromhex(match[0].replace("++", "")))
