"""A process that ends with the one that started it, however that one ends: no run leaves a process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
_POLL_SECONDS = 0.5


def end_with(parent: int) -> None:
    """Have the system kill this process once `parent`, which has started it, is gone. If that is so already, this is
    its end.

    A process at work reads no pipe, and a test that hangs in C code runs no thread of Python's: only the system ends
    both. Linux does so when the *thread* ends that has started this process, so that has to be one that waits for it,
    or that stays. What this process starts needs a call of its own.

    Args:
        parent: its id, from whoever has it: from here, a parent that is gone cannot be told from init.
    """
    if not _killed_with_parent():
        threading.Thread(target=_watch, args=(parent,), name="perfguard: parent", daemon=True).start()
    if not _is_there(parent):  # it ended before the system was asked
        os.kill(os.getpid(), signal.SIGKILL)


def _killed_with_parent() -> bool:
    with contextlib.suppress(ImportError, OSError, AttributeError):  # not Linux
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0)
    return False


def _is_there(parent: int) -> bool:
    """Whether `parent` lives, be it that a script that wraps an interpreter has started this process for it."""
    if os.getppid() == parent:
        return True
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        pass
    return True


def _watch(parent: int) -> None:
    while _is_there(parent):
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
