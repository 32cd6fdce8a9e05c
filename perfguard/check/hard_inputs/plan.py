"""The choice and order of a call's derived inputs, by kind: broad combinations first, then one change at a time.

Each function in the tables `ASKED_FOR` and `_BROAD` yields inputs, each as the parts that are combined. The order of
broad combinations is drawn, so that the first one differs between cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

import torch

from perfguard.check.hard_inputs import Mark, mark_of
from perfguard.check.hard_inputs.asked_for import ASKED_FOR, Given, Parts, integer_part, is_vector
from perfguard.check.hard_inputs.code import Code
from perfguard.check.hard_inputs.derivation import (
    OUTER,
    UNMENTIONED,
    Derivation,
    FirstAccepted,
    Part,
    derived_call,
    layouts_by_place,
    leaves_of,
    mixed,
)
from perfguard.check.hard_inputs.integers import integers_of
from perfguard.check.hard_inputs.sizes import Kept, sizes_of
from perfguard.check.hard_inputs.values import (
    BELOW,
    INFINITIES,
    LARGE,
    LARGEST,
    MASKS,
    NANS,
    SHIFT,
    SMALL,
    is_mask,
    takes_values,
)
from perfguard.model.call import Call

_TURN = 4  # This many kinds of values fit into even a few rows.
#: Kinds whose inputs are tried in the order of the plan, the most informative one first.
ORDERED = (
    *("state", "fakes", "runs", "equal sizes", "thresholds", "scalars", "sequences", "modes", "magnitudes", "dtypes"),
    *("equal values", "tuning", "unmarked integers", UNMENTIONED),
)

Item = Derivation | FirstAccepted


# -- broad combinations, in an order that is drawn ---------------------------------------------------------------------


def _mixtures(given: Given) -> Iterable[Parts]:
    nans = given.values(NANS, "non-finite")
    ends = given.of_integers(lambda texts: texts[0])
    leaves = given.leaves
    unused = [integer_part(leaves, {place: "all 0"}) for place in given.integers if _may_be_unused(leaves[place])]
    yield [*given.values(given.finite), *given.laid()]
    yield from ([*ends, *given.laid()], [*ends, *nans]) if ends else ()
    yield [*given.of_integers(given.order.choice), *given.laid(turned=True), *given.gradients[1:2]]
    yield [*unused, *nans] if unused else ()
    yield nans
    yield given.values(INFINITIES, "non-finite")
    yield given.values([*given.finite[2 * _TURN :], *given.finite[:_TURN]])
    scaled = [f"times 2^{by}" for by in (LARGE, LARGEST, SMALL)]
    shifted = [f"shifted by {SHIFT}"] if given.takes_shifts else []
    yield from (given.of_all(text) for text in (*scaled, "zero", BELOW, *shifted))
    yield [Part("layouts", {place: OUTER}) for place, texts in given.layouts.items() if OUTER in texts]
    yield [*(Part("layouts", {place: "sliced"}) for place in given.layouts), *given.gradients[:1]]


def _other_sizes(given: Given) -> Iterable[Parts]:
    one_less = given.sizes.one_less()
    yield one_less
    yield given.sizes.three_quarters()
    yield _cut_and_mixed(given.call, one_less, given.floats, given.finite)
    yield from ([given.order.choice(parts)] for parts in given.growths)
    yield from ([part] for part in given.cuts if any(text.endswith("cut to 0") for text in part.steps.values()))


def _first_frozen(given: Given) -> Iterable[Parts]:
    yield from ([part] for part in given.frozen[:3])


# -- one change at a time ----------------------------------------------------------------------------------------------


def _alone(given: Given) -> Iterable[list[Part]]:
    """Lists of parts, each of which is shuffled. The last three are cuts, growths and gradients."""
    masked = [Part("values", {place: kind}) for place in given.masks for kind in MASKS]
    yield [*(Part("values", {place: kind}) for place in given.floats for kind in given.finite), *masked]
    yield [Part("non-finite", {place: kind}) for place in given.floats for kind in (*NANS, *INFINITIES)]
    yield [Part("layouts", {place: name}) for place, names in given.layouts.items() for name in names]
    yield [integer_part(given.leaves, {place: text}) for place, texts in given.integers.items() for text in texts]
    yield given.cuts[1:]
    yield [part for parts in given.growths for part in parts]
    yield [*given.gradients, *given.frozen[3:]]


_BROAD: tuple[Callable[[Given], Iterable[Parts]], ...] = (_mixtures, _other_sizes, _first_frozen)


def planned(call: Call, seed: int, kept: Kept, code: Code) -> dict[str, list[Item]]:
    """Kind -> derivations of the call, in the order in which they are tried. Their first part has this kind.

    Args:
        kept: the values that the call's functions kept before they were called.
        seed: the seed of the drawn order, which decides which inputs fit into the budget.
        code: the candidate's code.
    """
    leaves = leaves_of(call)
    valued = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and takes_values(leaf)]
    masks = [place for place in valued if is_mask(leaves[place])]
    floats = [place for place in valued if place not in masks]
    order, sizes = random.Random(seed), sizes_of(call, kept, of_vectors=True)
    layouts, integers = layouts_by_place(call, leaves), _integers(call, leaves)
    given = Given(call, code, sizes, order, leaves, floats, masks, layouts, integers)
    asked_for = [parts for row in ASKED_FOR for parts in row(given)]
    broad, alone = [parts for row in _BROAD for parts in row(given)], [*_alone(given)]
    for each in (broad, *alone):  # Few of an expensive call fit into the budget. They should vary between cases.
        order.shuffle(each)  # type: ignore[arg-type]
    *alone, cuts, growths, gradients = alone
    turns = [part for turn in zip_longest(cuts, growths) for part in turn if part is not None]
    left_out = call.hard.without if call.hard else ()
    found = _by_kind([*asked_for, *broad, *([part] for part in chain(*alone, turns, gradients))], left_out)
    apart: list[Item] = [] if "equal sizes" in left_out else [*sizes.subsets()]
    return found | ({"equal sizes": apart} if apart else {})


def _by_kind(combinations: Iterable[Parts], left_out: Sequence[str]) -> dict[str, list[Item]]:
    """Kind -> its derivations, each once, without parts of the kinds that are left out."""
    found: dict[str, list[Item]] = {}
    seen = set()
    for together in combinations:
        asked = tuple(part for part in together if part.kind not in left_out)
        key = (
            asked[:1] and asked[0].kind == UNMENTIONED,
            *sorted((place, text) for part in asked for place, text in part.steps.items()),
        )
        if asked and key not in seen:
            seen.add(key)
            found.setdefault(asked[0].kind, []).append(Derivation(asked))
    return found


def _cut_and_mixed(call: Call, cuts: Parts, floats: Sequence[int], finite: Sequence[str]) -> Parts:
    """Other sizes, and hard values in the remaining rows: a lane beyond the last column may be larger than all."""
    leaves = leaves_of(derived_call(call, Derivation(tuple(cuts))))
    later = [*finite[_TURN:], *finite[:_TURN]]
    return (*cuts, *mixed(leaves, [place for place in floats if takes_values(leaves[place])], later, "values"))


def _integers(call: Call, leaves: Sequence[Any]) -> dict[int, list[str]]:
    """Place -> texts for marked integers. `groups` counts as a mark of ends, the last of which is unchanged."""
    found = {}
    for place, leaf in enumerate(leaves):
        mark = mark_of(leaf) or (Mark("offsets", 0) if leaf is call.groups and is_vector(leaf) else None)
        if isinstance(leaf, torch.Tensor) and mark is not None:
            found[place] = integers_of(leaf, mark)
    return {place: texts for place, texts in found.items() if texts}


def _may_be_unused(leaf: Any) -> bool:
    """Whether the rows may be in no group. Their values then have no meaning, and may be NaN."""
    mark = mark_of(leaf)
    return mark is not None and mark.kind == "offsets" and mark.limit > 0 and leaf.numel() > 0
