"""Other sizes of a call's inputs. Dimensions of one size belong together, and are cut or grown together.

If a tensor has a size twice, as a square one does, each of its places, counted from the last dimension, is also cut
alone in all tensors: a kernel may confuse rows and columns that are equally many. Each set of places is also changed
alone if the reference accepts that: the numbers of queries and keys, for example, need not be equal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from perfguard.check.hard_inputs import Mark, mark_of
from perfguard.check.hard_inputs.code import global_tensors
from perfguard.check.hard_inputs.derivation import Derivation, FirstAccepted, Part, leaves_of
from perfguard.check.hard_inputs.integers import agreeing, following
from perfguard.check.hard_inputs.values import is_paired
from perfguard.check.numerics.modules import kept_in
from perfguard.model.call import Call

BLOCK = 256  # Most blocks and tails recur within this size.
_NEAR = [power + by for power in (16, 32, 64, 128, BLOCK) for by in (1, -1, 0)]
_TALL_ELEMENTS = 2**15  # The most elements of inputs beyond a threshold: a thousand narrow rows.
_NARROW = 16  # Rows beside many columns, or columns beside many rows; tiles of products have as many.
_MOST_PLACES = 6  # The most places of one size whose sets are all tried.
_PRODUCTS = 2049  # of 127 and 127; an odd number of odd ones
_SEQUENCES = 3  # in place of one
_GROWN = 4  # The most times the elements of the given inputs.
_GROWN_ELEMENTS = 2**14  # This many elements of all inputs are cheap even if kernels are interpreted.


@dataclass(frozen=True)
class Kept:
    """The values that a call's function and its reference keep: whether there are tensors, and the integers. Sizes of
    global tensors, which not every call reads, are integers here."""

    tensors: bool
    numbers: frozenset[int]


def kept_by(call: Call) -> Kept:
    """The values kept now. It has to be called before the first call, which may fill a cache."""
    kept = [each for fn in (call.fn, call.reference) for each in kept_in(fn)]
    tables = {size for fn in (call.fn, call.reference) for each in global_tensors(fn) for size in each.shape}
    return Kept(any(isinstance(each, torch.Tensor) for each in kept), _numbers(kept) | tables)


def _numbers(values: Iterable[Any]) -> frozenset[int]:
    return frozenset(each for each in values if type(each) is int)


def sizes_of(call: Call, kept: Kept, *, of_vectors: bool = False) -> Sizes:
    """The sizes of the float inputs' dimensions that may change; with `of_vectors` also those of vectors of integers.

    There are none if the functions keep tensors, whose sizes would not change with those of the inputs. A size that is
    given or kept as a number does not change either.
    """
    leaves = leaves_of(call)
    told = {0, 1} | kept.numbers | _numbers(leaves)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    # Codes are numbers, whose sizes change where there are no floats.
    floats = [leaf for leaf in tensors if leaf.is_floating_point()] or [leaf for leaf in tensors if is_code(leaf)]
    sizes = [size for leaf in floats for size in leaf.shape]
    vectors = [leaf for leaf in tensors if of_vectors and leaf.ndim == 1 and _is_integer(leaf)]
    sizes += [leaf.numel() for leaf in vectors if not _orders(leaf, sizes)]
    found = dict.fromkeys(size for size in sizes if size not in told)
    return Sizes(leaves, [] if kept.tensors else [*found])


class Sizes:
    """Other sizes of inputs. Values of integers and pairs are read once, because each read waits for a GPU.

    Attributes:
        free: the sizes that may change, in order of appearance.
    """

    def __init__(self, leaves: Sequence[Any], free: Sequence[int]) -> None:
        self.free = free
        self._leaves = leaves
        self._placed = {at: leaf for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        self._tensors = [*self._placed.values()]
        self._is_paired = functools.cache(lambda place: is_paired(leaves[place]))
        self._least_most_sum = functools.cache(lambda place: _least_most_sum(leaves[place]))
        shapes = {size for leaf in self._tensors for size in leaf.shape}
        no_float = not any(leaf.is_floating_point() for leaf in self._tensors)
        self._is_code = functools.cache(lambda place: no_float and is_code(leaves[place]))
        self._repeats = functools.cache(lambda place: leaves[place].unique().numel() < leaves[place].numel())
        self._orders = functools.cache(lambda place: _orders(leaves[place], shapes))

    def small(self) -> Part | None:
        """Cut large dimensions to a block and its tail, so that further derived inputs are cheap."""
        return self._joined({size: BLOCK + size % BLOCK for size in self.free if size > 2 * BLOCK}, "sizes")

    def _joined(self, targets: Mapping[int, int], kind: str) -> Part | None:
        """Several sizes changed at once."""
        joined: dict[int, str] = {}
        for part in self._resized({size: [target] for size, target in targets.items()}):
            for place, text in part.steps.items():
                joined[place] = f"{joined[place]}, {text}" if place in joined else text
        return Part(kind, joined) if joined else None

    def cuts(self) -> list[Part]:
        """Each size cut to one less, to 1, to the powers of two below it with their neighbours, and to 0, but no row to
        0 elements."""
        widths = self._widths()
        below = [target for target in _NEAR if target <= BLOCK // 2 + 1]
        targets = {
            size: [size - 1, 1, *(target for target in below if target < size), *([] if size in widths else [0])]
            for size in self.free
        }
        return [*self._resized(targets), *self.apart()]

    def _widths(self) -> set[int]:
        return {leaf.shape[-1] for leaf in self._tensors if leaf.is_floating_point() and leaf.ndim > 1}

    def emptied(self) -> list[Part]:
        """Each size cut to 0, but for those of rows."""
        return [*self._resized({size: [0] for size in self.free if size not in self._widths()})]

    def single(self) -> list[Part]:
        """One place of a size that several have cut to 1, which the reference may broadcast."""
        places = {size: self._places(size) for size in self._unmeant()}
        parts = (self.resize(size, 1, [each]) for size, own in places.items() for each in own if len(own) > 1)
        return [part for part in parts if part is not None]

    def apart(self) -> Iterator[Part]:
        """Cuts of one place of a size that one tensor has in several."""
        for size in self._unmeant():
            own = self._places(size)
            if all(leaf.shape.count(size) < 2 for leaf in self._tensors):
                continue
            for target in (size - 1, size // 2):
                if target > 1:  # a dimension of 1 could be expanded
                    for last in sorted({dim - self._leaves[place].ndim for place, dim in own}):
                        only = [(place, dim) for place, dim in own if dim - self._leaves[place].ndim == last]
                        yield from filter(None, [self.resize(size, target, only)])

    def subsets(self) -> list[FirstAccepted]:
        """For each size in several places: sets of these cut and grown alone, in several orders. The reference decides
        which sets are valid, since it refuses the others."""
        found = []
        for size in self._unmeant():
            own = self._places(size)
            if not 1 < len(own) <= _MOST_PLACES:
                continue
            sets = [only for number in range(1, len(own)) for only in combinations(own, number)]
            halves = [only for at in range(len(sets)) for only in (sets[at], sets[-1 - at])][: len(sets)]
            for target, order in (
                (size - 1 if size > 2 else 2 * size, sets),
                (size // 2, [*reversed(sets)]),
                (2 * size + 1, halves),
                (size // 2, sets),
            ):
                parts = [self.resize(size, target, only, "equal sizes") for only in order] if target > 1 else []
                joint = self.resize(size, target)
                items = tuple(Derivation((part,)) for part in parts if part is not None)
                if items and (target < size or self._is_cheap({size: target})):
                    found.append(FirstAccepted("equal sizes", items, Derivation((joint,) if joint else ())))
        return found

    def thresholds(self, compared: Iterable[int]) -> list[list[Part]]:
        """For each integer that the code compares with: every size up to it grown to one more; if that is too large,
        one such size at a time beside few of the others. Integers below all sizes come last, with sizes cut to them."""
        found: list[list[Part]] = []
        for limit in sorted(compared, key=lambda limit: min(self.free, default=0) > limit):
            below = [size for size in self.free if size <= limit]
            all_at_once = dict.fromkeys(below, limit + 1) or dict.fromkeys(self.free, limit)
            if self._is_cheap(all_at_once):
                parts = (self.resize(size, target, kind="thresholds") for size, target in all_at_once.items())
                found.append([part for part in parts if part is not None])
                continue
            # Columns cost less than rows if kernels are interpreted.
            tall = (self.tall(size, limit + 1, "thresholds") for size in reversed(below))
            found += [[part] for part in tall if part is not None]
        return found

    def long_products(self) -> Iterator[Part]:
        """Sums of the largest products of codes: float32 has not every integer beyond 2^24."""
        codes = {at: leaf for at, leaf in self._placed.items() if is_code(leaf)}
        widths = {leaf.shape[-1] for leaf in codes.values() if len(codes) > 1}
        shared = widths.intersection(self.free, *(leaf.shape for leaf in codes.values()))
        for part in filter(None, [self.tall(size, _PRODUCTS, "sizes") for size in sorted(shared)]):
            largest = {at: f", all {int(leaf.max())}" for at, leaf in codes.items()}
            yield Part("sizes", {at: text + largest.get(at, "") for at, text in part.steps.items()})

    def led(self, ranks: Iterable[tuple[int, int]]) -> Iterator[Part]:
        """One more dimension in front of a tensor, by its place, of which the code asks whether it has so many, as the
        table or the mask of each sequence has. Tensors that have them hold several sequences then."""
        for place, rank in ranks:
            leaf = self._leaves[place]
            tensors = ((at, each) for at, each in enumerate(self._leaves) if isinstance(each, torch.Tensor))
            beside = {at: len(each) for at, each in tensors if each.ndim == rank > 1}
            is_one_less = leaf.ndim == rank - 1 and leaf.numel() > 0 and mark_of(leaf) is None
            if is_one_less and len(counts := {*beside.values()}) == 1 and 0 not in counts:
                steps = {at: "dim 0 grown to 2" for at, count in beside.items() if count == 1}
                yield Part("thresholds", {place: f"leading dim grown to {max(2, *counts)}"} | steps)

    def tall(self, size: int, target: int, kind: str, fewest: Sequence[int] = (1,)) -> Part | None:
        """One size grown beside few of the others, at worst `fewest`; None if that is not cheap either."""
        others = [other for other in self.free if other != size]
        # Cuts come first, because a step may not grow what a later one cuts: three dimensions took 17 GB.
        ways = [{other: few for other in others if other > few} | {size: target} for few in (_NARROW, *fewest)]
        parts = (self._joined(way, kind) for way in ways if self._is_cheap(way, _TALL_ELEMENTS))
        return next((part for part in parts if part is not None), None)

    def _unmeant(self) -> list[int]:
        """The sizes without those that marked integers refer to, which do not name one of several places."""
        meant = {_meant(leaf, mark) for leaf in self._tensors if (mark := mark_of(leaf)) is not None}
        return [size for size in self.free if size not in meant]

    def _places(self, size: int) -> list[tuple[int, int]]:
        """The place among all leaves, and the dimension."""
        tensors = self._placed.items()
        return [(place, dim) for place, leaf in tensors for dim, each in enumerate(leaf.shape) if each == size]

    def batch(self) -> tuple[Part, ...]:
        """The leading dimensions of 1, as of a batch of one sequence, grown: one sequence may be taken for all."""
        leading = [
            at for at, each in self._placed.items() if each.shape[:1] == (1,) != each.shape and mark_of(each) is None
        ]
        steps = dict.fromkeys(leading, f"dim 0 grown to {_SEQUENCES}")
        return (Part("sizes", steps),) if any(self._placed[at].is_floating_point() for at in leading) else ()

    def one_less(self) -> tuple[Part, ...]:
        """Every size cut by one, so that no block is full."""
        return tuple(self._resized({size: [size - 1] for size in self.free}))

    def growths(self) -> list[list[Part]]:
        """Each size grown to twice as much, and to the powers of two above it and the next number, if that is cheap. An
        input that fits into one block in a test fills several in use."""
        found = []
        for size in (size for size in self.free if size < BLOCK):
            above = [2 * size, *(target for target in _NEAR if target % 16 <= 1 and size < target)]
            found.append(self._resized({size: [target for target in above if self._is_cheap({size: target})]}))
        return [parts for parts in found if parts]

    def three_quarters(self) -> tuple[Part, ...]:
        """Every size that is a multiple of four cut by a quarter. Groups of a fourth still divide it, and quarters
        of it are no powers of two."""
        return tuple(self._resized({size: [size // 4 * 3] for size in self.free if size % 4 == 0}))

    def _is_cheap(self, targets: Mapping[int, int], most: int = _GROWN_ELEMENTS) -> bool:
        """Whether all inputs then have few elements, or not many times the given ones."""
        given = sum(leaf.numel() for leaf in self._tensors)
        grown = (math.prod(targets.get(size, size) for size in leaf.shape) for leaf in self._tensors)
        return sum(grown) <= max(most, _GROWN * given)

    def _resized(self, targets: Mapping[int, Sequence[int]]) -> list[Part]:
        """Each size as each of its targets, where that is valid."""
        found = (self.resize(size, target) for size, to in targets.items() for target in dict.fromkeys(to))
        return [part for part in found if part is not None]

    def resize(
        self, size: int, target: int, only: Collection[tuple[int, int]] | None = None, kind: str = "sizes"
    ) -> Part | None:
        """Every dimension of `size`, or some of `_places` alone, cut or grown to `target`. Marked integers follow; None
        if an integer would mean something else there."""
        verb = "cut" if target < size else "grown"
        steps = {}
        for place, leaf in enumerate(self._leaves):
            if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
                continue
            own = [
                f"dim {dim} {verb} to {target}"
                for dim, each in enumerate(leaf.shape)
                if each == size and (only is None or (place, dim) in only)
            ]
            mark = mark_of(leaf)
            if mark is not None:
                followed = following(leaf, mark, size, target, own)
                if followed is None:
                    return None
                own = followed
            elif not self._keeps_meaning(place, leaf, size, target, only):
                return None
            if own:
                steps[place] = ", ".join(own)
        return Part(kind, agreeing(self._leaves, steps)) if steps else None

    def _keeps_meaning(
        self, place: int, tensor: torch.Tensor, size: int, target: int, only: Collection[tuple[int, int]] | None
    ) -> bool:
        """Whether an unmarked tensor can mean the same. Indices have to be valid in a cut. Growth must require no
        further integers but of a vector in no order that has some twice, and none may equal the old size, as ends and
        counts of groups do. Pairs remain whole. Codes are no indices, and fewer indices are valid in tensors that are
        not cut."""
        if not _is_integer(tensor):
            return target % 2 == 0 or tensor.shape[-1:] != (size,) or not self._is_paired(place)
        if tensor.numel() == 0 or self._is_code(place):
            return True
        least, most, total = self._least_most_sum(place)
        if target < size and (_are_codes(tensor, most, size) or self._loses_only_its_own(place, size, only)):
            return True
        if target < size:
            return least >= -1 and most < target
        further = tensor.ndim == 1 and not self._orders(place) and self._repeats(place)
        return size not in (most, total, *(() if further else tensor.shape))

    def _loses_only_its_own(self, place: int, size: int, only: Collection[tuple[int, int]] | None) -> bool:
        """Whether a tensor of indices alone gets shorter. Running ends, and counts whose sum is a size, would no longer
        be those of all rows."""
        alone = only is not None and all(each == place for each, _ in only)
        return alone and self._least_most_sum(place)[1] >= size and not self._orders(place)


def _orders(integers: torch.Tensor, sizes: Collection[int]) -> bool:
    """Whether integers may be running ends, or counts whose sum is a size: those of all rows, in their order."""
    flat = integers.reshape(-1)
    return bool((flat[1:] >= flat[:-1]).all()) or int(flat.sum()) in sizes


def _are_codes(integers: torch.Tensor, most: int, size: int) -> bool:
    """Whether integers are numbers or bits rather than places: several below zero, or bytes beyond all places."""
    return (integers.dtype in (torch.int8, torch.uint8) and most >= size) or _has_several_below(integers)


def is_code(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds codes of 8 bits, of which several are below zero."""
    return tensor.dtype is torch.int8 and tensor.ndim > 1 and _has_several_below(tensor)


def _has_several_below(integers: torch.Tensor) -> bool:
    below = integers[integers < 0]
    return bool((below != below[:1]).any())


def _meant(tensor: torch.Tensor, mark: Mark) -> int:
    """The size that marked integers refer to: their limit, otherwise the last end, which is the number of rows."""
    return mark.limit or (int(tensor.max()) if tensor.numel() else 0)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _least_most_sum(integers: torch.Tensor) -> tuple[int, int, int]:
    return int(integers.min()), int(integers.max()), int(integers.sum())
