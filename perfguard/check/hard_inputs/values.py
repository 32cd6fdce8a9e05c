"""Hard values of a float tensor, whole or row by row. The elements of a row share every index but the last."""

from __future__ import annotations

from collections.abc import Callable

import torch

PLACES = ("first", "middle", "last")
#: Values of standard deviation 1 then exceed 88, where exp overflows float32; squares and sums are far from overflow.
LARGE = 7
LARGEST = 17  # beyond float16, also in short sums
SHIFT = -100  # exp of every element is 0 in float32
SMALL = -10
OUTLIER = 10
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
)
NANS = ("NaN at last", "NaN at first", "NaN at middle")
INFINITIES = ("inf at first", "-inf at middle", "inf at last", "-inf at first", "-inf at last")


#: of incoming gradients; the largest are beyond float16, through which a backward pass of wider ones may not go
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
    words = kind.split()
    for name, change in _KINDS.items():
        if words[: len(name.split())] == name.split():
            once, again = _twice(rows, part)
            change(once, words[len(name.split()) :])
            again.copy_(once)
            return made
    raise ValueError(f"{kind}: is no kind of values")


def _twice(rows: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both places of each value: halves of a row, or neighbours. Without such pairs, both are the whole part."""
    size = rows.shape[-1]
    if size >= 2 * _LEAST_TWICE and size % 2 == 0 and bool((rows != rows[:, :1]).any()):
        for dim in (1, 2):
            pairs = (len(rows), 2, size // 2) if dim == 1 else (len(rows), size // 2, 2)
            if bool((rows.view(pairs).select(dim, 0) == rows.view(pairs).select(dim, 1)).all()):
                both = part.view(-1, *pairs[1:])
                return both.select(dim, 0), both.select(dim, 1)
    return part, part


def _zero(part: torch.Tensor, _: list[str]) -> None:
    part.zero_()


def _negative_zero(part: torch.Tensor, _: list[str]) -> None:
    part.fill_(-0.0)


def _scaled(part: torch.Tensor, words: list[str]) -> None:
    part.mul_(2.0 ** _power(words))


def _equal(part: torch.Tensor, _: list[str]) -> None:
    part.copy_(part[:, :1].clone().expand_as(part))


def _alternating(part: torch.Tensor, _: list[str]) -> None:
    _equal(part, [])
    part[:, 1::2].neg_()


def _shifted(part: torch.Tensor, words: list[str]) -> None:
    part.add_(float(words[1]))


def _subnormal(part: torch.Tensor, _: list[str]) -> None:
    part.mul_(torch.finfo(part.dtype).smallest_normal).mul_(1 / 8)


def _outlier(part: torch.Tensor, words: list[str]) -> None:
    part[:, _place(part, words)] = 2.0 ** _power(words)


def _one_hot(part: torch.Tensor, words: list[str]) -> None:
    part.zero_()
    part[:, _place(part, words)] = 1.0


def _ones(part: torch.Tensor, _: list[str]) -> None:
    part.fill_(1.0)


def _placed(value: float) -> Callable[[torch.Tensor, list[str]], None]:
    def change(part: torch.Tensor, words: list[str]) -> None:
        part[:, _place(part, words)] = value

    return change


def _power(words: list[str]) -> int:
    return int(words[0].removeprefix("2^"))


def _place(part: torch.Tensor, words: list[str]) -> int:
    return {"first": 0, "middle": part.shape[1] // 2, "last": part.shape[1] - 1}[words[-1]]


_KINDS: dict[str, Callable[[torch.Tensor, list[str]], None]] = {
    "zero": _zero,
    "negative zero": _negative_zero,
    "equal": _equal,
    "alternating": _alternating,
    "times": _scaled,
    "shifted": _shifted,
    "subnormal": _subnormal,
    "outlier": _outlier,
    "one-hot": _one_hot,
    "ones": _ones,
    "NaN": _placed(float("nan")),
    "inf": _placed(float("inf")),
    "-inf": _placed(float("-inf")),
}
