"""Observes a test while it runs: its operators, its memory, tensors saved for backward passes, its Triton kernels.

A test runs once, and its body may do anything. So this module repeats nothing, and changes nothing that the test could
notice: it has no hook on saved tensors (torch.func refuses them), and resets neither the compiler nor the allocator's
statistics. The memory of its counts is bounded by the number of different operators and lines.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from perfguard._compat.torch_internals import backward_noted, storage_address
from perfguard._compat.torch_utils import is_fake
from perfguard._compat.triton_internals import launches_noted, tuners_noted
from perfguard.interpreter.running import counted
from perfguard.measure.devices import operators
from perfguard.measure.devices.activity import Activity, Copied, ObservedActivity, Waited
from perfguard.model.modules import entered_when_loaded
from perfguard.tensors.autograd_graph import saved_tensors
from perfguard.tensors.user_frames import Line, line_in_python, text_of

# The arguments are kernel, arguments, grid, keywords.
Interpreted = Callable[[Any, Sequence[Any], Sequence[int], Mapping[str, Any]], None]


@contextmanager
def observed(kind: str, interpreted: Interpreted | None = None) -> Iterator[ObservedActivity]:
    """Observe the work inside, with the tensors of this kind of device (`Device.observed`)."""
    seen, tally = ObservedActivity(), _Tally(kind, interpreted)
    saved = _Saved(tally.maker)
    with (
        counted() as work,
        entered_when_loaded("triton", lambda: launches_noted(tally.on_launch)),
        # How often a tuner times its configurations depends on the clock, and a process that finds its choice on the
        # disk times none.
        entered_when_loaded("triton", lambda: tuners_noted(tally.tuned, tally.pause)),
        backward_noted(saved.count),
        operators.followed(tally, [*operators.METHODS, *operators.device_waits(kind)]),
    ):
        yield seen
    tally.fill(seen)
    seen.activity = replace(seen.activity, work=work)
    for (name, line), count in saved.by_node.items():
        seen.saved[f"{name} at {text_of(line)}" if line else name] += count


class _Tally(operators.Operators):
    """Counts operators, copies and waits, by operator and line of Python."""

    counts_fakes = False

    def __init__(self, kind: str, interpreted: Interpreted | None) -> None:
        super().__init__(kind)
        self._interpreted = interpreted
        self.compiled: dict[str, tuple[Any, Any]] = {}  # Kernels launched on a GPU, by hash, and their tuners.
        self._tuner: Any = None  # Kernels are launched through this tuner now.
        self.names: Counter[str] = Counter()
        self.kernels: Counter[tuple[str, str]] = Counter()
        self._copies: Counter[tuple[str, Line | None]] = Counter()
        self._copied: Counter[tuple[str, Line | None]] = Counter()  # bytes
        self._waits: Counter[tuple[str, Line | None]] = Counter()
        self._collections = _collections()

    def on_operator(self, name: str) -> None:
        self.names[name] += 1

    def on_launch(self, kernel: Any, grid: Any, args: Sequence[Any]) -> None:
        """Count a launch of a compiled Triton kernel."""
        if self.paused:
            return
        self._count_launch(kernel.name, grid)
        self.compiled.setdefault(kernel.hash, (kernel, self._tuner))

    @contextmanager
    def tuned(self, tuner: Any) -> Iterator[None]:
        """Attribute the launches inside to a tuner."""
        before, self._tuner = self._tuner, tuner
        try:
            yield
        finally:
            self._tuner = before

    def on_interpreted(self, kernel: Any, args: Sequence[Any], grid: Sequence[int], kwargs: Mapping[str, Any]) -> None:
        self._count_launch(kernel.fn.__name__, grid)
        if self._interpreted is not None:
            self._interpreted(kernel, args, grid, kwargs)

    def _count_launch(self, kernel: str, grid: Sequence[int]) -> None:
        self.kernels[kernel, str(tuple(grid)) if self._tuner is None else "tuned"] += 1

    def on_copy(self, name: str, moved: int) -> None:
        at = name, line_in_python()
        self._copies[at] += 1
        self._copied[at] += moved

    def on_wait(self, name: str) -> None:
        self._waits[name, line_in_python()] += 1

    def maker(self, address: int) -> Line | None:
        """The line that made the storage at `address`; None if unknown."""
        storage = self.alive.get(address)
        return None if storage is None else storage.line

    def _oldest(self) -> int:
        """The oldest generation of the garbage collector that may have objects of the test. They reach the last one
        only by a collection of the one before. Collecting the last one takes as long as ten tests."""
        return 1 if self._collections == _collections() else 2

    def fill(self, seen: ObservedActivity) -> None:
        """Fill in the counts. Tensors that only a cycle of Python objects holds are freed before."""
        for generation in range(self._oldest() + 1):  # Most cycles are in the youngest generation.
            if self.alive:
                gc.collect(generation)
        left: Counter[str] = Counter()
        for storage in list(self.alive.values()):
            left[text_of(storage.line)] += storage.bytes
        seen.left = left
        seen.activity = Activity(
            launches=self.names,
            copies=[Copied(name, self._copied[name, at], text_of(at), n) for (name, at), n in self._copies.items()],
            waits=[Waited(name, text_of(at), n) for (name, at), n in self._waits.items()],
            tensor_bytes=self.peak,
        )
        seen.kernels = self.kernels
        seen.compiled = list(self.compiled.values())


def _collections() -> list[int]:
    """How often the garbage collector has moved objects to its last generation, by collected generation. Since Python
    3.14 every collection does so."""
    return [stats["collections"] for stats in gc.get_stats()[0 if sys.version_info >= (3, 14) else 1 :]]


class _Saved:
    """Bytes that graphs hold when they are first differentiated, by node, and by the line that made the tensor. `maker`
    returns the line that made a storage, from its address."""

    def __init__(self, maker: Callable[[int], Line | None]) -> None:
        self.by_node: Counter[tuple[str, Line | None]] = Counter()
        self._maker = maker

    def count(self, outputs: Sequence[Any]) -> None:
        """Count the bytes that the graph of a backward pass's outputs holds. Each counted graph is marked, because
        gradcheck differentiates one graph thousands of times."""
        new = []
        for output in outputs:
            node: Any = output.grad_fn if isinstance(output, torch.Tensor) else None
            if node is not None and self not in node.metadata:
                node.metadata[self] = True
                new.append(output)
        storages: dict[int, tuple[str, Line | None, int]] = {}
        for name, tensor in saved_tensors(new):
            if is_fake(type(tensor)) or tensor.is_meta:
                continue
            address = storage_address(tensor)
            if address not in storages:
                storages[address] = name, self._maker(address), tensor.untyped_storage().nbytes()
        for name, line, count in storages.values():
            self.by_node[name, line] += count
