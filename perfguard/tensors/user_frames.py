"""Finds the line of the user's code that is running."""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_PERFGUARD = str(Path(__file__).parents[1]) + os.sep

_BETWEEN = f"{os.sep}contextlib.py", os.sep.join(("", "triton", "runtime", ""))  # These run between lines of the user.

# A line of Python: its code, and the offset of the running instruction. Python finds a line's number by counting from
# the beginning of its code, so numbers are computed only for lines that are shown.
Line = tuple[CodeType, int]


def line_in_python() -> Line | None:
    """The innermost line that does not belong to torch, to Triton's launcher or to perfguard; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if is_the_users(code.co_filename):
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def text_of(line: Line | None) -> str:
    """The line as text, e.g. `kernels/moe/dispatch.py:57 in counts`; "" for None. The path is relative to the current
    folder, or else cut to its last two parts."""
    if line is None:
        return ""
    code, offset = line
    number = next((number for start, end, number in code.co_lines() if start <= offset < end), None)
    folder = ""
    with suppress(OSError):  # A test may remove the folder that it has changed to.
        folder = os.getcwd()
    return f"{_shown(code.co_filename, folder)}:{number} in {code.co_name}"


@functools.lru_cache(maxsize=1000)
def _shown(file: str, folder: str) -> str:
    path = Path(file)
    inside = folder and path.is_relative_to(folder)
    return (path.relative_to(folder) if inside else Path(*path.parts[-2:])).as_posix()


def place_in_python() -> str:
    """The text of `line_in_python`; "" without such a line."""
    return text_of(line_in_python())


@functools.cache
def is_the_users(file: str) -> bool:
    return not (file.startswith(("<", _TORCH, _PERFGUARD)) or any(part in file for part in _BETWEEN))
