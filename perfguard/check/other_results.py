"""Compares results that are no tensors. What equals an object of a user's class is code of the user's, so it is not
asked: plain values are compared, containers and dataclasses by what they hold, and all others by their class."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

_TOLERANCE = 1e-5  # relative, of two floats
_PLAIN: tuple[Any, ...] = (str, bytes, complex, torch.device)
_SINGLE: tuple[Any, ...] = (enum.Enum, type, torch.dtype, torch.layout, torch.memory_format)  # each is itself alone
_SEQUENCES: tuple[Any, ...] = (tuple, list)


class OtherResults:
    """Two sides of one call.

    Attributes:
        by_class: names of the classes of which nothing but the class was compared, in order.
    """

    def __init__(self) -> None:
        self.by_class: dict[str, None] = {}
        self._under_way: set[tuple[int, int]] = set()

    def alike(self, got: object, want: object) -> bool:
        """Whether both are the same: numbers, texts, None, enum members, containers, dataclasses and tensors' dtypes
        and shapes. Floats may differ by 1e-5."""
        if got is want:
            return True
        if isinstance(got, int | float) and isinstance(want, int | float):
            return _same_number(got, want)
        for kind in _PLAIN:
            if isinstance(got, kind) and isinstance(want, kind):
                return bool(kind.__eq__(got, want))  # The kind's own comparison; a subclass is code of the user's.
        if isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor):
            return got.dtype is want.dtype and got.shape == want.shape
        if type(got) is not type(want) or isinstance(got, _SINGLE):
            return False
        if (id(got), id(want)) in self._under_way:  # it holds itself
            return True
        self._under_way.add((id(got), id(want)))
        try:
            return self._same_parts(got, want)
        finally:
            self._under_way.discard((id(got), id(want)))

    def _same_parts(self, got: object, want: object) -> bool:
        """Whether two objects of one class hold the same."""
        for kind in _SEQUENCES:
            if isinstance(got, kind) and isinstance(want, kind):
                return self._each([*kind.__iter__(got)], [*kind.__iter__(want)])
        if isinstance(got, dict) and isinstance(want, dict):
            return self._each(_in_order(got), _in_order(want))
        if is_dataclass(got) and is_dataclass(want):
            names = [each.name for each in fields(got)]
            return self._each(*([getattr(side, name, None) for name in names] for side in (got, want)))
        self.by_class[type(got).__name__] = None
        return True

    def _each(self, got: Sequence[object], want: Sequence[object]) -> bool:
        return len(got) == len(want) and all(map(self.alike, got, want))


def _same_number(got: int | float, want: int | float) -> bool:
    if isinstance(got, float) and isinstance(want, float):
        return math.isclose(got, want, rel_tol=_TOLERANCE) or (math.isnan(got) and math.isnan(want))
    a, b = (float.__float__(each) if isinstance(each, float) else int.__int__(each) for each in (got, want))
    return a == b


def _in_order(items: dict[Any, Any]) -> list[object]:
    """Keys and values, by the text of the keys where all of them are texts or numbers."""
    pairs = [*dict.items(items)]
    if all(type(key) in (str, int, float, bool) for key, _ in pairs):
        pairs.sort(key=lambda pair: repr(pair[0]))
    return [each for pair in pairs for each in pair]
