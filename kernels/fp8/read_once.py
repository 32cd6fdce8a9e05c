"""Quantisers of one operand along both of its axes: operators and public functions.

As `ops.py` for the others. `inverse` is for matmuls, which multiply by the reciprocals of scales. `candidate` is one of
the column quantiser's.

The row quantiser runs first and then the column quantiser, so the operand is read twice. A kernel that interleaved the
two, to take the second read from the cache, was slower on an H200: its column programs waited longer for their panels.
Tokens took 1.05 to 1.3 times as long, at four shapes, and keeping weights lengthened the forward pass by half.

Shape suffixes: M tokens, K inner width, G groups, E experts, N outer width of a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.fp8 import ops, reference
from kernels.fp8.arguments import ALIGNMENT, require_alignment, require_input, require_offs
from kernels.fp8.ops import Pair, Quad, Quint, Triple, dtype_or_default, maybe_inverse, path
from kernels.launch import operator

try:
    from kernels.fp8 import launch
except ImportError as error:  # without Triton the operators run their reference
    if error.name is None or error.name.split(".")[0] != "triton":
        raise
    launch = None  # type: ignore[assignment]

Nine = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def quantize_rowwise_colwise_per_group(
    x: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
    candidate: int | None = None,
) -> tuple[Tensor, ...]:
    """x (M, K), offs (G,) -> row codes (M, K) fp8, strides (K, 1); row scales (M, 1) fp32; then codes and scales as
    `quantize_colwise_per_group` returns them, with `alignment` padded_offs besides.

    Rows past `offs[-1]` are ordinary rows to the first pair and absent to the second."""
    require_input(x, ndim=2)
    require_offs(offs, x)
    require_alignment(alignment)
    if alignment is not None:
        return rowwise_colwise_per_group_padded(x, offs, dtype, power_of_two, candidate)
    return _rowwise_colwise_per_group(x, offs, dtype, power_of_two, candidate)


@operator("fp8_quantize_rowwise_colwise_per_group")
def _rowwise_colwise_per_group(
    x: Tensor, offs: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None
) -> Quad:
    dtype = dtype_or_default(dtype, x)
    if path(x.device) == "eager":
        row_codes, row_scales, codes, scales = reference.quantize_rowwise_colwise_per_group(
            x, offs, dtype=dtype, power_of_two=power_of_two
        )
        return row_codes, row_scales, codes, scales
    results = _tokens_outputs(x, offs, dtype, power_of_two, candidate)
    _launch_tokens(x, offs, (*results, None), dtype, power_of_two, candidate)
    return results


@_rowwise_colwise_per_group.register_fake
def _tokens_outputs(
    x: Tensor, offs: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None
) -> Quad:
    rows: Pair = ops.rowwise_outputs(x, dtype, power_of_two, candidate)
    columns: Pair = ops.colwise_per_group_outputs(x, offs, dtype, power_of_two, candidate)
    return *rows, *columns


@operator("fp8_quantize_rowwise_colwise_per_group_padded")
def rowwise_colwise_per_group_padded(
    x: Tensor,
    offs: Tensor,
    dtype: torch.dtype | None,
    power_of_two: bool,
    candidate: int | None,
    inverse: bool = False,
) -> Quint:
    """Row codes and scales, column codes and scales with each group at a multiple of 16, padded_offs."""
    dtype = dtype_or_default(dtype, x)
    if path(x.device) == "eager":
        row_codes, row_scales, codes, scales, padded_offs = reference.quantize_rowwise_colwise_per_group(
            x, offs, dtype=dtype, power_of_two=power_of_two, alignment=ALIGNMENT
        )
        return row_codes, maybe_inverse(row_scales, inverse), codes, maybe_inverse(scales, inverse), padded_offs
    results = _padded_tokens_outputs(x, offs, dtype, power_of_two, candidate, inverse)
    _launch_tokens(x, offs, results, dtype, power_of_two, candidate, inverse)
    return results


@rowwise_colwise_per_group_padded.register_fake
def _padded_tokens_outputs(
    x: Tensor,
    offs: Tensor,
    dtype: torch.dtype | None,
    power_of_two: bool,
    candidate: int | None,
    inverse: bool = False,
) -> Quint:
    rows: Pair = ops.rowwise_outputs(x, dtype, power_of_two, candidate)
    columns: Triple = ops.padded_outputs(x, offs, dtype, power_of_two, candidate)
    return *rows, *columns


def quantize_colwise_transpose_3d(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Quad:
    """w (E, K, N) -> codes and scales of `quantize_colwise_3d`, then those of `quantize_transpose_3d_atomic`."""
    require_input(w, ndim=3, name="w")
    return colwise_transpose_3d(w, dtype, power_of_two, candidate)


@operator("fp8_quantize_colwise_transpose_3d")
def colwise_transpose_3d(
    w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> Quad:
    """Codes (E, K, N), scales (E, 1, N); transposed codes (E, N, K), scales (E, K)."""
    dtype = dtype_or_default(dtype, w)
    if path(w.device) == "eager":
        codes, scales, codes_t, scales_t = reference.quantize_colwise_transpose_3d(
            w, dtype=dtype, power_of_two=power_of_two
        )
        return codes, maybe_inverse(scales, inverse), codes_t, maybe_inverse(scales_t, inverse)
    results = _weight_outputs(w, dtype, power_of_two, candidate, inverse)
    _launch_weight(w, results, dtype, power_of_two, candidate, inverse)
    return results


@colwise_transpose_3d.register_fake
def _weight_outputs(
    w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> Quad:
    columns: Pair = ops.colwise_3d_outputs(w, dtype, power_of_two, candidate)
    transposed: Pair = ops.transpose_3d_outputs(w, dtype, power_of_two, candidate)
    return *columns, *transposed


@operator("fp8_quantize_matmul_operands")
def matmul_operands(a: Tensor, w: Tensor, offs: Tensor, dtype: torch.dtype | None) -> Nine:
    """The five of `rowwise_colwise_per_group_padded`, then the four of `colwise_transpose_3d`: power-of-two scales,
    inverse. One operator for the host to call in place of two; the launches are the same."""
    dtype = dtype_or_default(dtype, a)
    if path(a.device) == "eager":
        tokens: Quint = rowwise_colwise_per_group_padded(a, offs, dtype, True, None, True)
        weight: Quad = colwise_transpose_3d(w, dtype, True, None, True)
        return *tokens, *weight
    results = _operands_outputs(a, w, offs, dtype)
    _launch_weight(w, results[5:], dtype, power_of_two=True, candidate=None, inverse=True)
    _launch_tokens(a, offs, results[:5], dtype, power_of_two=True, candidate=None, inverse=True)
    return results


@matmul_operands.register_fake
def _operands_outputs(a: Tensor, w: Tensor, offs: Tensor, dtype: torch.dtype | None) -> Nine:
    tokens, weight = _padded_tokens_outputs(a, offs, dtype, True, None), _weight_outputs(w, dtype, True, None)
    return *tokens, *weight


def _launch_tokens(
    x: Tensor,
    offs: Tensor,
    results: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    dtype: torch.dtype,
    power_of_two: bool,
    candidate: int | None,
    inverse: bool = False,
) -> None:
    """Fill the results of `rowwise_colwise_per_group_padded`, or those of the operator without padding and None."""
    row_codes, row_scales, codes, scales, padded_offs = results
    x_1MK = x[None]
    launch.launch_rows(x_1MK, row_codes, row_scales, launch.How(dtype, power_of_two, None, inverse))
    how = launch.How(dtype, power_of_two, candidate, inverse)
    launch.launch_columns([launch.Operand(x_1MK, codes, scales)], offs, how, True, padded_offs)


def _launch_weight(
    w: Tensor, results: Quad, dtype: torch.dtype, power_of_two: bool, candidate: int | None, inverse: bool
) -> None:
    """Fill the results of `colwise_transpose_3d`."""
    codes, scales, codes_t, scales_t = results
    w_ENK = w.transpose(1, 2)
    launch.launch_rows(w_ENK, codes, scales, launch.How(dtype, power_of_two, None, inverse))
    how = launch.How(dtype, power_of_two, candidate, inverse)
    launch.launch_columns([launch.Operand(w_ENK, codes_t, scales_t)], None, how, atomic=True)
