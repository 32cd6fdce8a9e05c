"""What a quantiser accepts, checked in one place for the ops and for the reference.

Every error begins with the name of the argument and says what it is and what it may be. Nothing in
here reads tensor data, so the checks are free on a GPU, under graph capture and in a fake run.
What can only be seen in the data (offsets that decrease or overrun) stands in `require_valid_offs`,
which reads the host and which only the reference calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

ALIGNMENT = 16  # tokens: what a matrix unit asks of the start and end of a group along the contraction
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


def require_alignment(alignment: int | None) -> None:
    """`alignment` of a per-group column quantiser: as the rows come, or padded to multiples of 16."""
    if alignment is not None and alignment != ALIGNMENT:
        raise ValueError(f"alignment: is {alignment!r}; may be None or {ALIGNMENT}")


def padded_rows(tokens: int, groups: int) -> int:
    """Rows that padded groups of `tokens` rows in all need at most: known without the host reading offs."""
    rows = tokens + (ALIGNMENT - 1) * groups
    return (rows + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def padded_ends(offs: torch.Tensor) -> torch.Tensor:
    """offs (G,) int32 -> the same for groups padded to multiples of 16; an empty group stays empty."""
    lengths_G = torch.diff(offs, prepend=offs.new_zeros(1))
    return ((lengths_G + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT).cumsum(0, dtype=torch.int32)


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


def require_matmul_operands(a: torch.Tensor, b_t: torch.Tensor, offs: torch.Tensor) -> None:
    """a (R, K) and b_t (E, K, N) in bf16 or fp32 on one device, offs (E,)."""
    for name, operand, ndim in (("a", a, 2), ("b_t", b_t, 3)):
        require_input(operand, ndim, name)
        if operand.dtype == torch.float16:
            raise ValueError(f"{name}: is torch.float16, which weight gradients overflow; may be bfloat16 or float32")
    if b_t.device != a.device:
        raise ValueError(f"b_t: is on {b_t.device}; may be on {a.device}, where a is")
    if b_t.shape[1] != a.shape[1]:
        raise ValueError(
            f"b_t: has inner width {b_t.shape[1]}, shape {tuple(b_t.shape)}; may have {a.shape[1]}, the width of a: "
            "give the weight (E, N, K) as its transposed view (E, K, N)"
        )
    require_offs(offs, a, "a")
    if offs.shape[0] != b_t.shape[0]:
        raise ValueError(f"offs: has {offs.shape[0]} groups; may have {b_t.shape[0]}, the experts of b_t")


def require_out_dtype(out_dtype: torch.dtype) -> None:
    """What a matmul returns."""
    if out_dtype != torch.bfloat16:
        raise ValueError(f"out_dtype: is {out_dtype}; may be torch.bfloat16, all that is built yet: cast the result")
