"""Other sizes of a call's inputs. Dimensions of one size belong together, and are cut or grown together.

Where tensors have a size in several places, counted from the last dimension, as square ones do, each place is also cut
alone: rows and columns that are as many may be taken for each other.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from perfguard._compat import torch_utils
from perfguard.check.hard_inputs import Mark, mark_of
from perfguard.check.hard_inputs.derivation import Part, leaves_of
from perfguard.check.hard_inputs.integers import agreeing, following
from perfguard.check.hard_inputs.values import is_paired
from perfguard.model.call import Call

BLOCK = 256  # most blocks and tails recur within this size
_NEAR = [power + by for power in (16, 32, 64, 128, BLOCK) for by in (1, -1, 0)]
_GROWN = 4  # times the elements of the given inputs
_GROWN_ELEMENTS = 2**14  # of all inputs; that many are cheap, also where kernels are interpreted


@dataclass(frozen=True)
class Kept:
    """What a call's function and its reference keep of their own: whether tensors, and which numbers."""

    tensors: bool
    numbers: frozenset[int]


def kept_by(call: Call) -> Kept:
    """As of now: before the first call, since a cache that calls fill is to follow them."""
    kept = [each for fn in (call.fn, call.reference) for each in _kept(fn)]
    return Kept(any(isinstance(each, torch.Tensor) for each in kept), _numbers(kept))


def _numbers(values: Iterable[Any]) -> frozenset[int]:
    return frozenset(each for each in values if type(each) is int)


def sizes_of(call: Call, kept: Kept) -> Sizes:
    """Sizes of the float inputs' dimensions may be others.

    None where tensors are kept, whose sizes would not change with those of the inputs, nor a size that is given, or
    kept, as a number.
    """
    leaves = leaves_of(call)
    told = {0, 1} | kept.numbers | _numbers(leaves)
    floats = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    found = dict.fromkeys(size for leaf in floats for size in leaf.shape if size not in told)
    return Sizes(leaves, [] if kept.tensors else [*found])


def _kept(fn: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """What a function keeps in its closure, its defaults and its given arguments, and so do the functions there."""
    seen = set() if seen is None else seen
    if id(fn) in seen:
        return
    seen.add(id(fn))
    kept = [*_cells(fn), *_tuple_of(fn, "__defaults__")]
    if isinstance(fn, functools.partial):
        kept += [fn.func, *fn.args, *fn.keywords.values()]
    yield from torch_utils.tree_leaves(kept)
    for value in kept:
        if isinstance(value, FunctionType | functools.partial):
            yield from _kept(value, seen)


def _cells(fn: Any) -> Iterator[Any]:
    for cell in _tuple_of(fn, "__closure__"):
        with contextlib.suppress(ValueError):  # it is not filled yet
            yield cell.cell_contents


def _tuple_of(fn: Any, name: str) -> tuple[Any, ...]:
    """An attribute of functions. Of another callable it may be anything."""
    found = getattr(fn, name, None)
    return found if isinstance(found, tuple) else ()


class Sizes:
    """Other sizes of inputs. Integers and pairs are looked at once: on a GPU each look waits for it.

    Attributes:
        free: sizes that may be others, in order of appearance.
    """

    def __init__(self, leaves: Sequence[Any], free: Sequence[int]) -> None:
        self.free = free
        self._leaves = leaves
        self._tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._is_paired = functools.cache(lambda place: is_paired(leaves[place]))
        self._least_most_sum = functools.cache(lambda place: _least_most_sum(leaves[place]))

    def small(self) -> Part | None:
        """Cut large dimensions to a block and its tail, so that further derived inputs are cheap."""
        joined: dict[int, str] = {}
        large = [size for size in self.free if size > 2 * BLOCK]
        for part in self._resized({size: [BLOCK + size % BLOCK] for size in large}):
            for place, text in part.steps.items():
                joined[place] = f"{joined[place]}, {text}" if place in joined else text
        return Part("sizes", joined) if joined else None

    def cuts(self) -> list[Part]:
        """Each size cut to one less, 1, to the powers of two below it with their neighbours, and to 0, but no row of
        0."""
        widths = {leaf.shape[-1] for leaf in self._tensors if leaf.is_floating_point() and leaf.ndim > 1}
        below = [target for target in _NEAR if target <= BLOCK // 2 + 1]
        targets = {
            size: [size - 1, 1, *(target for target in below if target < size), *([] if size in widths else [0])]
            for size in self.free
        }
        return [*self._resized(targets), *self.apart()]

    def apart(self) -> Iterator[Part]:
        """Cuts of one place of a size that stands in several. A size that marked integers mean stays: of which place it
        is, they do not tell."""
        meant = {_meant(leaf, mark) for leaf in self._tensors if (mark := mark_of(leaf)) is not None}
        for size in self.free:
            places = {dim - leaf.ndim for leaf in self._tensors for dim, each in enumerate(leaf.shape) if each == size}
            if len(places) > 1 and size not in meant:
                for target in (size - 1, size // 2):
                    if target > 1:  # a dimension of 1 could be expanded
                        yield from filter(None, (self.resize(size, target, place) for place in sorted(places)))

    def one_less(self) -> tuple[Part, ...]:
        """Every size cut by one, so that no block is full."""
        return tuple(self._resized({size: [size - 1] for size in self.free}))

    def growths(self) -> list[list[Part]]:
        """For each size: grown to twice as much, and to the powers of two above it with the next number, where that is
        cheap. What fits one block in a test fills several in use."""
        most = max(_GROWN_ELEMENTS, _GROWN * sum(leaf.numel() for leaf in self._tensors))

        def is_cheap(size: int, target: int) -> bool:
            grown = (leaf.numel() * (target / size) ** leaf.shape.count(size) for leaf in self._tensors)
            return sum(grown) <= most

        found = []
        for size in (size for size in self.free if size < BLOCK):
            above = [2 * size, *(target for target in _NEAR if target % 16 <= 1 and size < target)]
            found.append(self._resized({size: [target for target in above if is_cheap(size, target)]}))
        return [parts for parts in found if parts]

    def _resized(self, targets: Mapping[int, Sequence[int]]) -> list[Part]:
        """Each size as each of its targets, where that is valid."""
        found = (self.resize(size, target) for size, to in targets.items() for target in dict.fromkeys(to))
        return [part for part in found if part is not None]

    def resize(self, size: int, target: int, only: int | None = None) -> Part | None:
        """Every dimension of `size`, or that in one place alone, cut or grown to `target`; None if an integer would
        mean something else there. Marked integers follow."""
        verb = "cut" if target < size else "grown"
        steps = {}
        for place, leaf in enumerate(self._leaves):
            if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
                continue
            own = [
                f"dim {dim} {verb} to {target}"
                for dim, each in enumerate(leaf.shape)
                if each == size and only in (None, dim - leaf.ndim)
            ]
            mark = mark_of(leaf)
            if mark is not None:
                followed = following(leaf, mark, size, target, own)
                if followed is None:
                    return None
                own = followed
            elif not self._keeps_meaning(place, leaf, size, target):
                return None
            if own:
                steps[place] = ", ".join(own)
        return Part("sizes", agreeing(self._leaves, steps)) if steps else None

    def _keeps_meaning(self, place: int, tensor: torch.Tensor, size: int, target: int) -> bool:
        """Whether an unmarked tensor can mean the same. Indices stay within a cut. What has grown needs no more
        integers, and none that tells the old size, as ends and counts of groups do. Pairs stay whole."""
        if not _is_integer(tensor):
            return target % 2 == 0 or tensor.shape[-1:] != (size,) or not self._is_paired(place)
        if tensor.numel() == 0:
            return True
        least, most, total = self._least_most_sum(place)
        if target < size:
            return least >= -1 and most < target
        return size not in (*tensor.shape, most, total)


def _meant(tensor: torch.Tensor, mark: Mark) -> int:
    """The size that marked integers mean: the last end is that of the rows, where no other is given."""
    return mark.limit or (int(tensor.max()) if tensor.numel() else 0)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _least_most_sum(integers: torch.Tensor) -> tuple[int, int, int]:
    return int(integers.min()), int(integers.max()), int(integers.sum())
