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

_BETWEEN = f"{os.sep}contextlib.py", os.sep.join(("", "triton", "runtime", ""))  # Between two lines of a user's.

# A line of Python: its code, and the offset of the instruction that runs. Python finds the number of a line by counting
# from the beginning of its code, so only that of a line that is shown is asked for.
Line = tuple[CodeType, int]


def line_in_python() -> Line | None:
    """The innermost line that is neither torch's, Triton's launcher's nor ours; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if is_the_users(code.co_filename):
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def text_of(line: Line | None) -> str:
    """`kernels/moe/dispatch.py:57 in counts`; "" of None. A path inside the current folder is relative to it; any other
    is cut to its last two parts."""
    if line is None:
        return ""
    code, offset = line
    number = next((number for start, end, number in code.co_lines() if start <= offset < end), None)
    folder = ""
    with suppress(OSError):  # a test may remove the folder that it has changed to
        folder = os.getcwd()
    return f"{_shown(code.co_filename, folder)}:{number} in {code.co_name}"


@functools.lru_cache(maxsize=1000)
def _shown(file: str, folder: str) -> str:
    path = Path(file)
    inside = folder and path.is_relative_to(folder)
    return (path.relative_to(folder) if inside else Path(*path.parts[-2:])).as_posix()


def place_in_python() -> str:
    """The innermost line that is neither torch's nor ours, as text; "" without one."""
    return text_of(line_in_python())


@functools.cache
def is_the_users(file: str) -> bool:
    return not (file.startswith(("<", _TORCH, _PERFGUARD)) or any(part in file for part in _BETWEEN))
