"""The choice and order of a call's derived inputs, by kind: broad combinations first, then one change at a time.

The first combination of a kind differs between cases and between commits.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import torch

from perfguard.check.hard_inputs import Mark, mark_of
from perfguard.check.hard_inputs.derivation import (
    FROZEN,
    INCOMING,
    STRICT,
    Derivation,
    Part,
    derived_call,
    layouts_of,
    leaves_of,
)
from perfguard.check.hard_inputs.integers import agreeing, integers_of
from perfguard.check.hard_inputs.sizes import Kept, sizes_of
from perfguard.check.hard_inputs.strict_runs import strict_kinds
from perfguard.check.hard_inputs.values import (
    FINITE,
    INCOMING_KINDS,
    INFINITIES,
    LARGE,
    LARGEST,
    NANS,
    SMALL,
    row_count,
    takes_values,
)
from perfguard.model.call import Call

_TURN = 4  # kinds of values that fit into even a few rows


def planned(call: Call, seed: int, kept: Kept) -> dict[str, list[Derivation]]:
    """Derivations of the call by kind, that of their first part, in the order in which they are tried.

    Args:
        kept: by the call's functions before they were called.
        seed: of the order, which decides what fits into the budget.
    """
    leaves = leaves_of(call)
    order = random.Random(seed)
    floats = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and takes_values(leaf)]
    layouts, integers = layouts_by_place(call, leaves), _integers(call, leaves)
    values, nans = _mixed(leaves, floats, FINITE, "values"), _mixed(leaves, floats, NANS, "non-finite")
    sizes = sizes_of(call, kept)
    cuts, grown = sizes.cuts(), sizes.growths()
    laid = [Part("layouts", {place: names[-1 if at % 2 else 0]}) for at, (place, names) in enumerate(layouts.items())]
    turned = [Part("layouts", {place: names[0 if at % 2 else -1]}) for at, (place, names) in enumerate(layouts.items())]
    drawn = [_integer_part(leaves, {place: order.choice(texts)}) for place, texts in integers.items()]
    unused = [_integer_part(leaves, {place: "all 0"}) for place in integers if _may_be_unused(leaves[place])]
    ends = [_integer_part(leaves, {place: texts[0]}) for place, texts in integers.items()]
    gradients = [Part("gradients", {INCOMING: kind}) for kind in INCOMING_KINDS if _has_gradients(call, leaves)]
    usual, largest = gradients[:1], gradients[1:2]  # as of a loss; beyond float16
    frozen = _frozen(call, leaves)
    strict = [(Part(kind, {STRICT: text}),) for kind, text in strict_kinds()]
    all_at_once = [(Part("values", dict.fromkeys(floats, f"times 2^{power}")),) for power in (LARGE, LARGEST, SMALL)]
    broad = [
        (*values, *laid),
        sizes.one_less(),
        _cut_and_mixed(call, cuts[0], floats) if cuts else (),
        *((order.choice(parts),) for parts in grown),
        (*ends, *laid) if ends else (),
        (*drawn, *turned, *largest),
        (*ends, *nans) if ends else (),
        (*unused, *nans) if unused else (),
        tuple(nans),
        tuple(_mixed(leaves, floats, INFINITIES, "non-finite")),
        tuple(_mixed(leaves, floats, FINITE[2 * _TURN :] + FINITE[:_TURN], "values")),
        *(all_at_once if floats else ()),
        (*(Part("layouts", {place: "sliced"}) for place in layouts), *usual),
        *((part,) for part in cuts if any(text.endswith("cut to 0") for text in part.steps.values())),
        (Part("values", dict.fromkeys(floats, "zero")),) if floats else (),
        *((part,) for part in frozen[:3]),
    ]
    finite = [Part("values", {place: kind}) for place in floats for kind in FINITE]
    non_finite = [Part("non-finite", {place: kind}) for place in floats for kind in (*NANS, *INFINITIES)]
    moved = [Part("layouts", {place: name}) for place, names in layouts.items() for name in names]
    others = [_integer_part(leaves, {place: text}) for place, texts in integers.items() for text in texts]
    # For a call that takes seconds only one combination fits into the budget; it should vary between cases and commits.
    order.shuffle(broad)
    grown_alone = [part for parts in grown for part in parts]
    rest = [finite, non_finite, moved, others]
    in_turns = [(cuts[1:], grown_alone), (gradients, frozen[3:])]
    for parts in chain(rest, *in_turns):
        order.shuffle(parts)
    rest += [[part for turn in zip_longest(*each) for part in turn if part is not None] for each in in_turns]
    return _by_kind([*strict, *broad, *((part,) for part in chain(*rest))], call.hard.without if call.hard else ())


def _by_kind(combinations: Iterable[Sequence[Part]], left_out: Sequence[str]) -> dict[str, list[Derivation]]:
    """Each combination once, without the kinds that are left out."""
    found: dict[str, list[Derivation]] = {}
    seen = set()
    for together in combinations:
        asked = tuple(part for part in together if part.kind not in left_out)
        key = tuple(sorted((place, text) for part in asked for place, text in part.steps.items()))
        if asked and key not in seen:
            seen.add(key)
            found.setdefault(asked[0].kind, []).append(Derivation(asked))
    return found


def _cut_and_mixed(call: Call, cut: Part, floats: Sequence[int]) -> tuple[Part, ...]:
    """Another size, and hard values in the remaining rows."""
    leaves = leaves_of(derived_call(call, Derivation((cut,))))
    later = FINITE[_TURN:] + FINITE[:_TURN]
    return (cut, *_mixed(leaves, [place for place in floats if takes_values(leaves[place])], later, "values"))


def layouts_by_place(call: Call, leaves: Sequence[Any]) -> dict[int, list[str]]:
    """Names of layouts by place; inputs that share memory with others are left out."""
    tensors = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    storages = [leaf.untyped_storage().data_ptr() for leaf in tensors.values() if leaf.layout is torch.strided]
    written = bool(call.mutates or call.clobbers)
    found = {}
    for place, leaf in tensors.items():
        if leaf.layout is torch.strided and storages.count(leaf.untyped_storage().data_ptr()) == 1:
            names = layouts_of(leaf, written)
            if names:
                found[place] = names
    return found


def _integers(call: Call, leaves: Sequence[Any]) -> dict[int, list[str]]:
    """Texts for marked integers by place; `groups` marks ends, of which the last is unchanged."""
    found = {}
    for place, leaf in enumerate(leaves):
        mark = mark_of(leaf) or (Mark("offsets", 0) if leaf is call.groups and _is_vector(leaf) else None)
        if isinstance(leaf, torch.Tensor) and mark is not None:
            found[place] = integers_of(leaf, mark)
    return {place: texts for place, texts in found.items() if texts}


def _integer_part(leaves: Sequence[Any], steps: Mapping[int, str]) -> Part:
    return Part("integers", agreeing(leaves, steps))


def _may_be_unused(leaf: Any) -> bool:
    """Whether no group may have rows. Their contents are then meaningless, and may be NaN."""
    mark = mark_of(leaf)
    return mark is not None and mark.kind == "offsets" and mark.limit > 0 and leaf.numel() > 0


def _is_vector(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim == 1 and not leaf.is_floating_point()


def _requires_grad(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _has_gradients(call: Call, leaves: Sequence[Any]) -> bool:
    return _has_parameters(call) or any(map(_requires_grad, leaves))


def _has_parameters(call: Call) -> bool:
    parameters = call.fn.parameters() if isinstance(call.fn, torch.nn.Module) else ()
    return any(parameter.requires_grad for parameter in parameters)


def _frozen(call: Call, leaves: Sequence[Any]) -> list[Part]:
    """Inputs that need no gradient while others do: each alone, then all but each. First what training has: the first
    input frozen, as below the first layer, and all but it, as with frozen weights; then all, as in inference."""
    inputs = {id(leaf): place for place, leaf in enumerate(leaves) if _requires_grad(leaf)}
    places = list(inputs.values())
    sets = [turn for place in places for turn in ((place,), tuple(other for other in places if other != place))]
    sets.insert(2, tuple(places))
    return [Part("gradients", dict.fromkeys(each, FROZEN)) for each in dict.fromkeys(sets) if each]


def _mixed(leaves: Sequence[Any], floats: Sequence[int], kinds: Sequence[str], kind: str) -> list[Part]:
    """One kind per row, in at most half of the rows; the others keep their values."""
    parts = []
    for turn, place in enumerate(floats):
        rows = row_count(leaves[place])
        if leaves[place].ndim == 1 or rows == 1:
            if turn == 0:
                parts.append(Part(kind, {place: kinds[2 % len(kinds)]}))
            continue
        if turn and kind == "non-finite":
            continue  # one such tensor already affects all results of a product
        for at, each in enumerate(kinds[: max(1, min(len(kinds), rows // 2))]):
            parts.append(Part(kind, {place: f"row {_spread(at, rows)} {each}"}))
    return parts


def _spread(at: int, rows: int) -> int:
    """The first row, the last, the second, the last but one …"""
    return at // 2 if at % 2 == 0 else rows - 1 - at // 2
