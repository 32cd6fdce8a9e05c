"""Other sizes of a call: dimensions of equal size belong together, and are cut together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from perfguard._compat import torch_trees
from perfguard.check.hard_inputs.derivation import Part
from perfguard.check.hard_inputs.integers import following
from perfguard.check.hard_inputs.marks import mark_of

BLOCK = 256  # most blocks and tails recur within this size
_POWERS = (16, 32, 64, 128)


def small(leaves: Sequence[Any]) -> Part | None:
    """Cut large dimensions to a block and its tail, so that further derived inputs are cheap."""
    steps = [_cut(leaves, size, BLOCK + size % BLOCK) for size in _sizes(leaves) if size > 2 * BLOCK]
    joined: dict[int, str] = {}
    for part in filter(None, steps):
        for place, text in part.steps.items():
            joined[place] = ", ".join(filter(None, (joined.get(place, ""), text)))
    return Part("sizes", joined) if joined else None


def cuts(leaves: Sequence[Any]) -> list[Part]:
    """Each size cut to one less, 1, 0, and to the powers of two below it with their neighbours."""
    found = []
    for size in _sizes(leaves):
        near = [power + by for power in _POWERS for by in (1, -1, 0)]
        targets = [size - 1, 1, *[target for target in near if target < size], 0]
        found += [_cut(leaves, size, target) for target in dict.fromkeys(targets)]
    return [part for part in found if part is not None]


def one_less(leaves: Sequence[Any]) -> tuple[Part, ...]:
    """Every size cut by one, so that no block is full."""
    parts = (_cut(leaves, size, size - 1) for size in _sizes(leaves))
    return tuple(part for part in parts if part is not None)


def holds_tensors(fn: Callable[..., Any]) -> bool:
    """Whether a function keeps its own tensors, whose sizes cannot be cut with those of its inputs."""
    cells = [cell.cell_contents for cell in getattr(fn, "__closure__", None) or () if _is_filled(cell)]
    kept = [*cells, *(getattr(fn, "__defaults__", None) or ())]
    if isinstance(fn, functools.partial):
        kept += [*fn.args, *fn.keywords.values(), *([True] if holds_tensors(fn.func) else [])]
        if holds_tensors(fn.func):
            return True
    inner = [value for value in kept if callable(value) and not isinstance(value, type) and value is not fn]
    if any(isinstance(leaf, torch.Tensor) for leaf in torch_trees.tree_leaves(kept)):
        return True
    return any(holds_tensors(value) for value in inner if getattr(value, "__closure__", None))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _sizes(leaves: Sequence[Any]) -> list[int]:
    """Sizes of the float inputs' dimensions, above 1, in order of appearance."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return [size for size in dict.fromkeys(size for tensor in tensors for size in tensor.shape) if size > 1]


def _cut(leaves: Sequence[Any], size: int, target: int) -> Part | None:
    """The cut of every dimension of `size`; None if an integer could index past it. Marked integers follow the cut."""
    steps = {}
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            continue
        mark = mark_of(leaf)
        if mark is not None:
            own = following(leaf, mark, size, target)
            if own is None:
                return None
        elif _is_integer(leaf) and leaf.numel() and not (int(leaf.min()) >= -1 and int(leaf.max()) < target):
            return None
        else:
            own = [f"dim {dim} cut to {target}" for dim, length in enumerate(leaf.shape) if length == size]
        steps[place] = ", ".join(own)
    steps = {place: text for place, text in steps.items() if text}
    return Part("sizes", steps) if steps else None
