"""What the grouped product accepts."""

from __future__ import annotations

from typing import get_args

from torch import Tensor

from kernels.arguments import require_floats, require_length, require_like, require_offs
from kernels.grouped.configs import Impl

_IMPLS = get_args(Impl)


def require_operands(a: Tensor, b: Tensor, offs: Tensor) -> None:
    """a (R, K) with b (E, K, N), or a (K, R) with b (R, N); one dtype, one device, one end a group in `offs`."""
    require_floats(a, "a", ndim=2)
    require_floats(b, "b")
    if b.ndim not in (2, 3):
        raise ValueError(f"b: has {b.ndim} dimensions, shape {tuple(b.shape)}; may have 3, (E, K, N), or 2, (R, N)")
    require_like(b, "b", a, "a")
    require_offs(offs, a, "a")
    if b.ndim == 3:
        if b.shape[1] != a.shape[1]:
            raise ValueError(f"b: has inner width {b.shape[1]}; may have {a.shape[1]}, the width of a")
        require_length(offs, "offs", b.shape[0], "expert of b")
    elif b.shape[0] != a.shape[1]:
        raise ValueError(f"b: has {b.shape[0]} rows; may have {a.shape[1]}, the columns of a (K, R)")


def require_impl(impl: str) -> None:
    """`impl` is one that exists; whether it can run here is told when it runs."""
    if impl not in _IMPLS:
        raise ValueError(f"impl: is {impl!r}; may be one of {', '.join(_IMPLS)}")
