"""Inputs derived from those of a guarded call: values, layouts, sizes and integers that its tests do not cover.

This file holds the public names. Marks say what a call's integers mean; unmarked integers keep their values. A mark
is an attribute of the tensor, set by the test. This file imports no torch, so that `import perfguard` stays fast.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfguard.model.errors import UsageError

if TYPE_CHECKING:
    import torch

_NAME = "_perfguard_mark"
_pairs = itertools.count(1)


@dataclass(frozen=True)
class Mark:
    """What integers mean.

    Attributes:
        kind: `of rows` are ids that follow from ends, one for each row.
        limit: ids are below it, ends at most equal; 0 keeps the last end unchanged.
        ignored: a value for no id.
        pair: equal for ends and the ids of their rows; 0: neither has the other.
    """

    kind: Literal["ids", "offsets", "of rows"]
    limit: int
    ignored: int | None = None
    pair: int = 0


def ids(tensor: torch.Tensor, n: int, *, ignored: int | None = None) -> torch.Tensor:
    """Mark a tensor of indices: any values from 0 to n - 1 are valid inputs of the call, however often each occurs.

    Args:
        ignored: a value outside this range that may also occur, such as -100 among the targets of a cross entropy.

    Returns:
        The same tensor.

    Raises:
        UsageError: the tensor has no integers, or values out of range.
    """
    _check(tensor, "ids", n)
    known = tensor if ignored is None else tensor[tensor != ignored]
    if known.numel() and not (int(known.min()) >= 0 and int(known.max()) < n):
        raise UsageError(
            f"perfguard.ids(…, {n}): holds values outside 0 to {n - 1}; give the number of places, and with "
            "ignored= the value that stands for none"
        )
    return marked(tensor, Mark("ids", n, ignored))


def offsets(tensor: torch.Tensor, rows: int | None = None, *, ids: torch.Tensor | None = None) -> torch.Tensor:
    """Mark a vector of cumulative ends of groups: any non-decreasing ends are valid inputs of the call.

    Args:
        rows: number of rows, if rows behind the last group are allowed; otherwise the last end is unchanged.
        ids: the group of each row, another input of the call, which follows wherever ends change. Rows behind the last
            end have the id that they have here, or the `ignored` one of `perfguard.ids`, else that of the last group.

    Returns:
        The same tensor.

    Raises:
        UsageError: the tensor has no integers, or ends that decrease or lie past the rows; or ids do not agree.
    """
    _check(tensor, "offsets", rows)
    ends = tensor.tolist()
    if tensor.ndim != 1 or ends != sorted(ends) or (ends and (ends[0] < 0 or (rows is not None and ends[-1] > rows))):
        raise UsageError("perfguard.offsets(…): give a vector of running ends, which do not fall nor lie past the rows")
    if ids is None:
        return marked(tensor, Mark("offsets", rows or 0))
    pair = next(_pairs)
    marked(ids, Mark("of rows", len(ends), _nobody(ids, ends), pair))
    return marked(tensor, Mark("offsets", rows or 0, pair=pair))


def _nobody(ids: torch.Tensor, ends: list[int]) -> int | None:
    """The id of rows behind the last end; None where nothing tells it.

    Raises:
        UsageError: a row's id is not that of its group.
    """
    _check(ids, "offsets(…, ids=…), ids", None)
    found = ids.tolist()
    wanted = [group for group, (a, b) in enumerate(zip([0, *ends], ends, strict=False)) for _ in range(a, b)]
    if ids.ndim != 1 or len(found) < len(wanted):
        raise UsageError("perfguard.offsets(…, ids=…): give a vector with the group of each row")
    unlike = next((row for row, group in enumerate(wanted) if found[row] != group), None)
    if unlike is not None:
        raise UsageError(
            f"perfguard.offsets(…, ids=…): row {unlike} is of group {wanted[unlike]} by the ends and of "
            f"{found[unlike]} by its id; give ids that agree, or leave them out"
        )
    behind = set(found[len(wanted) :])
    if len(behind) == 1:
        return int(behind.pop())
    mark = mark_of(ids)
    return None if mark is None else mark.ignored


def derived(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """The tensor that a failure names, for use in a test: `derived(x, "transposed, row 3 zero")`.

    Args:
        tensor: the input of the guarded call.
        text: the steps, as the failure prints them.

    Raises:
        UsageError: an unknown step.
    """
    from perfguard.check.hard_inputs.derivation import derived_tensor

    return derived_tensor(tensor, text)


def mark_of(value: Any) -> Mark | None:
    """The mark of a tensor, or None."""
    mark = getattr(value, _NAME, None)
    return mark if isinstance(mark, Mark) else None  # some objects have every attribute


def marked(tensor: torch.Tensor, mark: Mark) -> torch.Tensor:
    """The same tensor with a mark, unchecked."""
    setattr(tensor, _NAME, mark)
    return tensor


def _check(tensor: Any, name: str, limit: int | None) -> None:
    dtype = str(getattr(tensor, "dtype", "no tensor")).removeprefix("torch.")
    if not dtype.startswith(("int", "uint")):
        raise UsageError(f"perfguard.{name}(…): is {dtype}; give a tensor of integers")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise UsageError(f"perfguard.{name}(…, {limit!r}): give a number of at least 0")
