"""Ctrl-C and SIGTERM at any moment: the work stops, and its files are removed without interruption."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Turns the first signal into KeyboardInterrupt while `armed`, and swallows all others.

    ::

        with Interrupts() as interrupts:
            try:
                with interrupts.armed():
                    work()
            finally:
                clean_up()

    No signal interrupts `clean_up()`: the handler disarms itself before it raises, and `armed()` disarms it on
    every other way out; a signal in between raises inside the `try`.
    """

    def __init__(self) -> None:
        self._armed = False
        self._before: dict[signal.Signals, Any] = {}
        self.received = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Inside this block a signal raises KeyboardInterrupt, once."""
        try:
            self._armed = True
            self._raise_late()
            yield
        finally:
            self._armed = False

    @contextlib.contextmanager
    def delayed(self) -> Iterator[None]:
        """Inside `armed()`: a signal waits until the end of this block, unless the block raises."""
        self._armed = False
        try:
            yield
        finally:
            self._armed = not self.received
        self._raise_late()

    def _raise_late(self) -> None:
        if self.received:
            self._armed = False
            raise KeyboardInterrupt
