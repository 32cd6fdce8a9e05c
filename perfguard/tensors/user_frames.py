"""Finds the line of the user's code that is running."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_PERFGUARD = str(Path(__file__).parents[1]) + os.sep


def place_in_python() -> str:
    """`kernels/moe/dispatch.py:57 in counts`: the innermost line that is neither torch's nor ours; "" without one.

    A path inside the current folder is relative to it; any other is cut to its last two parts.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_the_users(frame.f_code):
            path = Path(frame.f_code.co_filename)
            inside = path.is_relative_to(Path.cwd())
            shown = path.relative_to(Path.cwd()) if inside else Path(*path.parts[-2:])
            return f"{shown.as_posix()}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def _is_the_users(code: CodeType) -> bool:
    file = code.co_filename
    return not (file.startswith(("<", _TORCH, _PERFGUARD)) or f"{os.sep}contextlib.py" in file)
