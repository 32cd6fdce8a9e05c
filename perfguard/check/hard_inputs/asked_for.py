"""What a call or its code asks for: derived inputs by kind, the most informative of each first."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch

from perfguard.check.hard_inputs import mark_of
from perfguard.check.hard_inputs.called import called_parts, dtype_steps
from perfguard.check.hard_inputs.code import EPSILON, Code, makes_booleans
from perfguard.check.hard_inputs.derivation import (
    ENDLESS,
    FROZEN,
    INCOMING,
    NOBODY,
    STRICT,
    TRAINED,
    TUNED,
    UNMENTIONED,
    Part,
    mixed,
)
from perfguard.check.hard_inputs.integers import agreeing, are_ids, runs_of, twins_of, unmarked
from perfguard.check.hard_inputs.scalars import OPTIONS, places_of, scalars_of, tensors_of, tuning_of
from perfguard.check.hard_inputs.sizes import Sizes
from perfguard.check.hard_inputs.strict_runs import strict_kinds
from perfguard.check.hard_inputs.values import (
    FAR,
    FINITE,
    INCOMING_KINDS,
    LARGE,
    NEGATIVE,
    OUTLIER,
    POSITIVE,
    REVERSED,
)
from perfguard.check.numerics.trial import trained
from perfguard.model.call import Call

_LED = "leading dim grown to 2"
_BLOCKS = (16, 32, 64, 128)  # Usual sizes of blocks, besides those that the code names.
_NEAR_EPSILON = (0.5, 1, 2)  # Powers of an epsilon that is added to a square, to a size, and to a root.
_FEW = 4  # columns of places, so that pairs of them have different rates
_ALIKE = 3  # tensors with as many tokens: their product with each other is as large as its square
_MOST_TWINS = 5  # of several equal tensors the last ones are times 2^5
_LEAST_POWER = -60  # Squares of float32 are still normal numbers.
# The first product is 2^14. A sum in bfloat16 then loses the 1,024 ones, 6 % of the result; the rule allows 2 %.
TERMS, _FIRST_ROW, _FIRST_OF_ROW = 1024, "row 0 times 2^7", "outlier 2^7 at first"

Parts = Sequence[Part]


@dataclass(frozen=True)
class Given:
    """The call whose inputs are derived, and its properties.

    Attributes:
        floats: places of the tensors whose values can be changed.
        masks: places of tensors of zeros and ones.
        layouts, integers: place -> texts of the possible changes.
    """

    call: Call
    code: Code
    sizes: Sizes
    order: random.Random
    leaves: list[Any]
    floats: list[int]
    masks: list[int]
    layouts: dict[int, list[str]]
    integers: dict[int, list[str]]

    @cached_property
    def takes_shifts(self) -> bool:
        """Whether great shifts are tried. A product of two matrices loses what is beside them in its roundings, whoever
        computes it."""
        return len([place for place in self.floats if self.leaves[place].ndim > 1]) < 2

    @cached_property
    def finite(self) -> list[str]:
        """The kinds of finite values."""
        return [kind for kind in FINITE if self.takes_shifts or kind != f"shifted by {FAR}"]

    @cached_property
    def gradients(self) -> list[Part]:
        module = self.call.fn if isinstance(self.call.fn, torch.nn.Module) else self.call.kept
        has_gradients = (module is not None and trained(module)) or any(map(_requires_grad, self.leaves))
        kinds = INCOMING_KINDS if has_gradients else ()
        return [Part("gradients", {INCOMING: kind}) for kind in kinds]

    @cached_property
    def frozen(self) -> list[Part]:
        """Inputs that need no gradient while others do: each alone, then all but each. The first ones are those of
        training: the first input frozen, as below the first layer; all but it, as with frozen weights; then all, as in
        inference."""
        places = list({id(leaf): place for place, leaf in enumerate(self.leaves) if _requires_grad(leaf)}.values())
        sets = [turn for place in places for turn in ((place,), tuple(other for other in places if other != place))]
        sets.insert(2, tuple(places))
        return [Part("gradients", dict.fromkeys(each, FROZEN)) for each in dict.fromkeys(sets) if each]

    @cached_property
    def called(self) -> list[Part]:
        return called_parts(self.call)

    @cached_property
    def cuts(self) -> list[Part]:
        return self.sizes.cuts()

    @cached_property
    def growths(self) -> list[list[Part]]:
        return self.sizes.growths()

    def values(self, kinds: Sequence[str], kind: str = "values") -> list[Part]:
        return mixed(self.leaves, self.floats, kinds, kind)

    def of_all(self, text: str, kind: str = "values") -> list[Part]:
        """One step for all float tensors."""
        return [Part(kind, dict.fromkeys(self.floats, text))] if self.floats else []

    def of_integers(self, choose: Callable[[list[str]], str]) -> list[Part]:
        return [integer_part(self.leaves, {place: choose(texts)}) for place, texts in self.integers.items()]

    def laid(self, turned: bool = False) -> list[Part]:
        """Each tensor in another layout than its neighbours."""
        names = enumerate(self.layouts.items(), start=turned)
        return [Part("layouts", {place: texts[-1 if at % 2 else 0]}) for at, (place, texts) in names]


def _strict(_: Given) -> Iterable[Parts]:
    yield from ([Part(kind, {STRICT: text})] for kind, text in strict_kinds())


def _called(given: Given) -> Iterable[Parts]:
    """Masks of bytes come first, where the reference makes booleans of masks itself."""
    converts = makes_booleans(given.call.reference)
    masks = {at: "as uint8" for at, leaf in enumerate(given.leaves) if getattr(leaf, "dtype", None) is torch.bool}
    yield from ([Part("dtypes", masks)] for _ in range(converts and bool(masks)))
    yield from ([part] for part in given.called)


def _long_sums(given: Given) -> Iterable[Parts]:
    """Sums in bfloat16 of one large term and many small ones, along rows or columns. If kernels are interpreted, rows
    are not added: a program for each of so many rows would take longer than all other inputs. Nor are rows that have an
    integer each, since sums by labels or experts may well be added in the inputs' dtype, block by block. So many places
    are also more than bfloat16 has integers."""
    narrow = next((steps for steps in dtype_steps(given.call) if "as bfloat16" in steps.values()), {})
    is_narrow = bool(narrow) or any(given.leaves[place].dtype is torch.bfloat16 for place in given.floats[:1])
    fixed = not is_narrow or (given.call.hard is not None and {"sizes", "values"} & {*given.call.hard.without})
    widths, is_interpreted = {n for at in given.floats for n in given.leaves[at].shape[-1:]}, bool(strict_kinds())
    labelled = {leaf.numel() for leaf in given.leaves if is_vector(leaf)}
    free = [size for size in given.sizes.free if size < TERMS and size not in labelled]
    chosen = [size for size in free if size in widths or not is_interpreted]
    few = (1,) if narrow else (_FEW, 1)
    if not narrow:  # queries, keys and values
        chosen = [size for size in chosen if sum(size in given.leaves[place].shape for place in given.floats) < _ALIKE]
    for sizes in filter(None, [] if fixed else [given.sizes.tall(size, TERMS, "dtypes", few) for size in chosen]):
        steps = dict(narrow)
        for place, text in sizes.steps.items():
            rows, columns = (f"dim {dim} grown to {TERMS}" in text for dim in (0, given.leaves[place].ndim - 1))
            values = [_FIRST_OF_ROW] * columns or [_FIRST_ROW] * rows
            values = ["ones", *values] if values and place in given.floats else []
            steps[place] = ", ".join([*filter(None, [narrow.get(place)]), text, *values])
        yield [Part("dtypes", steps)]


def _below(given: Given) -> Iterable[Parts]:
    """Results below the negative numbers of the code, with one of which a maximum may begin: those of a product by
    factors of opposite signs, others by a shift of each tensor."""
    factors = [place for place in given.floats if given.leaves[place].ndim > 1]
    for floor in given.code.floors if given.takes_shifts else ():
        yield from ([Part("thresholds", {at: f"shifted by {math.floor(2 * floor) - 1}"})] for at in given.floats)
    if given.code.floors and not given.takes_shifts:
        texts = (f"{sign}, times 2^{OUTLIER}" for sign in (POSITIVE, NEGATIVE))
        yield [Part("thresholds", dict(zip(factors, texts, strict=False)))]


def _thresholds(given: Given) -> Iterable[Parts]:
    fixed = given.call.hard is not None and "values" in given.call.hard.without  # Sorted values stay sorted.
    places = {} if fixed else places_of(given.call, given.leaves)
    ranks = [(places[name], rank) for name, rank in given.code.ranks if name in places]
    yield from ([part] for part in (*given.sizes.led(ranks), *given.sizes.long_products()))
    yield from given.sizes.thresholds(given.code.thresholds)
    for parts in given.sizes.thresholds(given.code.counts):
        for part in parts:
            turned = () if fixed else given.floats
            steps = {at: f"{text}, {REVERSED}" if at in turned else text for at, text in part.steps.items()}
            yield [Part("thresholds", steps)]


def _scalars(given: Given) -> Iterable[Parts]:
    """All numbers and options whose code is hidden at once, then each alone, then the others."""
    hidden, others = scalars_of(given.call, given.leaves, given.code.thresholds, given.code.words)
    yield [Part("scalars", steps[0]) for steps in hidden]
    yield from ([Part("scalars", steps)] for several in (*hidden, *others) for steps in several)


def _fakes(given: Given) -> Iterable[Parts]:
    """Fake implementations of operators that are told other numbers and options, at once and alone."""
    fakes = [part for part in given.called if part.kind == "fakes"]
    hidden, _ = scalars_of(given.call, given.leaves) if fakes else ([], [])
    parts = [Part("scalars", steps[0]) for steps in hidden]
    yield from ([*fakes, *others] for others in (parts, *([part] for part in parts)) if others)


def _equal_values(given: Given) -> Iterable[Parts]:
    """Different values in tensors of one value, such as a gain of ones, and in tensors that equal an earlier one."""
    steps: dict[int, list[str]] = {}
    seen: list[torch.Tensor] = []
    for place in given.floats:
        leaf = given.leaves[place].detach()
        same = [each for each in seen if each.dtype is leaf.dtype and torch.equal(each, leaf)]
        is_constant = leaf.numel() > 1 and bool((leaf == leaf.reshape(-1)[0]).all())
        texts = ["different"] * is_constant + [f"times 2^{min(len(same), _MOST_TWINS)}"] * bool(same)
        if texts:
            steps[place] = texts
        seen.append(leaf)
    yield [Part("equal values", {place: ", ".join(texts)}) for place, texts in steps.items()]


def _tuned(given: Given) -> Iterable[Parts]:
    turns = zip_longest(*tuning_of(given.call, given.code.thresholds))
    yield from ([Part("tuning", {TUNED: text})] for turn in turns for text in turn if text)


def _unmarked(given: Given) -> Iterable[Parts]:
    """Other integers and booleans without a mark, the same for tensors that are equal."""
    for place, leaf in enumerate(given.leaves):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf is not given.call.groups:
            alike = twins_of(given.leaves, place)
            texts = unmarked(given.leaves, place)[1:] if place == alike[0] else []
            yield from ([Part("unmarked integers", dict.fromkeys(alike, text))] for text in texts)


def _runs(given: Given) -> Iterable[Parts]:
    marks = ((place, mark) for place, leaf in enumerate(given.leaves) if (mark := mark_of(leaf)) is not None)
    blocks = (*_BLOCKS, *given.code.thresholds)
    texts = {place: runs_of(given.leaves[place], mark, blocks) for place, mark in marks}
    for turn in zip_longest(*texts.values()):
        steps = {place: text for place, text in zip(texts, turn, strict=True) if text}
        yield [Part("runs", steps)]


def _magnitudes(given: Given) -> Iterable[Parts]:
    """Float tensors near an epsilon, its square root or its square: all of them, then each alone."""
    given_ones = (leaf for leaf in given.leaves if isinstance(leaf, float) and 0 < leaf <= EPSILON)
    logarithms = [math.log2(each) for each in (*given.code.epsilons, *given_ones)]
    powers = dict.fromkeys(round(by * each) for by in _NEAR_EPSILON for each in logarithms)
    texts = [f"times 2^{power}" for power in powers if power >= _LEAST_POWER]
    yield from (given.of_all(text, "magnitudes") for text in texts)
    yield from ([Part("magnitudes", {place: text})] for text in texts for place in given.floats)


def _large(given: Given) -> Iterable[Parts]:
    """Gradients at large inputs."""
    for text in (f"times 2^{LARGE}", f"times 2^{LARGE - 3}"):
        yield [*given.gradients[:1], *given.of_all(text)] if given.gradients else ()


def _batch(given: Given) -> Iterable[Parts]:
    yield given.sizes.batch()


def _unmentioned(given: Given) -> Iterable[Parts]:
    """What the test does not mention and the base may take: gradients by more inputs, one more dimension in front of
    the tensors of most, ids that stand for none, infinite logarithms of what is empty, and tensors in place of None."""
    leaves, floats = given.leaves, given.floats
    parts = [part.steps for part in given.called if TRAINED in part.steps.values()][:1]
    ranks = [leaves[place].ndim for place in floats]
    parts += [{at: _LED for at in floats if leaves[at].ndim == max(ranks)}] if max(ranks, default=0) > 1 else []
    few = {at: ENDLESS for at in floats if leaves[at].ndim == min(ranks) < max(ranks)}
    parts += [few] if len(few) > 1 and not (given.call.hard and "non-finite" in given.call.hard.without) else []
    if all(leaf.device.type == "cpu" for leaf in leaves if isinstance(leaf, torch.Tensor)):  # A GPU would be lost.
        parts += [{place: NOBODY} for place, leaf in enumerate(leaves) if is_vector(leaf) and are_ids(leaf)]
    options = tensors_of(given.call, leaves[floats[0]].shape) if floats and leaves[floats[0]].ndim > 1 else []
    yield from ([Part(UNMENTIONED, steps)] for steps in (*parts, *({OPTIONS: text} for text in options)))


ASKED_FOR: tuple[Callable[[Given], Iterable[Parts]], ...] = (
    *(_strict, _called, _fakes, _long_sums, _below, _thresholds, _scalars, _runs, _magnitudes, _large),
    *(_equal_values, _tuned, _unmarked, _batch, _unmentioned),
)


def integer_part(leaves: Sequence[Any], steps: Mapping[int, str]) -> Part:
    return Part("integers", agreeing(leaves, steps))


def is_vector(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim == 1 and not leaf.is_floating_point()


def _requires_grad(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
