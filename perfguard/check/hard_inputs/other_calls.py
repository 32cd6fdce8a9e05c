"""Derived calls whose launches are traced, not run: another layout, dtype or size of an input, a frozen one, a mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from perfguard.check.hard_inputs.called import dtype_steps
from perfguard.check.hard_inputs.derivation import (
    CALLED,
    FROZEN,
    Derivation,
    Part,
    derived_call,
    layouts_by_place,
    leaves_of,
)
from perfguard.check.hard_inputs.sizes import Sizes, kept_by, sizes_of
from perfguard.check.numerics.trial import Inputs, trained
from perfguard.model.call import Call, OtherCall

_COUNTED = ("transposed", "sliced", "conjugate view")  # the layouts that views have
_MOST = 6  # frozen inputs, and changes of dtypes
_LEAST = 4  # a size of up to 8 becomes 5, 6 and 7
_ELEMENTS = 2**20  # The most of all inputs. No kernel runs, so that making the inputs takes the time.
_FAR, _TIMES = 2048, 8  # a grid of tiles of up to 1,024, or of one for each 8 times the size, has grown by then


def other_calls(call: Call) -> list[OtherCall]:
    """The derived calls to follow, equal in every run. It has to be called before the first call (`kept_by`)."""
    if call.hard is None:
        return []
    sizes = None if "sizes" in call.hard.without else sizes_of(call, kept_by(call))
    if sum(leaf.numel() for leaf in leaves_of(call) if isinstance(leaf, torch.Tensor)) > _ELEMENTS:
        small = None if sizes is None else sizes.small()
        if small is None:
            return []
        call = derived_call(call, Derivation((small,)))
        sizes = sizes_of(call, kept_by(call))
    others = [*_of_layouts(call), *_of_frozen(call), *_of_dtypes(call), *_of_modes(call)]
    if sizes is not None:
        others += [*_of_sizes(call, sizes), *_of_few(call, sizes)]
    return [other for other in others if call.hard is None or other.kind not in call.hard.without]


def _of_layouts(call: Call) -> Iterator[OtherCall]:
    names = Inputs(call).names
    for place, layouts in layouts_by_place(call, leaves_of(call)).items():
        for layout in _COUNTED:
            if layout in layouts:
                make = _made(call, Part("layouts", {place: layout}))
                yield OtherCall(f"{layout} {names[place]}", "layouts", make, refusals="layouts")


def _of_frozen(call: Call) -> Iterator[OtherCall]:
    """Each input that needs a gradient without one, while others need theirs, and so all parameters of a module."""
    names, leaves = Inputs(call).names, leaves_of(call)
    needed = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    for place in needed[:_MOST] if len(needed) > 1 else ():
        yield OtherCall(f"frozen {names[place]}", "gradients", _made(call, Part("gradients", {place: FROZEN})))
    if needed and isinstance(call.fn, torch.nn.Module) and (weights := trained(call.fn)):
        make = partial(_called_in, call, partial(_frozen, [parameter for _, parameter in weights]))
        yield OtherCall("frozen parameters", "gradients", make)


def _of_modes(call: Call) -> Iterator[OtherCall]:
    """A call that could be differentiated without grad, where nothing has to be kept, and under autocast, which narrows
    what a candidate does not keep wide."""
    if Inputs(call).leaf_names:
        yield OtherCall("without grad", "modes", partial(_called_in, call, torch.no_grad))
        autocast = partial(torch.autocast, Inputs(call).device.type, torch.bfloat16)
        yield OtherCall("under autocast", "modes", partial(_called_in, call, autocast))


@contextmanager
def _frozen(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """None of a module's parameters is trained, as under an adapter."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _called_in(call: Call, mode: Callable[[], AbstractContextManager[Any]]) -> Call:
    def called(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return call.fn(*args, **kwargs)

    module = call.fn if isinstance(call.fn, torch.nn.Module) else call.kept
    return replace(call, fn=called, kept=module, walk=(), rival=None, others=())


def _of_dtypes(call: Call) -> Iterator[OtherCall]:
    """All inputs of one dtype in another, and one at a time, as weights in float32 beside inputs in bfloat16 are."""
    inputs = Inputs(call)
    for steps in dtype_steps(call)[:_MOST]:
        if CALLED not in steps:
            changed = " and ".join(inputs.names[place] for place in steps)
            name = f"{changed} {next(iter(steps.values()))}"
            yield OtherCall(name, "dtypes", _made(call, Part("dtypes", steps)), refusals=name)


def _of_few(call: Call, sizes: Sizes) -> Iterator[OtherCall]:
    """Nothing along a dimension that is not the last, as an expert without tokens has it, and one thing alone in one
    tensor, which is broadcast."""
    names = Inputs(call).names
    parts = [(0, part) for part in sizes.emptied()] + [(1, part) for part in sizes.single()[:_MOST]]
    for target, part in parts:
        place, text = next(iter(part.steps.items()))
        name = f"{names[place]} {' '.join(text.split()[:2])} of {target}"
        yield OtherCall(name, "sizes", _made(call, part), refusals=f"sizes of {target}")


def _of_sizes(call: Call, sizes: Sizes) -> Iterator[OtherCall]:
    """Three others for each size, with one power of two above them, so that tiles chosen by it are equal. Neither they
    nor their numbers of tiles are multiples of 16, on which compilers specialise. If all are refused, multiples of the
    size are tried. A large one shows along which axis grids grow."""
    leaves, names = leaves_of(call), Inputs(call).names
    for size in sizes.free:
        least = max(_LEAST, 2 ** ((size - 1).bit_length() - 1))
        few = [least * quarters // 4 + 1 for quarters in (4, 5, 6)]
        wanted = [(target, False) for target in (*few, max(_FAR, _TIMES * size) + 1)]
        wanted += [(times * size, True) for times in (2, 3, 4)]
        for target, instead in wanted:
            part = sizes.resize(size, target) if target != size and _is_cheap(leaves, size, target) else None
            if part is not None:
                place, text = next(iter(part.steps.items()))
                name = f"{names[place]} {' '.join(text.split()[:2])}"
                yield OtherCall(name, "sizes", _made(call, part), target, instead=instead)


def _is_cheap(leaves: list[object], size: int, target: int) -> bool:
    tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return sum(leaf.numel() * (target / size) ** leaf.shape.count(size) for leaf in tensors) <= _ELEMENTS


def _made(call: Call, part: Part) -> partial[Call]:
    return partial(derived_call, call, Derivation((part,)))
