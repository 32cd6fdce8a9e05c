"""Strict runs, in which kernels that rely on unspecified behaviour give other results.

Masked lanes of a load without `other` hold NaN instead of 0. Programs run from last to first. Or they run at once: no
program sees stores of another one in the same launch before its next atomic operation, since only these order accesses
on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfguard._compat.triton_interpreter import MEMORY
from perfguard.interpreter.running import RUNNING, Array


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
