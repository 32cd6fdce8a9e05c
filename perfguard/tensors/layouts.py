"""Other layouts in memory for a tensor's values."""

from __future__ import annotations

import torch


def strides_of(tensor: torch.Tensor) -> str:
    """`48,1`, in elements."""
    return ",".join(map(str, tensor.stride()))


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the last two dimensions swapped in memory (vectors: every second element), from an
    odd storage offset."""
    if tensor.ndim == 0:
        return tensor
    if tensor.ndim == 1:
        view = tensor.new_empty(2 * tensor.numel() + 1)[1::2]
    else:
        *outer, rows, columns = tensor.shape
        view = tensor.new_empty(tensor.numel() + 1)[1:].view(*outer, columns, rows).transpose(-1, -2)
    return view.copy_(tensor)


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The first row expanded to all rows by stride 0 (vectors: the first element)."""
    if tensor.numel() == 0 or tensor.ndim == 0:
        return tensor
    return tensor[(0,) * max(1, tensor.ndim - 1)].expand(tensor.shape)


def equal_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The same of an incoming gradient, in float32 and float64 with the digits of bfloat16 alone.

    Sums over thousands of equal rows are exact then. With all digits the roundings of a plain loop would go one way.
    """
    wide = tensor.dtype in (torch.float32, torch.float64)
    return expanded(tensor.to(torch.bfloat16).to(tensor.dtype) if wide else tensor)
