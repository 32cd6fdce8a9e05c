"""Modules that a function is or keeps (`lambda x: net(x)`), and runs with other parameters and buffers in them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any, TypeVar

import torch

from perfguard._compat import torch_utils
from perfguard.check.numerics.oracle import widened
from perfguard.check.numerics.trial import Inputs, run_trial, trained
from perfguard.model.call import Call

Result = TypeVar("Result")


def kept_in(fn: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """The values in a function's closure, defaults and bound arguments, and those of the functions among them."""
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
            yield from kept_in(value, seen)


def _cells(fn: Any) -> Iterator[Any]:
    for cell in _tuple_of(fn, "__closure__"):
        with contextlib.suppress(ValueError):  # it is not filled yet
            yield cell.cell_contents


def _tuple_of(fn: Any, name: str) -> tuple[Any, ...]:
    """An attribute of functions. Of another callable it may be anything."""
    found = getattr(fn, name, None)
    return found if isinstance(found, tuple) else ()


def modules_of(fn: Any) -> list[torch.nn.Module]:
    """The module that `fn` is, or those that it keeps, without modules that are parts of others among them."""
    found = {id(each): each for each in (fn, *kept_in(fn)) if isinstance(each, torch.nn.Module)}
    parts = {id(part) for each in found.values() for part in each.modules() if part is not each}
    return [each for each in found.values() if id(each) not in parts]


def with_state(owner: torch.nn.Module, run: Callable[[], Result], state: dict[str, torch.Tensor]) -> Result:
    """`run`, with other parameters and buffers in `owner`."""

    class Bound(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.owner = owner

        def forward(self) -> Result:
            return run()

    result: Result = torch.func.functional_call(Bound(), {f"owner.{name}": value for name, value in state.items()}, ())
    return result


def widened_state(owner: torch.nn.Module, wide: torch.dtype) -> dict[str, torch.Tensor]:
    """Its parameters and buffers in `wide`, by name."""
    buffers = {name: widened(value, wide) for name, value in owner.named_buffers()}
    return {
        name: widened(value.detach(), wide).requires_grad_(value.requires_grad)
        for name, value in owner.named_parameters()
    } | buffers


# -- the module whose gradients are compared ---------------------------------------------------------------------------


def with_kept(call: Call) -> Call:
    """The call with `kept`: the only module that the candidate keeps, if the reference is or keeps its counterpart.

    A candidate whose outputs need no gradient has none to compare: a kernel for inference may read a layer's weights.
    On ranks the gradients are those of one rank, so nothing is kept there. A cold start has to be the first call.
    """
    if isinstance(call.fn, torch.nn.Module) or not call.ranks.alone or call.cold_start is not False:
        return call
    mine, theirs = modules_of(call.fn), modules_of(call.reference)
    if len(mine) != 1 or len(theirs) != 1 or not trained(mine[0]) or not _are_counterparts(mine[0], theirs[0]):
        return call
    inputs = Inputs(call)
    if not inputs.leaf_names and not _needs_gradient(call, inputs):
        return call
    return replace(call, kept=mine[0])


def _needs_gradient(call: Call, inputs: Inputs) -> bool:
    devices = [] if inputs.device.type == "cpu" else [inputs.device]
    try:
        with torch.random.fork_rng(devices, **({"device_type": inputs.device.type} if devices else {})):
            return any(run_trial(call.fn, inputs, seed=call.seed).differentiable)
    except Exception:  # The check calls it again, and reports the error with the run that raised it.
        return False


def _are_counterparts(mine: torch.nn.Module, theirs: torch.nn.Module) -> bool:
    """Whether two modules have the same parameters in the same order: of one name, or of equal values."""
    if mine is theirs:
        return True
    own, others = trained(mine), trained(theirs)
    return len(own) == len(others) and all(
        one.shape == other.shape and one.device == other.device and (name == its_name or _are_equal(one, other))
        for (name, one), (its_name, other) in zip(own, others, strict=True)
    )


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return not one.is_meta and bool((one.detach().double() == other.detach().double()).all())
