"""Other layouts in memory for a tensor's values."""

from __future__ import annotations

import torch


def strides_of(tensor: torch.Tensor) -> str:
    """The strides in elements, as text: `48,1`."""
    return ",".join(map(str, tensor.stride()))


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with the last two dimensions swapped in memory (vectors: in every second element), from storage
    offset 1."""
    if tensor.ndim == 0:
        return tensor
    if tensor.ndim == 1:
        view = tensor.new_empty(2 * tensor.numel() + 1)[1::2]
    else:
        *outer, rows, columns = tensor.shape
        view = tensor.new_empty(tensor.numel() + 1)[1:].view(*outer, columns, rows).transpose(-1, -2)
    return view.copy_(tensor)


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The first row (vectors: the first element), expanded to the tensor's shape by strides of 0."""
    if tensor.numel() == 0 or tensor.ndim == 0:
        return tensor
    return tensor[(0,) * max(1, tensor.ndim - 1)].expand(tensor.shape)


def equal_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The first row of an incoming gradient, expanded like `expanded`. In float32 and float64 its values are rounded to
    bfloat16, so that sums over thousands of equal rows are exact. Otherwise a plain loop would always round one way."""
    wide = tensor.dtype in (torch.float32, torch.float64)
    return expanded(tensor.to(torch.bfloat16).to(tensor.dtype) if wide else tensor)
