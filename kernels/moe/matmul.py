"""The grouped matmuls that experts run on, by name: one switch between bf16 and fp8."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kernels import fp8, grouped

# (a (R, K), b (E, K, N), offs (E,)) -> (R, N), differentiable in a and b.
GroupedMatmul = Callable[[Tensor, Tensor, Tensor], Tensor]

MATMULS: dict[str, GroupedMatmul] = {"bf16": grouped.grouped_mm, "fp8": fp8.grouped_mm}
# Which of them also take a (K, R), b (R, N) -> (E, K, N), and are the same function without autograd: experts may then
# run their own backward pass, which keeps less. That of fp8 quantises its operands, and those of its gradients, inside.
CONTRACT_ROWS = ("bf16",)


def matmul_of(precision: str) -> GroupedMatmul:
    """The entry of that name."""
    if precision not in MATMULS:
        raise ValueError(f"precision: is {precision!r}; may be one of {', '.join(MATMULS)}")
    return MATMULS[precision]
