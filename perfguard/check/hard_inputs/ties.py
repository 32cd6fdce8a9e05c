"""The reference with ties broken the other way. If its result then differs, no candidate is wrong.

Inputs that differ by a rounding do not reveal every tie: a sigmoid or softmax that has reached 1 stays there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from perfguard._compat.dispatch_mode import DispatchMode
from perfguard._compat.torch_operators import schema_of

aten = torch.ops.aten


class LastOfEqual(DispatchMode):
    """Makes operators choose the last of equal elements instead of the first, by reversing their input."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _CHOOSING:
            return func(*args, **(kwargs or {}))
        names = [argument.name for argument in schema_of(func).arguments]
        given = dict(zip(names, args, strict=False)) | dict(kwargs or {})
        tensor, dim = given.pop("self"), given.pop("dim", None if func in _OF_ALL else -1)
        if tensor.ndim == 0:
            return func(*args, **(kwargs or {}))
        if dim is None:
            found = tensor.numel() - 1 - func(tensor.flatten().flip(0), 0)
            return found.reshape((1,) * tensor.ndim) if given.get("keepdim") else found
        found = func(tensor.flip(dim), dim=dim, **given)
        last = tensor.shape[dim] - 1
        return last - found if isinstance(found, torch.Tensor) else (found[0], last - found[1])


_OF_ALL = (aten.argmax.default, aten.argmin.default)
_CHOOSING = frozenset(
    (
        *_OF_ALL,
        aten.topk.default,
        aten.sort.default,
        aten.sort.stable,
        aten.max.dim,
        aten.min.dim,
        aten.kthvalue.default,
    )
)
