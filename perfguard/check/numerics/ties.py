"""The reference with the first, or the last, of equal elements chosen.

Which of equal scores `topk` or `argmax` chooses is undefined: it differs between devices, sizes and kernels. What both
orders agree on is what the reference says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from perfguard._compat.torch_internals import schema_of
from perfguard._compat.torch_utils import DispatchMode

_aten = torch.ops.aten
_OF_ALL = (_aten.argmax.default, _aten.argmin.default)
_ORDERING = (_aten.topk.default, _aten.sort.default, _aten.sort.stable)
_CHOOSING = frozenset((*_OF_ALL, *_ORDERING, _aten.max.dim, _aten.min.dim, _aten.kthvalue.default))


class OrderOfEqual(DispatchMode):
    """Makes operators choose the first, or the last, of equal elements. A sort that is asked to be stable stays so."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.last = last

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _CHOOSING:
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in schema_of(func).arguments]
        given = dict(zip(names, args, strict=False)) | dict(kwargs or {})
        tensor, dim = given.pop("self"), given.pop("dim", None if func in _OF_ALL else -1)
        if tensor.ndim == 0 or given.pop("stable", False):
            return func(*args, **(kwargs or {}))
        if func in _ORDERING:
            return self._ordered(tensor, dim, **given)
        if not self.last:
            return func(*args, **(kwargs or {}))
        if dim is None:
            found = tensor.numel() - 1 - func(tensor.flatten().flip(0), 0)
            return found.reshape((1,) * tensor.ndim) if given.get("keepdim") else found
        found = func(tensor.flip(dim), dim=dim, **given)
        end = tensor.shape[dim] - 1
        return end - found if isinstance(found, torch.Tensor) else (found[0], end - found[1])

    def _ordered(
        self,
        tensor: torch.Tensor,
        dim: int,
        k: int | None = None,
        *,
        descending: bool = False,
        largest: bool = True,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `sort` returns, or `topk` of `k` elements."""
        downwards = descending if k is None else largest
        values, indices = _aten.sort.stable(
            tensor.flip(dim) if self.last else tensor, stable=True, dim=dim, descending=downwards
        )
        if self.last:
            indices = tensor.shape[dim] - 1 - indices
        count = tensor.shape[dim] if k is None else k
        return values.narrow(dim, 0, count).contiguous(), indices.narrow(dim, 0, count).contiguous()
