"""Hard values of a float tensor, whole or row by row. The elements of a row share every index but the last."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

#: Values of standard deviation 1 then exceed 88, where exp overflows float32; squares and sums are far from overflow.
LARGE = 7
BELOW = "largest below a power of two"
LARGEST = 17  # Beyond the range of float16, also in short sums.
SHIFT = -100  # exp of every element is then 0 in float32.
FAR = 4096  # A variance of squares less the square of the mean, in float32, is then lost in their roundings.
SMALL = -10
OUTLIER = 10
POSITIVE, NEGATIVE = "positive", "negative"  # magnitudes, and these negated
REVERSED = "columns reversed"  # The largest of a grown tensor are then among those that were added.
_LEAST_TWICE = 4  # pairs of equal values in a row; fewer may be chance
#: Kinds that leave every element finite, in the order in which they are assigned to rows.
FINITE = (
    "zero",
    "equal",
    f"outlier 2^{OUTLIER} at first",
    f"times 2^{LARGE}",
    f"times 2^{LARGEST}",
    f"shifted by {SHIFT}",
    "alternating",
    f"times 2^{SMALL}",
    "subnormal",
    f"outlier 2^{OUTLIER} at last",
    "negative zero",
    BELOW,
    f"shifted by {FAR}",
)
#: Kinds that leave a mask a mask.
MASKS = ("zero", "ones", "row 0 zero", "row 0 ones")
NANS = ("NaN at last", "NaN at first", "NaN at middle")
INFINITIES = ("inf at first", "-inf at middle", "inf at last", "-inf at first", "-inf at last")
#: Kinds of incoming gradients. The largest exceed float16, in which no backward pass of wider gradients may compute.
INCOMING_KINDS = (
    "ones",
    f"times 2^{LARGEST}",
    "zero",
    "one-hot at last",
    f"times 2^{LARGE}",
    "one-hot at first",
    f"times 2^{SMALL}",
    "sliced",
)


def takes_values(tensor: torch.Tensor) -> bool:
    """Whether values can be derived: not for 8-bit floats, which are codes, nor for unordered complex numbers."""
    return tensor.is_floating_point() and tensor.itemsize > 1 and tensor.numel() > 0


def is_mask(tensor: torch.Tensor) -> bool:
    """Whether floats are zeros and ones, such as a mask of tokens or labels: other numbers would have no meaning."""
    values = tensor.detach()
    return bool(((values == 0) | (values == 1)).all()) and bool((values != values.reshape(-1)[0]).any())


def row_count(tensor: torch.Tensor) -> int:
    """Number of rows that a step can name; a vector has one."""
    return tensor.numel() // tensor.shape[-1] if tensor.ndim > 1 else 1


def with_values(tensor: torch.Tensor, kind: str, row: int | None = None) -> torch.Tensor:
    """A contiguous copy with one kind of `FINITE`, `NANS` or `INFINITIES` in one row, or in all of them.

    Rows in which every value occurs twice, such as rotary embeddings' cosines, keep this: kernels read one of the two.

    Raises:
        ValueError: no such kind, or no such row.
    """
    made = tensor.detach().clone(memory_format=torch.contiguous_format)
    rows = made.view(row_count(made), -1)
    if row is not None and row >= len(rows):
        raise ValueError(f"row {row}: the tensor has {len(rows)}")
    part = rows if row is None else rows[row : row + 1]
    for pattern, change in _KINDS:
        found = re.fullmatch(pattern, kind)
        if found:
            once, again = _twice(rows, part)
            change(once, *found.groups())
            again.copy_(once)
            return made
    raise ValueError(f"{kind}: is no kind of values")


def _twice(rows: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both places of each value: halves of a row, or neighbours. Without such pairs, both are the whole part."""
    dim = _pairs(rows)
    if dim is None:
        return part, part
    once, again = _unflattened(part, dim).unbind(dim)
    return once, again


def is_paired(tensor: torch.Tensor) -> bool:
    """Whether each value of a row occurs twice, in both halves or side by side, as the cosines of rotary embeddings do.
    Kernels read one of the two."""
    return _pairs_of(tensor) is not None


def _pairs_of(tensor: torch.Tensor) -> int | None:
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return None
    return _pairs(tensor.reshape(row_count(tensor), -1))


def _pairs(rows: torch.Tensor) -> int | None:
    """The dimension of the pairs in `_unflattened`, or None."""
    size = rows.shape[-1]
    if size < 2 * _LEAST_TWICE or size % 2:
        return None
    for dim in (-2, -1):
        first, second = _unflattened(rows, dim).unbind(dim)
        if bool((first == second).all()):
            return dim if bool((rows != rows[:, :1]).any()) else None  # Equal values are no pairs.
    return None


def _unflattened(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """Rows of pairs that are halves (dim -2) or neighbours (dim -1)."""
    half = rows.shape[-1] // 2
    return rows.reshape(*rows.shape[:-1], *((2, half) if dim == -2 else (half, 2)))


def resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """A contiguous copy with another size of one dimension.

    A grown tensor repeats itself, each time a little smaller, so that different elements remain different. Integers,
    and values that never decrease, end with copies of the last one, so that the last groups are empty. Pairs remain
    pairs, and masks masks.

    Raises:
        ValueError: the size is odd, and values stand in pairs.
    """
    length = tensor.shape[dim]
    pairs = _pairs_of(tensor) if dim == tensor.ndim - 1 else None
    if pairs is not None:
        if size % 2:
            raise ValueError(f"dim {dim} to {size}: values stand there in pairs")
        halves = _unflattened(tensor, pairs)
        return resized(halves, halves.ndim - 3 - pairs, size // 2).flatten(-2)
    if size <= length or length == 0:
        return tensor.narrow(dim, 0, size).contiguous()
    place = torch.arange(size, device=tensor.device)
    ascending = length > 1 and tensor.itemsize > 1 and bool((tensor.diff(dim=dim) >= 0).all())
    if not tensor.is_floating_point() or ascending:
        return tensor.index_select(dim, place.clamp(max=length - 1))
    again = tensor.index_select(dim, place % length)
    if tensor.itemsize == 1 or is_mask(tensor):
        return again
    copy = place.div(length, rounding_mode="floor") % 32
    smaller = 1 - copy / 64 if length > 1 else 0.5**copy  # Sequences that are alike hide a batch of one.
    return again * smaller.to(tensor.dtype).view([size if each == dim else 1 for each in range(tensor.ndim)])


def _alternate(part: torch.Tensor) -> None:
    _equalize(part)
    part[:, 1::2].neg_()


def _equalize(part: torch.Tensor) -> None:
    part.copy_(part[:, :1].clone().expand_as(part))


def _vary(part: torch.Tensor) -> None:
    """Different values of one sign: up to almost twice as much, or up to almost 1 in place of zeros."""
    steps = torch.arange(part.numel(), device=part.device).view(part.shape) % 8 / 8
    part.copy_(torch.where(part == 0, steps, part * (1 + steps)))


def _below_a_power(part: torch.Tensor) -> None:
    """The last value becomes the largest one, and so near to a power of two that a narrower float reaches it."""
    power = torch.frexp(part.float().abs().amax(-1)).exponent.clamp(-100, 100)
    part[:, -1] = torch.ldexp(torch.full_like(power, 1 - 2.0**-12, dtype=torch.float32), power)


def _put(part: torch.Tensor, value: float, place: str) -> None:
    part[:, {"first": 0, "middle": part.shape[1] // 2, "last": part.shape[1] - 1}[place]] = value


_PLACE = "(first|middle|last)"
#: Pattern of a kind -> the function that changes a part of the rows, given the matches of the pattern's groups.
_KINDS: list[tuple[str, Callable[..., object]]] = [
    ("zero", lambda part: part.zero_()),
    ("negative zero", lambda part: part.fill_(-0.0)),
    ("equal", _equalize),
    ("alternating", _alternate),
    ("different", _vary),
    (REVERSED, lambda part: part.copy_(part.flip(-1))),
    (BELOW, _below_a_power),
    ("ones", lambda part: part.fill_(1.0)),
    (POSITIVE, lambda part: part.abs_()),
    (NEGATIVE, lambda part: part.abs_().neg_()),
    (r"times 2\^(-?\d+)", lambda part, power: part.mul_(2.0 ** int(power))),
    (r"shifted by (-?\d+)", lambda part, by: part.add_(float(by))),
    ("subnormal", lambda part: part.mul_(torch.finfo(part.dtype).smallest_normal).mul_(1 / 8)),
    (rf"outlier 2\^(\d+) at {_PLACE}", lambda part, power, place: _put(part, 2.0 ** int(power), place)),
    (rf"one-hot at {_PLACE}", lambda part, place: _put(part.zero_(), 1.0, place)),
    (rf"(NaN|-?inf) at {_PLACE}", lambda part, value, place: _put(part, float(value), place)),
]
