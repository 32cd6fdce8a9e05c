"""A limit on the time of one case: a hung GPU call cannot be interrupted in Python, so its process must end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parents[1])
# The innermost of perfguard's own files on the stack names the step, by the longest path that is here.
_STEPS = {
    ("check",): "the numerics check",
    ("check", "hard_inputs"): "derived inputs",
    ("measure", "devices"): "the device's measuring",
    ("measure", "timers"): "timing",
    ("session", "pairing", "worker.py"): "waiting for its turn in a comparison",
}
_METRICS = ("measure", "metrics")


class Watchdog:
    """Limits the time of one operation at a time of the calling thread.

    Args:
        minutes: the limit.
        expired: called with the hanging step after the limit, on a thread of the watchdog's own. The operation cannot
            end meanwhile. `expired` is expected to end the process.
    """

    def __init__(self, minutes: float, expired: Callable[[str], None]) -> None:
        self._seconds = 60 * minutes
        self._expired = expired
        self._watched: object | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """The body must end within the limit."""
        token = object()
        timer = threading.Timer(self._seconds, self._end, (token, threading.get_ident()))
        timer.daemon = True
        self._watched = token
        timer.start()
        try:
            yield
        finally:
            with self._lock:  # not while `expired` runs
                self._watched = None
            timer.cancel()

    def _end(self, token: object, thread: int) -> None:
        with self._lock:
            if self._watched is token:
                self._expired(describe_step(sys._current_frames().get(thread)))


def describe_step(frame: FrameType | None) -> str:
    """Position of a thread: the step of perfguard, and the innermost line outside perfguard and torch.

    E.g. `reading launches, at kernel.py:12 in double`.
    """
    step = place = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            step = step or _step_of(path.relative_to(_PACKAGE).parts)
        elif not place and not step and _is_users(path):
            place = f", at {path.name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return (step or "the test's own code") + place


def _step_of(parts: tuple[str, ...]) -> str:
    if parts[:2] == _METRICS and parts[-1] not in ("__init__.py", "subject.py"):
        return f"reading {parts[-1].removesuffix('.py')}"
    return next((_STEPS[parts[:count]] for count in (3, 2, 1) if parts[:count] in _STEPS), "")


def _is_users(path: Path) -> bool:
    """Not of an installed package, the standard library or generated code."""
    return (
        path.is_file() and not path.is_relative_to(os.path.dirname(os.__file__)) and "site-packages" not in path.parts
    )


def stop_children() -> None:
    """Kill all descendants of this process. Without this, compiler helper processes survive a kill."""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found
