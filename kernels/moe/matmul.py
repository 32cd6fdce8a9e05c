"""The grouped matmuls that experts run on, by name: one switch between bf16 and fp8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kernels import fp8, grouped

GroupedMatmul = Callable[[Tensor, Tensor, Tensor], Tensor]
Precision = Literal["bf16", "fp8"]


@dataclass(frozen=True)
class Matmul:
    """A grouped matmul, and what may be asked of it.

    Attributes:
        multiply: (a (R, K), b (E, K, N), offs (E,)) -> (R, N), differentiable in a and b.
        contracts_rows: whether it also takes a (K, R), b (R, N) -> (E, K, N), and is the same function without
            autograd: then experts run their own backward pass, which keeps less.
    """

    multiply: GroupedMatmul
    contracts_rows: bool


def _bf16(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return grouped.grouped_mm(a, b, offs)


def _fp8(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return fp8.grouped_mm(a, b, offs)


MATMULS: dict[str, Matmul] = {
    "bf16": Matmul(_bf16, contracts_rows=True),
    "fp8": Matmul(_fp8, contracts_rows=False),  # its operands are quantised inside, its gradients too
}


def matmul_of(precision: str) -> Matmul:
    """The entry of that name."""
    if precision not in MATMULS:
        raise ValueError(f"precision: is {precision!r}; may be one of {', '.join(MATMULS)}")
    return MATMULS[precision]
