"""Ends a process with its parent, however the parent ends, so that no run leaves processes behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
_POLL_SECONDS = 0.5


def end_with(parent: int) -> None:
    """Have the system kill this process once `parent`, which started it, is gone, or immediately if it is gone already.

    A busy process does not read pipes, and a test that hangs in C code runs no Python thread, so that only the system
    can end both. Linux does so when the *thread* ends that started this process: that thread has to wait for the
    process, or to last. Processes that this process starts need a call of their own.

    Args:
        parent: the id of the parent, as passed by it: this process cannot distinguish a dead parent from init.
    """
    if not _killed_with_parent():
        threading.Thread(target=_watch, args=(parent,), name="perfguard: parent", daemon=True).start()
    if not _is_there(parent):  # It ended before the call above.
        os.kill(os.getpid(), signal.SIGKILL)


def _killed_with_parent() -> bool:
    with contextlib.suppress(ImportError, OSError, AttributeError):  # This is not Linux.
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) == 0)
    return False


def _is_there(parent: int) -> bool:
    """Whether `parent` is alive. It may have started this process through a script that wraps an interpreter."""
    if os.getppid() == parent:
        return True
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # Another user owns it.
        pass
    return True


def _watch(parent: int) -> None:
    while _is_there(parent):
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
