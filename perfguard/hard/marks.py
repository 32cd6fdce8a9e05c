"""What integers of a call mean, said by whoever makes them. Unmarked ones keep their values.

No torch here: the marks are attributes of the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfguard.errors import UsageError

if TYPE_CHECKING:
    import torch

_NAME = "_perfguard_mark"


@dataclass(frozen=True)
class Mark:
    """`limit`: ids lie below it; ends lie at or below it, 0: the last end stays as it is. `ignored`: nobody's id."""

    kind: Literal["ids", "offsets"]
    limit: int
    ignored: int | None = None


def ids(tensor: torch.Tensor, n: int, *, ignored: int | None = None) -> torch.Tensor:
    """Mark a tensor of indices: any values from 0 to n - 1 are inputs of the call, however often each occurs.

    Args:
        ignored: a value outside that may occur, too, such as -100 among the targets of a cross entropy.

    Returns:
        The same tensor.

    Raises:
        UsageError: no integers, or values outside.
    """
    _check(tensor, "ids", n)
    known = tensor if ignored is None else tensor[tensor != ignored]
    if known.numel() and not (int(known.min()) >= 0 and int(known.max()) < n):
        raise UsageError(
            f"perfguard.ids(…, {n}): holds values outside 0 to {n - 1}; give the number of places, and with "
            "ignored= the value that stands for none"
        )
    return _marked(tensor, Mark("ids", n, ignored))


def offsets(tensor: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """Mark a vector of inclusive running ends of groups: any that do not fall are inputs of the call.

    Args:
        rows: how many rows there are, where rows behind the last group are allowed; else the last end stays.

    Returns:
        The same tensor.

    Raises:
        UsageError: no integers, or ends that fall or lie past the rows.
    """
    _check(tensor, "offsets", rows)
    ends = tensor.tolist()
    if tensor.ndim != 1 or ends != sorted(ends) or (ends and (ends[0] < 0 or (rows is not None and ends[-1] > rows))):
        raise UsageError("perfguard.offsets(…): give a vector of running ends, which do not fall nor lie past the rows")
    return _marked(tensor, Mark("offsets", rows or 0))


def mark_of(value: Any) -> Mark | None:
    """The mark of a tensor, if it has one."""
    return getattr(value, _NAME, None)


def carry(old: Any, new: Any) -> None:
    """Give a derived tensor the mark of the one that it comes from."""
    if mark_of(old) is not None:
        setattr(new, _NAME, mark_of(old))


def _marked(tensor: torch.Tensor, mark: Mark) -> torch.Tensor:
    setattr(tensor, _NAME, mark)
    return tensor


def _check(tensor: Any, name: str, limit: int | None) -> None:
    dtype = str(getattr(tensor, "dtype", "no tensor")).removeprefix("torch.")
    if not dtype.startswith(("int", "uint")):
        raise UsageError(f"perfguard.{name}(…): is {dtype}; give a tensor of integers")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise UsageError(f"perfguard.{name}(…, {limit!r}): give a number of at least 0")
