"""Differences between two runs of one candidate: the tensors that differ, and a text on each."""

from __future__ import annotations

import torch

from perfguard.check.numerics.jagged import Jagged
from perfguard.check.numerics.rule import first_true
from perfguard.check.numerics.trial import Trial
from perfguard.tensors.bits import bits


def unequal_positions(a: Trial, b: Trial) -> list[int]:
    """Positions whose tensors differ in any bit, or where one is missing."""
    positions = []
    for position, (x, y) in enumerate(zip(a.tensors(), b.tensors(), strict=True)):
        if x is None or y is None:
            same = x is y
        else:
            same = x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x), bits(y))
        if not same:
            positions.append(position)
    return positions


def change_between(before: Trial, after: Trial, position: int, groups: Jagged | None = None) -> str:
    """`3 of 64 elements change, the first at [1, 2] from 0.5 to nan`."""
    old, new = before.tensors()[position], after.tensors()[position]
    if old is None or new is None or old.shape != new.shape or old.dtype != new.dtype:
        return "presence, shape or dtype change"
    unequal = bits(old) != bits(new)
    index = first_true(unequal)
    where = groups.where(unequal.reshape(*old.shape, -1).any(-1)) if groups else ""
    among = f", {where}" if where else ""
    first, then = (float(real_numbers(tensor)[tuple(index)]) for tensor in (old, new))
    return (
        f"{int(unequal.sum())} of {unequal.numel()} elements change{among}, the first at {index} "
        f"from {first:.6g} to {then:.6g}"
    )


def real_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
