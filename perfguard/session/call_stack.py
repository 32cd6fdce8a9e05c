"""Room on the interpreter's stack of frames, so that no call waits for memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_ENTRIES = 1 << 15  # Python takes a block of twice as many for a frame of this size, 512 KB; the rest serves callees.

T = TypeVar("T")


def with_room(fn: Callable[..., T]) -> Callable[..., T]:
    """The function, called from a frame behind which the frames of some hundred calls have room.

    CPython takes memory for frames in blocks of 16 KB, and returns a block to the system when its first frame ends. A
    call that is the first in its block costs two system calls and a page fault, each time: several microseconds, more
    than many calls that are timed, and a tenth of a run, wherever the depth of pytest's own calls puts that boundary.
    """

    def called(*args: Any, **kwargs: Any) -> T:
        __tracebackhide__ = True
        return fn(*args, **kwargs)

    called.__code__ = called.__code__.replace(co_stacksize=_ENTRIES)
    return functools.wraps(fn)(called)
