"""The same values in other memory layouts: strides and storage offsets that callers may use."""

from __future__ import annotations

from collections.abc import Callable

import torch

from perfguard.check.numerics.oracle import free_bytes
from perfguard.check.numerics.trial import expanded, transposed

_WRAP = 2**31  # first offset beyond a signed 32-bit integer
_SHARE = 0.25  # of the free memory for one tensor
_PAD = 3  # elements between rows: odd, so that rows are aligned only to the element


def _sliced(tensor: torch.Tensor) -> torch.Tensor:
    """A slice of a larger buffer, from its second element on. The gaps between rows are NaN, -1, or 1 if unsigned."""
    *outer, last = tensor.shape
    fill = float("nan") if tensor.is_floating_point() and tensor.itemsize > 1 else -1
    buffer = tensor.new_empty((*outer, last + _PAD))
    if tensor.is_floating_point() and tensor.itemsize == 1:
        buffer.view(torch.uint8).fill_(0xFF)
    elif tensor.dtype is torch.bool or not tensor.dtype.is_signed:
        buffer.fill_(1)
    else:
        buffer.fill_(fill)
    view = buffer.narrow(-1, 1, last)
    return view.copy_(tensor)


def _odd_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Odd strides for dimensions of size 1, whose strides have no meaning."""
    made = tensor.contiguous()
    strides = [7 if size == 1 else stride for size, stride in zip(made.shape, made.stride(), strict=True)]
    return made.as_strided(made.shape, strides)


def _far_apart(tensor: torch.Tensor) -> torch.Tensor:
    """The last row past 2^31 elements. As much memory lies before the first row, so wrapped offsets stay inside."""
    rows = tensor.contiguous().flatten(1)
    apart = -(-_WRAP // (16 * (len(rows) - 1))) * 16  # a multiple of 16, as kernels require
    buffer = tensor.new_empty(_WRAP + apart * (len(rows) - 1) + rows.shape[1])
    strides = (apart, *rows[0].view(tensor.shape[1:]).stride())
    return buffer.as_strided(tensor.shape, strides, _WRAP).copy_(tensor)


#: by the text of a derivation
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": transposed,
    "sliced": _sliced,
    "expanded": expanded,
    "odd strides": _odd_strides,
    "far apart": _far_apart,
}


def layouts_of(tensor: torch.Tensor, written: bool) -> list[str]:
    """Names of the layouts that make a difference for a tensor.

    Args:
        written: whether the call may write the tensor, whose elements then must not share memory.
    """
    if tensor.layout is not torch.strided or tensor.ndim == 0 or tensor.numel() < 2:
        return []
    names = ["transposed", "sliced"]
    if not written and tensor.ndim > 1 and tensor.is_floating_point():
        names.append("expanded")
    names += ["odd strides"] * (1 in tensor.shape)
    return names + ["far apart"] * _has_room_far_apart(tensor)


def _has_room_far_apart(tensor: torch.Tensor) -> bool:
    """Whether rows can be far apart. Only on a GPU, since CPU operators do not compute addresses in 32 bits."""
    if tensor.device.type == "cpu" or tensor.ndim < 2 or not 1 < len(tensor) < _WRAP // tensor[0].numel():
        return False
    return 2 * _WRAP * tensor.itemsize < _SHARE * free_bytes(tensor.device)
