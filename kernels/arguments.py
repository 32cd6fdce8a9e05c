"""What public functions accept. Every error begins with the argument's name and says what it is and what it may be.

Nothing in here reads tensor data but `require_indices`, which only runs where the data lies on the host: there an
index out of range is an error. Elsewhere operators give NaN for it, and touch no memory that is not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INTEGERS = (torch.int64, torch.int32)
Given = TypeVar("Given", Tensor, "Tensor | None")


def require_floats(tensor: Tensor, name: str, ndim: int | None = None) -> None:
    """A dense tensor of bf16, fp16 or fp32."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: is a {type(tensor).__name__}; may be a tensor")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name}: is {tensor.layout}; may be torch.strided: to_dense() makes it so")
    if ndim is not None:
        require_ndim(tensor, name, ndim)
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name}: is {tensor.dtype}; may be {', '.join(str(dtype) for dtype in DTYPES)}")


def as_rows(x: Tensor, name: str, target: Tensor) -> tuple[Tensor, Tensor]:
    """x (..., C) and target (...) as (N, C) and (N,): views of them, but for an x whose dimensions do not collapse."""
    if x.ndim <= 2:
        return x, target
    if not isinstance(target, Tensor) or target.shape != x.shape[:-1]:
        shape = tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
        raise ValueError(f"target: has shape {shape}; may have {tuple(x.shape[:-1])}, that of {name} without its last")
    return x.flatten(0, -2), target.flatten()


def in_autocast_dtype(tensor: Given) -> Given:
    """Input, weight or bias of a linear layer: under autocast in its dtype, as `torch.nn.Linear` takes them."""
    if not isinstance(tensor, Tensor) or tensor.is_meta or not torch.is_autocast_enabled(tensor.device.type):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def require_ndim(tensor: Tensor, name: str, ndim: int) -> None:
    if tensor.ndim != ndim:
        raise ValueError(f"{name}: has {tensor.ndim} dimensions, shape {tuple(tensor.shape)}; may have {ndim}")


def require_integers(
    tensor: Tensor, name: str, like: Tensor, like_name: str, dtypes: tuple[torch.dtype, ...] = INTEGERS
) -> None:
    """A vector of whole numbers on the device of `like`."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: is a {type(tensor).__name__}; may be a tensor of one dimension")
    require_ndim(tensor, name, 1)
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name}: is {tensor.dtype}; may be {', '.join(str(dtype) for dtype in dtypes)}")
    require_device(tensor, name, like, like_name)


def require_offs(offs: Tensor, like: Tensor, like_name: str) -> None:
    """offs (G,) int32 on the device of `like`: the inclusive running end of each group."""
    require_integers(offs, "offs", like, like_name, (torch.int32,))


def require_valid_offs(ends: Sequence[int], rows: int) -> None:
    """Host values of offs: non-negative, never decreasing, at most `rows`."""
    previous = 0
    for group, end in enumerate(ends):
        if end < previous:
            raise ValueError(
                f"offs: decreases to {end} at group {group}, after {previous}; "
                "may only grow, as it holds the running end of each group"
            )
        previous = end
    if previous > rows:
        raise ValueError(f"offs: ends at {previous}; may end at {rows} at most, the number of tokens")


def require_device(tensor: Tensor, name: str, like: Tensor, like_name: str) -> None:
    if tensor.device != like.device:
        raise ValueError(f"{name}: is on {tensor.device}; may be on {like.device}, where {like_name} is")


def require_same(tensor: Tensor, name: str, like: Tensor, like_name: str) -> None:
    """The same shape, dtype and device."""
    if tensor.shape != like.shape:
        raise ValueError(f"{name}: has shape {tuple(tensor.shape)}; may have {tuple(like.shape)}, as {like_name} has")
    require_like(tensor, name, like, like_name)


def require_like(tensor: Tensor, name: str, like: Tensor, like_name: str) -> None:
    """The same dtype and device."""
    if tensor.dtype != like.dtype:
        raise ValueError(f"{name}: is {tensor.dtype}; may be {like.dtype}, as {like_name} is")
    require_device(tensor, name, like, like_name)


def require_length(tensor: Tensor, name: str, length: int, whose: str) -> None:
    if tensor.shape[0] != length:
        raise ValueError(f"{name}: has {tensor.shape[0]} elements; may have {length}, one for each {whose}")


def require_positive(value: int, name: str, least: int = 1) -> None:
    if value < least:
        raise ValueError(f"{name}: is {value}; may be {least} or more")


def refuse_second_derivative(name: str, because: str, instead: str) -> None:
    """Called first in a backward pass whose results have no graph of their own: nobody may take them for constants.

    A compiler says so by itself.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            f"{name}: its gradient was asked for with create_graph=True, and {because}; "
            f"leave create_graph out, or use {instead} where second derivatives are needed"
        )


def require_indices(index: Tensor, name: str, end: int, besides: int | None = None) -> None:
    """Indices on the CPU lie in [0, end), or are `besides`."""
    if index.device.type != "cpu":
        return
    wrong = (index < 0) | (index >= end)
    if besides is not None:
        wrong &= index != besides
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        may = f"0 to {end - 1}" if end > 0 else "nothing, as there is no row to choose"
        also = "" if besides is None else f" or {besides}"
        raise ValueError(f"{name}: is {int(index[place])} at position {place}; may be {may}{also}")
