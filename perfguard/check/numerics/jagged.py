"""Groups of rows with different sizes, given by their cumulative ends, to locate wrong elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

_MOST_NAMED = 4


@dataclass(frozen=True)
class Jagged:
    """Group g holds rows [ends[g - 1], ends[g]).

    Attributes:
        ends: non-decreasing.
        rows: row counts of the inputs, including rows past the last group: dimensions of these sizes are rows.
    """

    ends: tuple[int, ...]
    rows: frozenset[int]

    def where(self, mask: torch.Tensor) -> str:
        """`in group 3 of 8 (0 rows)`: the groups of the true elements; '' if the shape does not reveal groups.

        Groups are found by a dimension whose size is the number of groups or of rows, or in a vector with the same
        number of elements for each group (G · K scales).
        """
        groups, past = self._groups(mask)
        words = []
        if len(groups) == 1:
            start, end = list(pairwise([0, *self.ends]))[groups[0]]
            words.append(f"in group {groups[0]} of {len(self.ends)} ({end - start} rows)")
        elif groups:
            named = ", ".join(map(str, groups[:_MOST_NAMED])) + (" …" if len(groups) > _MOST_NAMED else "")
            words.append(f"in groups {named} of {len(self.ends)}")
        if past:
            words.append("past the last group")
        return " and ".join(words)

    def _groups(self, mask: torch.Tensor) -> tuple[list[int], bool]:
        """The groups with true elements, and whether any lie past the last one."""
        number = len(self.ends)
        if mask.ndim == 1 and mask.numel() not in self.rows and number and mask.numel() % number == 0:
            mask = mask.view(number, -1)
        for dim, size in enumerate(mask.shape):
            others = [other for other in range(mask.ndim) if other != dim]
            if size in self.rows:
                rows = _true(mask, others)
                found = {sum(end <= row for end in self.ends) for row in rows}
                return sorted(found - {number}), number in found
            if size == number:
                return _true(mask, others), False
        return [], False


def jagged(ends: torch.Tensor | Sequence[int] | None, inputs: Sequence[torch.Tensor]) -> Jagged | None:
    """The groups by the ends that a call names."""
    if ends is None:
        return None
    values = tuple(int(end) for end in (ends.tolist() if isinstance(ends, torch.Tensor) else ends))
    last = values[-1] if values else 0
    sizes = {size for tensor in inputs if tensor.is_floating_point() for size in tensor.shape[:1] + tensor.shape[-1:]}
    return Jagged(values, frozenset({size for size in sizes if size >= last} or {last}))


def _true(mask: torch.Tensor, others: list[int]) -> list[int]:
    """Positions with true elements along the one dimension not among `others`."""
    line = mask.any(dim=others) if others else mask
    return [int(position) for position in line.nonzero().flatten()]
