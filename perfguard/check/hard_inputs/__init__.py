"""Inputs derived from those of a guarded call: values, layouts, sizes and integers that its tests do not cover.

This file holds the public names. Marks say what a call's integers mean; unmarked integers keep their values. A mark
is an attribute of the tensor, set by the test. This file imports no torch, so that `import perfguard` stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfguard.model.errors import UsageError

if TYPE_CHECKING:
    import torch

_NAME = "_perfguard_mark"


@dataclass(frozen=True)
class Mark:
    """`limit`: ids are below it, ends at most equal; 0 keeps the last end unchanged. `ignored`: a value for no id."""

    kind: Literal["ids", "offsets"]
    limit: int
    ignored: int | None = None


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


def offsets(tensor: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """Mark a vector of cumulative ends of groups: any non-decreasing ends are valid inputs of the call.

    Args:
        rows: number of rows, if rows behind the last group are allowed; otherwise the last end is unchanged.

    Returns:
        The same tensor.

    Raises:
        UsageError: the tensor has no integers, or ends that decrease or lie past the rows.
    """
    _check(tensor, "offsets", rows)
    ends = tensor.tolist()
    if tensor.ndim != 1 or ends != sorted(ends) or (ends and (ends[0] < 0 or (rows is not None and ends[-1] > rows))):
        raise UsageError("perfguard.offsets(…): give a vector of running ends, which do not fall nor lie past the rows")
    return marked(tensor, Mark("offsets", rows or 0))


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
