"""Float8 grouped matmul for training: forward, dgrad and wgrad in fp8, each operand scaled along its contraction.

out[rows of group g] = a[rows of g] @ b_t[g]. With q(x, d) the codes and power-of-two scales of x along d:

    forward   q(a, K)           @ q(b_t, K)           2D x 3D
    dgrad     q(grad_out, N)    @ q(b_t, N)^T         2D x 3D
    wgrad     q(grad_out, g)^T  @ q(a, g)             2D x 2D, g the tokens of a group

kernels.md section 2; after torchao's `_to_fp8_rowwise_then_scaled_grouped_mm`. Quantisers are those of this package,
matmuls those of `scaled.py`; eager truth: `reference.grouped_mm`.

Shape suffixes: R rows (tokens, and rows past the last group), P padded rows, K inner width, N outer width, E experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.arguments import refuse_second_derivative
from kernels.fp8 import ops, scaled
from kernels.fp8.arguments import require_matmul_operands, require_out_dtype
from kernels.fp8.formats import format_of


def grouped_mm(
    a: Tensor,
    b_t: Tensor,
    offs: Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    dtype: torch.dtype | None = None,
    fast_accum: bool = True,
    keep_fp8_weights: bool = False,
    backend: str | None = None,
) -> Tensor:
    """a (R, K), b_t (E, K, N), offs (E,) int32 -> out (R, N) bf16, contiguous; differentiable once in a and b_t.

    a and b_t are bf16 or fp32, each by itself, with any strides; b_t is normally the transposed view of a weight
    (E, N, K). offs holds the inclusive running end of each group; groups may be of any size and empty. Rows past
    `offs[-1]` are ignored, NaN among them too, and are zero in out and in the gradient of a. The gradient of an empty
    group's weight is zero. Gradients have their input's dtype; that of b_t is a view of an (E, N, K) tensor.

    dtype: the fp8 format, default that of the device. fast_accum: of all three matmuls; AMD's ignore it.
    keep_fp8_weights: quantise the weight for dgrad in forward already and keep E * K * N bytes until backward.
    backend: "triton", "grouped", "loop" or "emulation" in place of what `grouped_mm.path(device)` answers, for tests.

    Kept for backward: where b_t needs a gradient, the codes of a by columns, P * K bytes with P = roundup16(R + 15 E),
    and E * K scales; where a does, b_t itself or, with keep_fp8_weights, its transposed codes and E * K scales; offs.

    On the "triton" and the "grouped" path neither forward nor backward reads the device. Errors: ValueError for wrong
    arguments, RuntimeError for a backward with create_graph=True.
    """
    require_matmul_operands(a, b_t, offs)
    require_out_dtype(out_dtype)
    if dtype is not None:
        format_of(dtype)
    keeps_graph = torch.is_grad_enabled()  # within `forward` it never is
    return _GroupedMm.apply(a, b_t, offs, dtype, fast_accum, keep_fp8_weights, backend, keeps_graph)  # type: ignore[no-any-return]


grouped_mm.path = scaled.path  # type: ignore[attr-defined]


class _GroupedMm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b_t: Tensor,
        offs: Tensor,
        dtype: torch.dtype | None,
        fast_accum: bool,
        keep_fp8_weights: bool,
        backend: str | None,
        keeps_graph: bool,
    ) -> Tensor:
        needs_dgrad = keeps_graph and ctx.needs_input_grad[0]
        needs_wgrad = keeps_graph and ctx.needs_input_grad[1]
        keeps_weight = needs_dgrad and keep_fp8_weights
        columns = column_inverse = weight = weight_inverse = None
        how = (dtype, True, None, True)  # power-of-two scales, their reciprocals
        if needs_wgrad and keeps_weight:
            (
                a_codes, a_inverse, columns, column_inverse, _, b_codes, b_inverse, weight, weight_inverse,
            ) = ops.matmul_operands(a, b_t, offs, *how)  # fmt: skip
        else:
            if needs_wgrad:
                a_codes, a_inverse, columns, column_inverse, _ = ops.rowwise_colwise_per_group_padded(a, offs, *how)
            else:
                a_codes, a_inverse = ops.rowwise(a, *how)
            if keeps_weight:
                b_codes, b_inverse, weight, weight_inverse = ops.colwise_transpose_3d(b_t, *how)
            else:
                b_codes, b_inverse = ops.colwise_3d(b_t, *how)
        out = scaled.matmul_2d3d(a_codes, a_inverse, b_codes, b_inverse.squeeze(1), offs, fast_accum, backend)

        if needs_dgrad and weight is None:
            weight = b_t
        ctx.save_for_backward(offs, columns, column_inverse, weight, weight_inverse)
        ctx.dtype, ctx.fast_accum, ctx.backend = dtype, fast_accum, backend
        ctx.a_dtype, ctx.b_dtype = a.dtype, b_t.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("grouped_mm", "fp8 codes have none of their own", "a bf16 matmul")
        offs, columns, column_inverse, weight, weight_inverse = ctx.saved_tensors
        how = (ctx.dtype, True, None, True)
        grad_a, grad_b_t = None, None
        if weight is not None and columns is not None:
            codes, inverse, grad_columns, grad_inverse, padded_offs = ops.rowwise_colwise_per_group_padded(
                grad_out, offs, *how
            )
        elif weight is not None:
            codes, inverse = ops.rowwise(grad_out, *how)
        else:
            grad_columns, grad_inverse, padded_offs = ops.colwise_per_group_padded(grad_out, offs, *how)
        if weight is not None:
            if weight_inverse is None:
                weight, weight_inverse = ops.transpose_3d_atomic(weight, *how)
            grad_a = scaled.matmul_2d3d(codes, inverse, weight, weight_inverse, offs, ctx.fast_accum, ctx.backend)
            grad_a = grad_a.to(ctx.a_dtype)
            del codes, weight  # E * K * N and R * N bytes that wgrad does without
        if columns is not None:
            grad_b = scaled.matmul_2d2d(
                grad_columns.t(), grad_inverse, columns, column_inverse, padded_offs, ctx.fast_accum, ctx.backend
            )
            grad_b_t = grad_b.to(ctx.b_dtype).transpose(1, 2)
        return grad_a, grad_b_t, None, None, None, None, None, None
