"""A limit on the time of one case: a hung GPU call cannot be interrupted in Python, so its process must end."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

_FIRST_SECONDS = 10.0  # Most bodies end sooner.
_PACKAGE = str(Path(__file__).parents[1])
# Path -> step. The innermost of perfguard's own files on the stack names the step, by the first path that contains it.
_STEPS = {
    "check/hard_inputs": "hard inputs",
    "check": "the numerics check",
    "measure/binaries": "following and compiling kernels",
    "measure/devices": "the device's measuring",
    "measure/timers": "timing",
    "measure/metrics": "reading metrics",
    "session/cold_start": "starting cold",
    "session/pairing/worker": "waiting for its turn in a comparison",
    "ranks/rank_group": "waiting for the other ranks",
    "ranks/sharded": "the numerics check",
}


@contextlib.contextmanager
def watched(
    minutes: float,
    expired: Callable[[str], None],
    every: float = math.inf,
    seen: Callable[[str, float], None] = lambda step, seconds: None,
    *,
    first: float = _FIRST_SECONDS,
) -> Iterator[None]:
    """The body must end within the limit.

    Args:
        expired: called with the hanging step after the limit, on a thread of its own. The body cannot end meanwhile.
            `expired` is expected to end the process.
        every: seconds between two calls of `seen`; a short body ends before the first.
        seen: called on that thread with the step, and the seconds since the start.
        first: the least seconds before the first call of `seen`.
    """
    thread, lock, ended = threading.get_ident(), threading.Lock(), threading.Event()
    started, limit = time.monotonic(), 60 * minutes

    def watch() -> None:
        due, seconds = max(first, every), 0.0
        while not ended.wait(min(max(0.0, min(due, limit) - seconds), threading.TIMEOUT_MAX)):
            seconds = time.monotonic() - started
            with lock:
                if ended.is_set():
                    return
                step = describe_step(sys._current_frames().get(thread))
                if seconds >= limit:
                    expired(step)
                    return
                if seconds >= due:
                    seen(step, seconds)
                    due = seconds + every

    threading.Thread(target=watch, name="perfguard: watch", daemon=True).start()
    try:
        yield
    finally:
        with lock:  # `expired` must not run meanwhile.
            ended.set()


def describe_step(frame: FrameType | None) -> str:
    """Position of a thread: the step of perfguard, and the innermost line outside perfguard and torch.

    E.g. `timing, at kernel.py:12 in double`.
    """
    step = position = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            inside = path.relative_to(_PACKAGE).as_posix()
            step = step or next((name for prefix, name in _STEPS.items() if inside.startswith(prefix)), "")
        elif not position and not step and _is_users(path):
            position = f", at {path.name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return (step or "the test's own code") + position


def _is_users(path: Path) -> bool:
    """Whether a file is not of an installed package, the standard library or generated code."""
    return (
        path.is_file() and not path.is_relative_to(os.path.dirname(os.__file__)) and "site-packages" not in path.parts
    )


def stop_children() -> None:
    """Kill all descendants of this process. Without this, compiler helper processes survive a kill."""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    descendants: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                descendants += [int(child), *_descendants(int(child))]
    return descendants
