"""Finds the line of the user's code that is running."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_PERFGUARD = str(Path(__file__).parents[1]) + os.sep

_users: dict[str, bool] = {}  # file of a code object -> whether it is the user's


class Line(NamedTuple):
    """A line of Python that is running."""

    code: CodeType
    number: int

    def __str__(self) -> str:
        """`kernels/moe/dispatch.py:57 in counts`. A path inside the current folder is relative to it; any other is cut
        to its last two parts."""
        return f"{self._file}:{self.number} in {self.code.co_name}"

    @property
    def _file(self) -> str:
        path = Path(self.code.co_filename)
        with suppress(OSError):  # a test may remove the folder that it has changed to
            if path.is_relative_to(Path.cwd()):
                return path.relative_to(Path.cwd()).as_posix()
        return Path(*path.parts[-2:]).as_posix()


def line_in_python() -> Line | None:
    """The innermost line that is neither torch's nor ours; None without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        users = _users.get(file)
        if users is None:
            users = _users[file] = _is_the_users(file)
        if users:
            return Line(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return None


def place_in_python() -> str:
    """The same as text, `kernels/moe/dispatch.py:57 in counts`; "" without one."""
    line = line_in_python()
    return "" if line is None else str(line)


def _is_the_users(file: str) -> bool:
    return not (file.startswith(("<", _TORCH, _PERFGUARD)) or f"{os.sep}contextlib.py" in file)
