"""Patterns of failing derived inputs: which similar inputs are right, or have to be, and what the given inputs lack."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from perfguard.check.hard_inputs.asked_for import TERMS
from perfguard.check.hard_inputs.comparison import Outcome
from perfguard.check.hard_inputs.derivation import TUNED, UNMENTIONED, Derivation, Part, leaves_of, with_tensors
from perfguard.check.hard_inputs.integers import RESIZED, unmarked
from perfguard.check.hard_inputs.scalars import tuning_of
from perfguard.check.numerics.sums import dtype_name
from perfguard.model.call import Call

Judge = Callable[[Call, Derivation], Outcome]

_NARROW = (torch.bfloat16, torch.float16)
_CAST = "as bfloat16, "
_GROWN = re.compile(rf"(?:^|, )dim \d+ grown to {TERMS}\b")
#: Kind -> its unusual property, if the steps do not name it.
TOLD = {
    "equal sizes": "sizes that are equal in the given call differ",
    "thresholds": "beyond a number that the code compares with",
    "scalars": "another number or option than the given one",
    "runs": "a run of ids that stand for none",
    "magnitudes": "as small as an epsilon matters",
    "equal values": "values that are equal in the given call differ",
    "tuning": "another value of an option that tunes",
    "unmarked integers": "other integers than the given ones",
    UNMENTIONED: "which the test does not mention",
}


def pattern_of(call: Call, derivation: Derivation, judge: Judge) -> str:
    """The similar derivations that are right, as text that continues a sentence; '' if nothing is known.

    Args:
        call: the call from which the inputs are derived.
        judge: runs a derivation on a call.
    """
    by = (_by_size, _by_dtype, _by_given_dtype)
    found = filter(None, (each(call, derivation, judge) for each in by))
    return "".join(f"; {each}" for each in found)


def _by_size(call: Call, derivation: Derivation, judge: Judge) -> str:
    """`right at 16, 32 and 64, wrong at 31 and 47: what is no power of two`."""
    leaves, steps = leaves_of(call), [step for part in derivation.parts for step in part.steps.items()]
    found = [(place, RESIZED.fullmatch(text)) for place, text in steps]
    changed = {(leaves[place].shape[int(step[1])], int(step[2])) for place, step in found if step is not None}
    if len(derivation.parts) > 1 or len(changed) != 1 or any(step is None for _, step in found):
        return ""
    ((size, target),) = changed

    def at(other: int) -> Outcome:
        verb = "cut" if other < size else "grown"
        texts = {place: RESIZED.sub(rf"dim \1 {verb} to {other}", text) for place, text in steps}
        return judge(call, Derivation((Part(derivation.parts[0].kind, texts),)))

    power = 1 << max(target - 1, 1).bit_length()  # the next one
    others = [each for each in (power // 2, power, target - 1, power // 2 + power // 4) if each not in (size, target)]
    tried = {each: at(each) for each in dict.fromkeys(others) if 1 < each <= max(2 * size, target)}
    right = sorted([size, *(each for each, outcome in tried.items() if not (outcome.problem or outcome.left_out))])
    wrong = sorted([target, *(each for each, outcome in tried.items() if outcome.problem)])
    return f"right at {_listed(right)}, wrong at {_listed(wrong)}{_what_differs(right, wrong)}"


def _what_differs(right: Sequence[int], wrong: Sequence[int]) -> str:
    if max(right) < min(wrong):
        return f": what is beyond {max(right)}"
    if len(right) > 1 and all(each & (each - 1) == 0 for each in right) and all(each & (each - 1) for each in wrong):
        return ": what is beyond the last power of two"
    if len(right) > 1 and all(each % 16 == 0 for each in right) and all(each % 16 for each in wrong):
        return ": what is beyond the last multiple of 16"
    return ""


def _by_dtype(call: Call, derivation: Derivation, judge: Judge) -> str:
    """`right in float32, wrong in bfloat16: the accumulator?`"""
    narrow = {dtype_name(leaf) for leaf in leaves_of(call) if isinstance(leaf, torch.Tensor) and leaf.dtype in _NARROW}
    if not narrow:
        return ""

    def wider(_: int, leaf: torch.Tensor) -> torch.Tensor | None:
        return leaf.detach().float().requires_grad_(leaf.requires_grad) if leaf.dtype in _NARROW else None

    outcome = judge(replace(with_tensors(call, wider), tolerance=None), derivation)
    if outcome.problem or outcome.left_out:
        return ""
    return f"right in float32, wrong in {' and '.join(sorted(narrow))}: the accumulator?"


def _by_given_dtype(call: Call, derivation: Derivation, judge: Judge) -> str:
    """`right in float32, wrong in bfloat16: …` for an input of which not only the dtype is changed."""
    steps = {place: text for part in derivation.parts for place, text in part.steps.items() if place >= 0}
    others = {place: text.removeprefix(_CAST) for place, text in steps.items()}
    if others == steps:
        return ""
    outcome = judge(call, Derivation((Part("sizes", others),)))
    given = {dtype_name(leaf) for place, leaf in enumerate(leaves_of(call)) if others.get(place) != steps.get(place)}
    if outcome.problem or outcome.left_out:
        return ""
    return f"right in {' and '.join(sorted(given))}, wrong in bfloat16: the accumulator?"


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


# -- what has to be right --------------------------------------------------------------------------------------------


def witnesses_of(derivation: Derivation, call: Call, thresholds: Sequence[int]) -> dict[str, list[Derivation]]:
    """Reason -> derivations, one of which has to be right for the fault of `derivation` to be one. Without them nothing
    shows that the call takes such inputs at all."""
    if (few := _few_terms(derivation)) is not None:
        return {"few terms are wrong, too": [few]}
    if text := derivation.text(TUNED):
        others = [other for texts in tuning_of(call, thresholds) if text in texts for other in texts if other != text]
        return {"the option changes results": [Derivation((Part("tuning", {TUNED: each}),)) for each in others]}
    found = [place for part in derivation.parts if part.kind == "unmarked integers" for place in part.steps]
    evidence = {place: unmarked(leaves_of(call), place)[0] for place in found}
    other = Derivation((Part("unmarked integers", evidence),))
    return {"unmarked integers": [other]} if any(evidence.values()) else {}


def _few_terms(derivation: Derivation) -> Derivation | None:
    """The derivation of a long sum without its length; None for other derivations. If the result of few terms is wrong
    as well, as with an exponential of a rounded logarithm, the accumulator is not at fault."""
    texts = [text for part in derivation.parts if part.kind == "dtypes" for text in part.steps.values()]
    parts = []
    for part in derivation.parts:
        steps = {place: _GROWN.sub("", text).removeprefix(", ") for place, text in part.steps.items()}
        parts.append(Part(part.kind, {place: text for place, text in steps.items() if text}))
    return Derivation(tuple(parts)) if any(map(_GROWN.search, texts)) else None
