"""Observes a test while it runs: its operators, its memory, what it saves for backward passes, its Triton kernels.

A test runs once, and its body may do anything, so nothing is repeated here, and nothing that the test could notice is
changed: no hook on saved tensors (torch.func refuses them), no reset of the compiler, no statistics of the allocator.
What is kept is bounded by the number of different operators and lines, not by the length of the test.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from perfguard._compat.torch_internals import backward_noted, storage_address
from perfguard._compat.triton_internals import launches_noted
from perfguard.measure.devices import operators
from perfguard.measure.devices.device import Activity, Copied, Seen, Waited
from perfguard.tensors.graph import saved_tensors
from perfguard.tensors.user_frames import Line, line_in_python


@contextmanager
def observed(kind: str) -> Iterator[Seen]:
    """Observe what runs inside.

    Args:
        kind: device type whose tensors count.
    """
    seen, tally, saved = Seen(), _Tally(kind), _Saved()
    # Objects that are here already need no look when cycles are collected after the test.
    gc.freeze()
    try:
        with (
            launches_noted(tally.saw_launch),
            backward_noted(saved.count),
            operators.followed(tally, [*operators.METHODS, *operators.device_waits(kind)]),
        ):
            yield seen
        tally.tell(seen)
    finally:
        gc.unfreeze()
    seen.saved = saved.by_node


class _Tally(operators.Operators):
    """Counts what is seen, by operator and line of Python."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.names: Counter[str] = Counter()
        self.kernels: Counter[tuple[str, str]] = Counter()
        self._copies: Counter[tuple[str, Line | None]] = Counter()
        self._copied: Counter[tuple[str, Line | None]] = Counter()  # bytes
        self._waits: Counter[tuple[str, Line | None]] = Counter()
        self._born: dict[int, Line | None] = {}  # address of a storage -> the line that made it

    def saw_operator(self, name: str) -> None:
        self.names[name] += 1

    def saw_launch(self, kernel: Any, grid: Any) -> None:
        """Triton launches a compiled kernel."""
        self.kernels[kernel.name, str(tuple(grid))] += 1

    def saw_copy(self, name: str, moved: int) -> None:
        at = name, line_in_python()
        self._copies[at] += 1
        self._copied[at] += moved

    def saw_wait(self, name: str) -> None:
        self._waits[name, line_in_python()] += 1

    def saw_storage(self, address: int) -> None:
        self._born[address] = line_in_python()

    def tell(self, seen: Seen) -> None:
        """Fill in what was counted. Tensors that only a cycle of Python objects holds are freed first."""
        if self.ledger.alive:
            gc.collect()
        left: Counter[str] = Counter()
        for address, count in self.ledger.alive.items():
            left[_text(self._born.get(address))] += count
        seen.left = left
        seen.activity = Activity(
            launches=self.names,
            copies=[Copied(name, self._copied[name, at], _text(at), n) for (name, at), n in self._copies.items()],
            waits=[Waited(name, _text(at), n) for (name, at), n in self._waits.items()],
            tensor_bytes=self.ledger.peak,
        )
        seen.kernels = self.kernels


def _text(line: Line | None) -> str:
    return "" if line is None else str(line)


class _Saved:
    """Bytes that graphs hold when they are first differentiated, by node: `MulBackward0.self`."""

    def __init__(self) -> None:
        self.by_node: Counter[str] = Counter()

    def count(self, outputs: Sequence[Any]) -> None:
        """Count what the graph behind the outputs of a backward pass holds. gradcheck differentiates one graph
        thousands of times, so each is marked when it is counted."""
        new = []
        for each in outputs:
            node: Any = each.grad_fn if isinstance(each, torch.Tensor) else None
            if node is not None and self not in node.metadata:
                node.metadata[self] = True
                new.append(each)
        storages: dict[int, tuple[str, int]] = {}
        for name, tensor in saved_tensors(new):
            storages.setdefault(storage_address(tensor), (name, tensor.untyped_storage().nbytes()))
        for name, count in storages.values():
            self.by_node[name] += count
