"""What a quantiser accepts, checked in one place for the ops and for the reference.

Every error begins with the name of the argument and says what it is and what it may be. Nothing in
here reads tensor data, so the checks are free on a GPU, under graph capture and in a fake run.
What can only be seen in the data (offsets that decrease or overrun) stands in `require_valid_offs`,
which reads the host and which only the reference calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

INPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def require_input(x: torch.Tensor, ndim: int, name: str = "x") -> None:
    """`x` is a dense tensor of `ndim` dimensions in a dtype whose amax fp32 holds exactly."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name}: is a {type(x).__name__}; may be a tensor of {ndim} dimensions")
    if x.ndim != ndim:
        raise ValueError(f"{name}: has {x.ndim} dimensions, shape {tuple(x.shape)}; may have {ndim}")
    if x.dtype not in INPUT_DTYPES:
        known = ", ".join(str(dtype) for dtype in INPUT_DTYPES)
        raise ValueError(f"{name}: is {x.dtype}; may be {known}")


def require_offs(offs: torch.Tensor, x: torch.Tensor, name: str = "x") -> None:
    """`offs` (G,) int32 on the device of `x`: the inclusive running end of each group."""
    if not isinstance(offs, torch.Tensor):
        raise ValueError(f"offs: is a {type(offs).__name__}; may be an int32 tensor of shape (groups,)")
    if offs.ndim != 1:
        raise ValueError(f"offs: has {offs.ndim} dimensions, shape {tuple(offs.shape)}; may have 1")
    if offs.dtype != torch.int32:
        raise ValueError(f"offs: is {offs.dtype}; may be torch.int32")
    if offs.device != x.device:
        raise ValueError(f"offs: is on {offs.device}; may be on {x.device}, where {name} is")


def require_same_tokens(x1: torch.Tensor, x2: torch.Tensor) -> None:
    """The two operands of a dual quantiser share tokens, dtype and device, as they share `offs`."""
    if x2.shape[0] != x1.shape[0]:
        raise ValueError(f"x2: has {x2.shape[0]} rows; may have {x1.shape[0]}, as x1 has")
    if x2.dtype != x1.dtype:
        raise ValueError(f"x2: is {x2.dtype}; may be {x1.dtype}, as x1 is")
    if x2.device != x1.device:
        raise ValueError(f"x2: is on {x2.device}; may be on {x1.device}, where x1 is")


def require_valid_offs(ends: Sequence[int], rows: int) -> None:
    """Host values of `offs`: non-negative, never decreasing, at most `rows`. Reads no tensor itself."""
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
