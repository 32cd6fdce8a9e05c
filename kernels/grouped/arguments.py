"""What the grouped product accepts, and one clear error for what it does not.

An error names the argument, says what it is and what to do about it.
"""

from __future__ import annotations

from typing import get_args

from torch import Tensor

from kernels.arguments import DTYPES, require_offs
from kernels.grouped.configs import Impl

_IMPLS = get_args(Impl)


def require_operands(a: Tensor, b: Tensor, offs: Tensor) -> None:
    """a (R, K) with b (E, K, N), or a (K, R) with b (R, N); one dtype, one device, one end a group in `offs`."""
    if not isinstance(a, Tensor):
        raise ValueError(f"a: is a {type(a).__name__}; give a tensor of shape (R, K) or (K, R)")
    if not isinstance(b, Tensor):
        raise ValueError(f"b: is a {type(b).__name__}; give a tensor of shape (E, K, N) or (R, N)")
    a_shape, b_shape, dtype = a.shape, b.shape, a.dtype
    if len(a_shape) != 2:
        raise ValueError(f"a: has {a.ndim} dimensions, shape {tuple(a_shape)}; give 2, (R, K) or (K, R)")
    if len(b_shape) not in (2, 3):
        raise ValueError(f"b: has {b.ndim} dimensions, shape {tuple(b_shape)}; give 3, (E, K, N), or 2, (R, N)")
    if dtype not in DTYPES:
        known = ", ".join(str(dtype) for dtype in DTYPES)
        raise ValueError(f"a: is {dtype}; cast it to one of {known}")
    if b.dtype != dtype:
        raise ValueError(f"b: is {b.dtype}, a is {dtype}; cast one of them")
    if b.device != a.device:
        raise ValueError(f"b: is on {b.device}, a is on {a.device}; move one of them")
    require_offs(offs, a, "a")
    if len(b_shape) == 3:
        if b_shape[1] != a_shape[1]:
            raise ValueError(f"b: has inner width {b_shape[1]}, a has {a_shape[1]}; give b of shape (E, K, N)")
        if offs.shape[0] != b_shape[0]:
            raise ValueError(f"offs: has {offs.shape[0]} ends, b has {b_shape[0]} experts; give one end an expert")
    elif b_shape[0] != a_shape[1]:
        raise ValueError(f"b: has {b_shape[0]} rows, a has {a_shape[1]} columns; give a (K, R) and b (R, N)")


def require_impl(impl: str) -> None:
    """`impl` is one that exists; whether it can run here is told when it runs."""
    if impl not in _IMPLS:
        raise ValueError(f"impl: is {impl!r}; choose one of {', '.join(_IMPLS)}")
