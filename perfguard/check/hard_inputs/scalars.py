"""Other numbers and options of a call: arguments that are no tensors, and defaults that candidate and reference share.

A factor of 1, a decay of 0 and a flag that is off hide the code that they switch on.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from perfguard._compat import torch_utils
from perfguard.check.hard_inputs import mark_of
from perfguard.check.hard_inputs.code import EPSILON
from perfguard.model.call import Call

_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)
OPTIONS = -4  # the place of keyword arguments that the call does not give, among the places of its inputs
_LARGE = 0.25  # A value that has an effect in place of an epsilon.
_MOST = 64  # a larger integer is a size or a seed rather than an option
_NOBODY = -10  # and less: an id that stands for none, where -1 and -2 may be dimensions
_MOST_WORDS = 4
_NARROW = 4  # columns, half of which are the 2 that is tried anyway
_TUNING = re.compile(r"(?:^|_)(?:chunk|block|tile|split|stage|warp|unroll|partition|segment)s?(?:_|$)", re.IGNORECASE)


def is_neutral(value: Any) -> bool:
    """Whether a number or option is one that hides its code: 0, 1, False or None."""
    return value is None or (type(value) in (bool, int, float) and value in (0, 1))


def others_of(
    value: Any, thresholds: Sequence[int] = (), words: Sequence[str] = (), halves: Sequence[int] = ()
) -> list[Any]:
    """Other values of a number or option, most telling first; none of what is neither.

    Args:
        thresholds, words: what the code compares with.
        halves: of widths, as many channels as an option may turn that is None for all.
    """
    if type(value) is str:
        return [word for word in words if word != value][:_MOST_WORDS]
    if value is None:
        return [0.5, *halves, 2]
    if type(value) is bool:
        return [not value]
    if type(value) is int:
        if value <= _NOBODY:
            return [0, value + 1]
        beyond = [times * each for each in thresholds for times in (1, 2) if value < each] if value > 1 else []
        return [value + 1, value - 1, *beyond][: 1 if value < 2 else None] if 0 <= value <= _MOST else []
    if type(value) is float:
        if value in (0.0, 1.0):
            return [0.125 + value / 2]
        # What is less than 1 may be a share, of which 1 is the most: the square root of 1 - beta**step must be real.
        share = 0 < value < 1
        other = value / 2 if share and value * 1.5 > 1 else value * 1.5
        return [_LARGE] if 0 < value <= EPSILON else [other, 0.0, *([1.0] * share)]
    return []


def scalars_of(
    call: Call, leaves: Sequence[Any], thresholds: Sequence[int] = (), words: Sequence[str] = ()
) -> tuple[list[list[dict[int, str]]], list[list[dict[int, str]]]]:
    """The numbers and options that may have other values, each with steps by place: those whose code the present value
    hides, then the others. Sizes of tensors are unchanged. Ids that stand for none follow the number that says which
    ones do, and hide its code.

    Args:
        thresholds, words: what the code compares with.
    """
    sizes = {size for leaf in leaves if isinstance(leaf, torch.Tensor) for size in leaf.shape if size > 1}
    widths = [leaf.shape[-1] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim > 1]
    halves = [width // 2 for width in widths[:1] if width > _NARROW]
    plain = [(place, leaf, "") for place, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)]
    found = [each for each in plain if type(each[1]) is not int or each[1] not in sizes]
    mine, theirs = (_signature(fn) for fn in (call.fn, call.reference))
    # A reference with `**options` passes them on, or its results do not change.
    takes_all = any(each.kind is each.VAR_KEYWORD for each in theirs.values())
    shared = _defaults(call.fn if takes_all else call.reference, call)
    for name, value in _defaults(call.fn, call).items():
        if name in shared and "Tensor" not in str(mine[name].annotation):
            found.append((OPTIONS, value, name))
    ignored = [(place, mark.ignored) for place, leaf in enumerate(leaves) if (mark := mark_of(leaf)) is not None]
    hidden: list[list[dict[int, str]]] = []
    others: list[list[dict[int, str]]] = []
    for place, value, name in found:
        follow = [at for at, nobody in ignored if type(value) is int and nobody == value]
        steps = [
            {place: f"{name}={other!r}" if name else f"{other!r} for {value!r}"}
            | dict.fromkeys(follow, f"{value} replaced by {other}")
            for other in others_of(value, thresholds, words, halves)
            if _has_text(other)
        ]
        (hidden if is_neutral(value) or follow else others).append(steps)
    # A tensor without dimensions is a number, too, such as a flag that an overflow sets.
    single = ((at, leaf) for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.ndim == 0)
    zeros = {id(leaf): [{at: "ones"}] for at, leaf in single if leaf.is_floating_point() and not leaf.any()}
    # What switches an option off is its default, such as a window of -1, or None in place of a tensor.
    for name, value in call.kwargs.items():
        default, other = (each[name].default if name in each else inspect.Parameter.empty for each in (mine, theirs))
        if isinstance(value, torch.Tensor):
            left_out = [{OPTIONS: f"{name}=None"}] if default is other is None and not value.requires_grad else []
            hidden.append([*zeros.pop(id(value), []), *left_out])
        elif all(map(_has_text, (value, default, other))) and value != default == other:
            (hidden if is_neutral(default) else others).append([{OPTIONS: f"{name}={default!r}"}])
    return [each for each in (*hidden, *zeros.values()) if each], [each for each in others if each]


def _has_text(value: Any) -> bool:
    """Whether a derivation's text can hold a number or option, as it can no infinity."""
    return type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def unchecked(call: Call) -> dict[str, str]:
    """Options of the candidate that are neutral by default: `weight_decay of lion` -> `0.0`, or '' where the call gives
    another value, or derived inputs do. They do not where the reference does not take the option."""
    varied = {} if call.hard is None or "scalars" in call.hard.without else _defaults(call.reference, call)
    left = _defaults(call.fn, call)
    signature = _signature(call.fn)
    neutral = {name: each.default for name, each in signature.items() if is_neutral(each.default)}
    of = call.fn.__name__ if isinstance(call.fn, FunctionType) else type(call.fn).__name__
    return {
        f"{name} of {of}": repr(value) if name in left and name not in varied else "" for name, value in neutral.items()
    }


def places_of(call: Call, leaves: Sequence[Any]) -> dict[str, int]:
    """The candidate's parameters that are given a tensor each, with their places."""
    try:
        given = inspect.Signature([*_signature(call.fn).values()]).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return {}
    tensors = {id(leaf): place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    return {name: tensors[id(value)] for name, value in given.items() if id(value) in tensors}


def with_scalars(call: Call, texts: Mapping[int, str]) -> Call:
    """The call with other numbers, by the texts of a derivation at their places."""
    leaves, spec = torch_utils.tree_flatten((call.args, dict(call.kwargs)))
    changed = [
        ast.literal_eval(texts[place].partition(" for ")[0])
        if place in texts and not isinstance(leaf, torch.Tensor)
        else leaf
        for place, leaf in enumerate(leaves)
    ]
    args, kwargs = torch_utils.tree_unflatten(changed, spec)
    if OPTIONS in texts:
        floats = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        kwargs |= keywords_of(texts[OPTIONS], *floats[:1])
    return replace(call, args=args, kwargs=kwargs) if texts else call


def keywords_of(text: str, like: torch.Tensor | None = None) -> dict[str, Any]:
    """Keyword arguments by their text: `chunk=32, causal=True`; `bias=tensor(24)` has 24 values between 0.5 and 1.5, of
    the dtype and on the device of `like`."""
    options = ast.parse(f"f({text})", mode="eval").body
    assert isinstance(options, ast.Call)

    def value(node: ast.expr) -> Any:
        if like is None or not isinstance(node, ast.Call):
            return ast.literal_eval(node)
        shape = [int(ast.literal_eval(each)) for each in node.args]
        return (torch.arange(math.prod(shape), device=like.device).view(shape) % 7 / 6 + 0.5).to(like.dtype)

    return {str(each.arg): value(each.value) for each in options.keywords}


def tensors_of(call: Call, shape: Sequence[int]) -> list[str]:
    """For each option that is None by both defaults, tensors as texts: a number for each row or column of the first
    tensor, as scales and biases have, and as many as that has."""
    shared = _defaults(call.reference, call)
    names = [name for name, value in _defaults(call.fn, call).items() if value is None and shared.get(name, 0) is None]
    shapes = dict.fromkeys([tuple(shape[:1]), tuple(shape[-1:]), tuple(shape)])
    return [f"{name}=tensor({', '.join(map(str, each))})" for name in names for each in shapes]


def tuning_of(call: Call, thresholds: Sequence[int]) -> list[list[str]]:
    """For each option of the candidate alone that is named as what tunes it, such as a chunk, other values as texts:
    twice, half, and the powers of two beyond the thresholds of the code."""
    if not isinstance(call.fn, FunctionType):
        return []
    shared = _defaults(call.reference, call)
    found = []
    for name, value in _defaults(call.fn, call).items():
        if name not in shared and type(value) is int and value > 1 and _TUNING.search(name):
            beyond = [1 << each.bit_length() for each in thresholds if each >= value]
            others = dict.fromkeys([value // 2, 2 * value, *beyond])
            found.append([f"{name}={other}" for other in others if other != value])
    return found


def _defaults(fn: Callable[..., Any], call: Call) -> dict[str, Any]:
    """Arguments that the call leaves at their defaults, by name; none of what has no signature."""
    signature = _signature(fn)
    try:
        given = inspect.Signature([*signature.values()]).bind(*call.args, **call.kwargs).arguments
    except (TypeError, ValueError):
        return {}
    return {
        name: parameter.default
        for name, parameter in signature.items()
        if name not in given and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def _signature(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    if not issubclass(type(called), _FUNCTIONS):  # `inspect` compares other objects with types
        method = vars(type(called)).get("__call__")
        if not isinstance(method, FunctionType):
            return {}
        called = MethodType(method, called)
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return {}
