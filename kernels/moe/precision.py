"""In which dtype a part of the layer counts, whatever autocast says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32, or float64 where the layer itself runs in it: how sums and scores are kept."""
    return torch.promote_types(dtype, torch.float32)


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Within, operators take their inputs as they are; of meta tensors nothing is cast anyway."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


class WideBuffers(nn.Module):
    """A module whose own buffers stay float32 where it is cast to less: they count, and tell positions apart."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        before = dict(self._buffers)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is not None and moved is not None and moved.dtype != wide(moved.dtype):
                self._buffers[name] = buffer.to(moved.device, wide(moved.dtype))
        return self
