"""The bits of a tensor."""

from __future__ import annotations

import torch


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers of its element size, same shape (complex: one dimension more)."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.resolve_neg().detach().view(integers[tensor.element_size()])
