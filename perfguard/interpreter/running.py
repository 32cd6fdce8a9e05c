"""The state of the interpreter: the running kernel, the counts of its work, and the strict run, if any."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfguard.model.errors import PerfguardError

if TYPE_CHECKING:
    from perfguard.interpreter.strict import Strict

Array = np.ndarray[Any, Any]
Work = Counter[tuple[str, str]]  # (kernel, kind) -> number, for loads, stores, atomics, products, programs.

_OURS = str(Path(__file__).parent)
_TRITON = "/triton/"

# A program that waits for an earlier one never ends if programs run one after the other from last to first. The run
# stops once memory was accessed this many times as often as by the launch from first to last, plus a margin.
_MOST_ACCESSES = 4
_SOME = 1000
# A derived input may give a row, and so a program, to each of many thousands. A launch on it accesses memory at most
# this many times, or a few times as often as any launch on the given inputs: an access costs about half a millisecond.
_MOST_DERIVED = 1 << 13


class NotInterpreted(PerfguardError):
    """A kernel needs an operation that no interpreter has. The message names the operation."""

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} needs a GPU: Triton's interpreter cannot run it")


class StrictRunImpossible(PerfguardError):
    """A strict run cannot check this kernel, or a derived input would be interpreted for too long."""


class OutsideMemory(PerfguardError):
    """An address is outside the tensors that the kernel was given."""


@dataclass
class Running:
    """The state of this process's one interpreter.

    Attributes:
        kernel: the name of the running kernel.
        program: the number of the running program.
        spans: the first and last addresses of the tensors of a launch, ascending; None: they are unknown.
        tallies: the active counters of work.
        accesses: kernel -> the most accesses of memory by one launch from first to last.
        given: the most accesses of memory by one launch outside of `bounded`.
        launches: the number of launches so far.
        open_lanes: whether a load without `other` has masked lanes.
        several: whether a launch on the host's memory had several programs.
        content_of: start of a storage -> where the part begins and ends that may be accessed, if it is not the whole;
            None: accesses outside of memory are not looked for, but in strict runs.
    """

    kernel: str = ""
    program: int = -1
    spans: tuple[Array, Array] | None = None
    tallies: list[Work] = field(default_factory=list)
    strict: Strict | None = None
    accesses: dict[str, int] = field(default_factory=dict)
    given: int = 0
    launches: int = 0
    open_lanes: bool = False
    several: bool = False
    content_of: Callable[[int], tuple[int, int] | None] | None = None
    _here: int = 0

    def forget(self) -> None:
        """Reset the state for another call."""
        self.accesses.clear()
        self.given, self.launches, self.open_lanes, self.several = 0, 0, False, False

    def begin(self, kernel: str, spans: tuple[Array, Array] | None) -> None:
        """Begin a launch."""
        self.kernel, self.spans, self.program, self._here = kernel, spans, -1, 0
        self.launches += 1

    def begin_program(self, programs: int) -> None:
        """Begin the next program of a launch of so many.

        Raises:
            StrictRunImpossible: in `bounded`, if the other programs are like the first, they access memory too often.
        """
        self.program += 1
        if self.program == 1:
            self._end_if_long(self._here * programs)
        self.several = self.several or (self.program > 0 and self.spans is not None)
        if self.strict is not None and self.strict.at_once:
            self.strict.end_program()
        self.count("programs", 1)

    def end(self) -> None:
        """End the launch."""
        if self.strict is not None:
            self.strict.end_launch()
        else:
            self.accesses[self.kernel] = max(self.accesses.get(self.kernel, 0), self._here)
        if self.content_of is None:
            self.given = max(self.given, self._here)

    def _end_if_long(self, accesses: int) -> None:
        if self.content_of is not None and accesses > max(_MOST_DERIVED, _MOST_ACCESSES * self.given):
            raise StrictRunImpossible(f"{self.kernel}: interpreting it takes too long")

    def count(self, what: str, number: int) -> None:
        """Count work of the running kernel."""
        for tally in self.tallies:
            tally[self.kernel, what] += number

    def accessed(self, what: str, addresses: Array, mask: Array) -> bool:
        """Register an access of memory in the lanes of `mask`; returns whether these are all lanes.

        Raises:
            OutsideMemory: an address is outside the tensors of the launch, in a strict run or in `bounded`.
            StrictRunImpossible: in a strict run, a program waits for one that has not run; in `bounded`, the launch
                accesses memory too often.
        """
        number = int(np.count_nonzero(mask))
        self.count(what, number)
        self._here += 1
        strict = self.strict
        if not number or (strict is None and self.content_of is None):
            return number == mask.size
        if strict is not None and self._here > _MOST_ACCESSES * self.accesses.get(self.kernel, 0) + _SOME:
            raise StrictRunImpossible(f"{self.kernel}: it does not end, as it waits for a program that has not run")
        self._end_if_long(self._here)
        active = addresses[mask] if number < mask.size else addresses.reshape(-1)
        if self.spans is not None:
            starts, ends = self.spans
            span = np.searchsorted(starts, active, side="right") - 1
            if bool(((span < 0) | (active >= ends[np.maximum(span, 0)])).any()):
                raise OutsideMemory(f"{line()} reaches outside of the tensors that {self.kernel} was given")
        if strict is not None and strict.accesses is not None:
            strict.accesses.append((self.launches, self.program, np.unique(active), what, line()))
        return number == mask.size


RUNNING = Running()


def line() -> str:
    """`energy.py:12`, the innermost running line of a user's kernel."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not (name.startswith((_OURS, "<")) or _TRITON in name):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@contextmanager
def bounded(content_of: Callable[[int], tuple[int, int] | None]) -> Iterator[None]:
    """Let accesses outside of the tensors of a launch raise while inside, before they change or end the process."""
    before, RUNNING.content_of = RUNNING.content_of, content_of
    try:
        yield
    finally:
        RUNNING.content_of = before


@contextmanager
def counted() -> Iterator[Work]:
    """Count the work of all kernels that are interpreted while inside. `interpreting` has to be active."""
    work: Work = Counter()
    RUNNING.tallies.append(work)
    try:
        yield work
    finally:
        RUNNING.tallies[:] = [each for each in RUNNING.tallies if each is not work]
