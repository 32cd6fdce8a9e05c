"""The state of the interpreter: the running kernel, the counts of its work, and the strict run, if any.

In strict runs, kernels that rely on unspecified behaviour give other results. Masked lanes of a load without `other`
hold NaN instead of 0. Programs run from last to first. Or they run at once: no program sees stores of another one in
the same launch before its next atomic operation, since only these order accesses on a GPU.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from perfguard._compat.triton_interpreter import MEMORY
from perfguard.model.errors import PerfguardError

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


# -- strict runs -------------------------------------------------------------------------------------------------------


@dataclass
class Strict:
    """The options and the log of strict launches.

    Attributes:
        poisons: tells whether masked lanes of a load without `other`, at a line, hold NaN or the largest integer; None:
            they hold 0.
        backwards: whether programs run from last to first.
        at_once: whether programs run at once.
        poisoned: the lines at which lanes were poisoned, once for each load.
        accesses: (launch, program, addresses, kind, line) of each access of memory; None: they are not logged.
    """

    poisons: Callable[[str], bool] | None = None
    backwards: bool = False
    at_once: bool = False
    poisoned: list[str] = field(default_factory=list)
    accesses: list[tuple[int, int, Array, str, str]] | None = None
    _pending: list[tuple[Array, Array, Array]] = field(default_factory=list)  # Stores of the running program.
    _later: list[tuple[Array, Array, Array]] = field(default_factory=list)  # Stores of ended programs.

    def store(self, addresses: Array, values: Array) -> None:
        """Store values that only the running program sees until they are published."""
        old = _load(addresses, values.dtype)
        self._pending.append((addresses, old, values))
        _store(addresses, values)

    def publish(self) -> None:
        """Make the stores of the running program visible to all programs."""
        self._pending.clear()

    def end_program(self) -> None:
        """Undo unpublished stores, so that the next program finds memory as this one did."""
        for addresses, old, _ in reversed(self._pending):
            _store(addresses, old)
        self._later += self._pending
        self._pending = []

    def end_launch(self) -> None:
        """Apply the stores of all programs."""
        self.end_program()
        for addresses, _, values in self._later:
            _store(addresses, values)
        self._later = []

    def shared(self) -> str:
        """`kernel.py:7 stores, and kernel.py:6 loads, what other programs store`; empty if programs share nothing."""
        by_kind: dict[str, list[str]] = {}
        for launch in {each[0] for each in self.accesses or ()}:
            for what, line in _shared([each for each in self.accesses or () if each[0] == launch]):
                by_kind.setdefault(what, []).append(line)
        parts = [f"{', '.join(sorted(set(lines)))} {what}" for what, lines in sorted(by_kind.items(), reverse=True)]
        return f"{', and '.join(parts)} what other programs store" if parts else ""


def _shared(accesses: list[tuple[int, int, Array, str, str]]) -> set[tuple[str, str]]:
    """(kind, line) of the accesses of one launch to elements that several programs access and at least one stores."""
    sizes = [len(each[2]) for each in accesses]
    programs = np.repeat([each[1] for each in accesses], sizes)
    stores = np.repeat([each[3] == "stores" for each in accesses], sizes)
    elements, at = np.unique(np.concatenate([each[2] for each in accesses]), return_inverse=True)
    first, last = np.full(len(elements), np.iinfo(np.int64).max), np.full(len(elements), -1)
    np.minimum.at(first, at, programs)
    np.maximum.at(last, at, programs)
    stored = np.zeros(len(elements), dtype=bool)
    stored[at[stores]] = True
    shares = (first != last) & stored
    ends = np.cumsum(sizes)
    return {
        (what, line)
        for (_, _, _, what, line), end, size in zip(accesses, ends, sizes, strict=True)
        if shares[at[end - size : end]].any()
    }


@contextmanager
def strictly(strict: Strict | None) -> Iterator[None]:
    """Run all kernels with the options of `strict` while inside."""
    before, RUNNING.strict = RUNNING.strict, strict
    try:
        yield
    finally:
        RUNNING.strict = before


def _load(addresses: Array, kind: Any) -> Array:
    loaded: Array = MEMORY.get().load(
        addresses, np.ones(len(addresses), dtype=bool), np.zeros(len(addresses), kind), kind
    )
    return loaded


def _store(addresses: Array, values: Array) -> None:
    MEMORY.get().store(addresses, values, np.ones(len(addresses), dtype=bool))
