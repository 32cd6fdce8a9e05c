"""Patterns of wrong results: a constant factor, right values in wrong places, some columns or rows, some groups.

Shape suffixes: R: rows, all dimensions but the last; C: columns, the last one. A vector is a column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from perfguard.check.numerics.sums import Sums
from perfguard.model.errors import UsageError, shown

_CLOSE = 1e-2  # share of the oracle's spread: a right result in the wrong place is this close to a moved oracle
_MOST_SHIFT = 2
_LEAST_SHARE = 0.9  # share of wrong elements in each wrong column or row: a lower share is no pattern
_MOST_NAMED = 4  # groups


def constant_factor(total: Sums, group: int | None = None) -> float | None:
    """s such that candidate = s·oracle within 5 %, for one group or the whole; None if s is about 1.

    An s within 1 % of a power of two is rounded to it.
    """
    squares, cross, oracle = (
        float(column.sum() if group is None else column[group])
        for column in (total.candidate, total.cross, total.oracle)
    )
    if oracle <= 0:
        return None
    factor = 1 + cross / oracle
    residual = squares - cross * cross / oracle
    if abs(factor - 1) < 0.01 or factor == 0 or residual > (0.05 * factor) ** 2 * oracle:
        return None
    power = math.copysign(2.0 ** round(math.log2(abs(factor))), factor)
    return power if abs(factor / power - 1) < 0.01 else factor


def factor_text(factor: float) -> str:
    """`0.53`, `1/8192`."""
    inverse = round(1 / factor)
    return f"1/{inverse}" if inverse > 3 and abs(inverse * factor - 1) < 0.01 else f"{factor:.3g}"


# -- patterns ----------------------------------------------------------------------------------------------------------


def looks_like(candidate: torch.Tensor, oracle: torch.Tensor, limit: float) -> str:
    """The pattern of a wrong result, or ''.

    Args:
        candidate, oracle: of one shape, real numbers.
        limit: the largest RMSE that passes; elements that are off by more than four times this are wrong.
    """
    if candidate.shape != oracle.shape or candidate.ndim == 0 or candidate.numel() == 0:
        return ""
    width = candidate.shape[-1] if candidate.ndim > 1 else 1
    c_RC, o_RC = (t.detach().double().reshape(-1, width) for t in (candidate, oracle))
    if not bool(o_RC.isfinite().all()):
        return ""
    return _moved(c_RC, o_RC) or _in_part(c_RC, o_RC, 4 * limit)


def _moved(c_RC: torch.Tensor, o_RC: torch.Tensor) -> str:
    """The pattern of right values in wrong places, or ''."""
    for dim, name, on, back in ((0, "row", "down", "up"), (1, "column", "right", "left")):
        for by in range(1, _MOST_SHIFT + 1):
            left = o_RC.shape[dim] - by
            if left < 2 * by:
                continue
            for way, start in ((on, 0), (back, by)):
                if _is_close(c_RC.narrow(dim, by - start, left), o_RC.narrow(dim, start, left)):
                    return f"looks shifted {way} by {by} {name}{'s' * (by > 1)}"
    if c_RC.shape[0] == c_RC.shape[1] and _is_close(c_RC, o_RC.t()):
        return "looks transposed"
    for dim, name in enumerate(("rows", "columns")):
        if o_RC.shape[dim] > 1 and _is_close(c_RC, o_RC.flip(dim)):
            return f"looks as if its {name} were reversed"
    return ""


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether `a` is close to `b`; False if `b` does not vary, as the answer would be meaningless."""
    spread = float((b - b.mean()).square().mean().sqrt())
    return spread > 0 and float((a - b).square().mean().sqrt()) < _CLOSE * spread


def _in_part(c_RC: torch.Tensor, o_RC: torch.Tensor, limit: float) -> str:
    """The pattern of wrong columns or rows among right ones: at most half of them, or one block, such as a group."""
    wrong_RC = (c_RC - o_RC).abs().nan_to_num(torch.inf) > limit
    for dim, name in ((0, "column"), (1, "row")):
        share = wrong_RC.double().mean(dim=dim)
        found = (share > 0).nonzero().flatten().tolist()
        count = len(share)
        if not found or len(found) == count or bool((share[found] < _LEAST_SHARE).any()):
            continue
        block = slice(found[0], found[-1] + 1)
        whole = len(found) == block.stop - block.start
        if not whole and len(found) > count // 2:
            continue
        moved = _moved(c_RC[block], o_RC[block]) if whole and name == "row" else ""
        there = f"; there it {moved}" if moved else ""
        return f"wrong are {_named(found, count, name)}, and the others right{there}"
    return ""


def _named(found: list[int], count: int, name: str) -> str:
    """`columns 48 to 63 of 64`, `each 4th of 64 columns, from 3 on`."""
    if len(found) == 1:
        return f"{name} {found[0]} of {count}"
    steps = {b - a for a, b in itertools.pairwise(found)}
    if steps == {1}:
        return f"{name}s {found[0]} to {found[-1]} of {count}"
    if len(steps) == 1 and len(found) > 2:
        (step,) = steps
        return f"each {step}th of {count} {name}s, from {found[0]} on"
    return f"{len(found)} of {count} {name}s, the first {found[0]}"


# -- groups of rows with different sizes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jagged:
    """Groups of rows, to locate wrong elements: group g holds rows [ends[g - 1], ends[g]).

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
            start, end = list(itertools.pairwise([0, *self.ends]))[groups[0]]
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
            if size in self.rows or size == number:
                line = mask.movedim(dim, 0).reshape(size, -1).any(1)
                found = [int(place) for place in line.nonzero().flatten()]
                if size not in self.rows:
                    return found, False
                groups = {sum(end <= row for end in self.ends) for row in found}
                return sorted(groups - {number}), number in groups
        return [], False


def jagged(ends: torch.Tensor | Sequence[int] | None, inputs: Sequence[torch.Tensor]) -> Jagged | None:
    """The groups by the ends that a call names.

    Raises:
        UsageError: they are no running ends.
    """
    if ends is None:
        return None
    try:
        values = tuple(int(end) for end in (ends.tolist() if isinstance(ends, torch.Tensor) else ends))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"perfguard(groups={shown(ends)}): give the running ends of the groups, as a vector of integers or a list"
        ) from error
    last = values[-1] if values else 0
    sizes = {size for tensor in inputs if tensor.is_floating_point() for size in tensor.shape[:1] + tensor.shape[-1:]}
    return Jagged(values, frozenset({size for size in sizes if size >= last} or {last}))
