"""The sides of a process pair: their names, the orders in which they start, foreign code, and signals meanwhile."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Literal, Self

from perfguard.model.errors import UsageError

# The merge base, a second checkout of it (the control), the working tree. The names have one length, since the length
# of a path or variable can shift a program in memory and so change its time.
Side = Literal["base", "copy", "work"]
SIDES: tuple[Side, ...] = ("base", "copy", "work")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def starting_orders(chance: random.Random) -> list[list[Side]]:
    """The orders in which the sides of as many pairs start: a random Latin square.

    Each side starts once in each position. A position that slows a process down then scatters over the sides.
    Independent draws would slow a given side in all three pairs in one case of 27.
    """
    first = chance.sample(SIDES, len(SIDES))
    return [first[turn:] + first[:turn] for turn in chance.sample(range(len(SIDES)), len(SIDES))]


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
        if threading.current_thread() is threading.main_thread():  # Only the main thread may set handlers.
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


def describe(side: Side) -> str:
    """The side in words."""
    return {"base": "the base", "copy": "the second checkout of the base", "work": "the working tree"}[side]


def foreign_error(module: str, side: Side) -> UsageError:
    """The error of a side that has loaded `module` from the user's checkout."""
    return UsageError(
        f"{module}: loaded by the worker of {describe(side)}, not from its worktree: both sides would measure this one "
        "file. Uninstall the editable install, or name its folder relative to the repository in pytest's pythonpath "
        "(--setup 'pip install …' would change all sides at once)"
    )
