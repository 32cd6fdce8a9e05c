"""What the quantisers and their matmul accept besides, and where padded groups lie.

Nothing in here reads tensor data, so the checks are free on a GPU, under graph capture and in a fake run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.arguments import require_device, require_floats, require_length, require_like, require_offs

ALIGNMENT = 16  # tokens: what a matrix unit asks of the start and end of a group along the contraction


def require_alignment(alignment: int | None) -> None:
    """`alignment` of a per-group column quantiser: as the rows come, or padded to multiples of 16."""
    if alignment is not None and alignment != ALIGNMENT:
        raise ValueError(f"alignment: is {alignment!r}; may be None or {ALIGNMENT}")


def padded_rows(tokens: int, groups: int) -> int:
    """Rows that padded groups of `tokens` rows in all need at most: known without the host reading offs."""
    rows = tokens + (ALIGNMENT - 1) * groups
    return (rows + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def padded_ends(offs: Tensor) -> Tensor:
    """offs (G,) int32 -> the same for groups padded to multiples of 16; an empty group stays empty."""
    lengths_G = torch.diff(offs, prepend=offs.new_zeros(1))
    return ((lengths_G + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT).cumsum(0, dtype=torch.int32)


def require_blocks(x: Tensor, name: str) -> None:
    """A matrix, or one for each expert."""
    require_floats(x, name)
    if x.ndim not in (2, 3):
        raise ValueError(f"{name}: has {x.ndim} dimensions, shape {tuple(x.shape)}; may have 2 or 3")


def require_same_tokens(x1: Tensor, x2: Tensor) -> None:
    """The two operands of a dual quantiser share tokens, dtype and device, as they share `offs`."""
    if x2.shape[0] != x1.shape[0]:
        raise ValueError(f"x2: has {x2.shape[0]} rows; may have {x1.shape[0]}, as x1 has")
    require_like(x2, "x2", x1, "x1")


def require_matmul_operands(a: Tensor, b_t: Tensor, offs: Tensor) -> None:
    """a (R, K) and b_t (E, K, N) in bf16 or fp32 on one device, offs (E,)."""
    for name, operand, ndim in (("a", a, 2), ("b_t", b_t, 3)):
        require_floats(operand, name, ndim)
        if operand.dtype == torch.float16:
            raise ValueError(f"{name}: is torch.float16, which weight gradients overflow; may be bfloat16 or float32")
    require_device(b_t, "b_t", a, "a")
    if b_t.shape[1] != a.shape[1]:
        raise ValueError(
            f"b_t: has inner width {b_t.shape[1]}, shape {tuple(b_t.shape)}; may have {a.shape[1]}, the width of a: "
            "give the weight (E, N, K) as its transposed view (E, K, N)"
        )
    require_offs(offs, a, "a")
    require_length(offs, "offs", b_t.shape[0], "expert of b_t")


def require_out_dtype(out_dtype: torch.dtype) -> None:
    """What a matmul returns."""
    if out_dtype != torch.bfloat16:
        raise ValueError(f"out_dtype: is {out_dtype}; may be torch.bfloat16, all that is built yet: cast the result")
