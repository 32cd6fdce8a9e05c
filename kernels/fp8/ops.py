"""The fp8 quantisers as PyTorch operators `perfguard_kernels::fp8_quantize_*`, and their public functions.

Each returns codes and scales; shapes, strides and numerics are those of the function of the same name in
`reference.py`. `candidate` picks an entry of the configuration table (`configs.py`), for tests and sweeps; all
entries give the same bits. `inverse`, of operators alone, returns the reciprocals of scales, which is what a matmul
multiplies by. Works under `torch.compile` and graph capture: nothing here reads the device.

Shape suffixes: M tokens, K inner width, P the other width of a transposed activation, G groups, E experts,
N outer width of a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.fp8 import reference
from kernels.fp8.arguments import (
    ALIGNMENT,
    padded_rows,
    require_alignment,
    require_input,
    require_offs,
    require_same_tokens,
)
from kernels.fp8.formats import format_of
from kernels.hardware import default_fp8_dtype
from kernels.jit import Path, path_of
from kernels.launch import operator

try:
    from kernels.fp8 import launch
except ImportError as error:  # without Triton the operators run their reference
    if error.name is None or error.name.split(".")[0] != "triton":
        raise
    launch = None  # type: ignore[assignment]

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]
Quad = tuple[Tensor, Tensor, Tensor, Tensor]
Quint = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def path(device: torch.device | str) -> Path:
    """What a call on this device runs now (`kernels.jit`)."""
    return path_of(None if launch is None else launch.quantize_columns, device)


# ---- rows ----------------------------------------------------------------------------------------------------


def quantize_rowwise(
    x: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """x (M, K) -> codes (M, K) fp8, strides (K, 1); scales (M, 1) fp32."""
    require_input(x, ndim=2)
    return rowwise(x, dtype, power_of_two, candidate)


@operator("fp8_quantize_rowwise")
def rowwise(
    x: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> Pair:
    dtype = dtype_or_default(dtype, x)
    if path(x.device) == "eager":
        codes, scales = reference.quantize_rowwise(x, dtype=dtype, power_of_two=power_of_two)
        return codes, maybe_inverse(scales, inverse)
    codes, scales = rowwise_outputs(x, dtype, power_of_two, candidate)
    launch.launch_rows(x[None], codes, scales, launch.How(dtype, power_of_two, candidate, inverse))
    return codes, scales


@rowwise.register_fake
def rowwise_outputs(
    x: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> Pair:
    rows, width = x.shape
    return x.new_empty((rows, width), dtype=dtype_or_default(dtype, x)), x.new_empty((rows, 1), dtype=torch.float32)


def quantize_colwise_3d(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """w (E, K, N) -> codes (E, K, N) fp8, strides (K * N, 1, K); scales (E, 1, N) fp32, reduced over K."""
    require_input(w, ndim=3, name="w")
    return colwise_3d(w, dtype, power_of_two, candidate)


@operator("fp8_quantize_colwise_3d")
def colwise_3d(
    w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> Pair:
    dtype = dtype_or_default(dtype, w)
    if path(w.device) == "eager":
        codes, scales = reference.quantize_colwise_3d(w, dtype=dtype, power_of_two=power_of_two)
        return codes, maybe_inverse(scales, inverse)
    codes, scales = colwise_3d_outputs(w, dtype, power_of_two, candidate)
    launch.launch_rows(w.transpose(1, 2), codes, scales, launch.How(dtype, power_of_two, candidate, inverse))
    return codes, scales


@colwise_3d.register_fake
def colwise_3d_outputs(
    w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> Pair:
    experts, inner, outer = w.shape
    codes_ENK = w.new_empty((experts, outer, inner), dtype=dtype_or_default(dtype, w))
    return codes_ENK.transpose(1, 2), w.new_empty((experts, 1, outer), dtype=torch.float32)


# ---- columns -------------------------------------------------------------------------------------------------


def quantize_rowwise_per_group(
    x: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    candidate: int | None = None,
) -> Pair:
    """x (P, M), offs (G,) -> codes (P, M) fp8, strides (M, 1); scales (G * P,) fp32, index g * P + p."""
    require_input(x, ndim=2)
    require_offs(offs, x)
    return _rowwise_per_group(x, offs, dtype, power_of_two, candidate)


@operator("fp8_quantize_rowwise_per_group")
def _rowwise_per_group(
    x: Tensor, offs: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None
) -> Pair:
    dtype = dtype_or_default(dtype, x)
    if path(x.device) == "eager":
        return reference.quantize_rowwise_per_group(x, offs, dtype=dtype, power_of_two=power_of_two)
    codes, scales = _rowwise_per_group_outputs(x, offs, dtype, power_of_two, candidate)
    operand = launch.Operand(x.t()[None], codes, scales)
    launch.launch_columns([operand], offs, launch.How(dtype, power_of_two, candidate))
    return codes, scales


@_rowwise_per_group.register_fake
def _rowwise_per_group_outputs(
    x: Tensor, offs: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None
) -> Pair:
    width, tokens = x.shape
    codes_PM = x.new_empty((width, tokens), dtype=dtype_or_default(dtype, x))
    return codes_PM, x.new_empty((offs.shape[0] * width,), dtype=torch.float32)


def quantize_colwise_per_group(
    x: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
    candidate: int | None = None,
) -> tuple[Tensor, ...]:
    """x (M, K), offs (G,) -> codes (M, K) fp8, strides (1, M); scales (G * K,) fp32, index g * K + k.

    With `alignment` 16: codes (P, K), strides (1, P), P = roundup16(M + 15 G), each group at a multiple of 16;
    scales; padded_offs (G,) int32."""
    require_input(x, ndim=2)
    require_offs(offs, x)
    require_alignment(alignment)
    if alignment is not None:
        return colwise_per_group_padded(x, offs, dtype, power_of_two, candidate)
    return _colwise_per_group(x, offs, dtype, power_of_two, candidate)


@operator("fp8_quantize_colwise_per_group")
def _colwise_per_group(
    x: Tensor, offs: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None
) -> Pair:
    dtype = dtype_or_default(dtype, x)
    if path(x.device) == "eager":
        codes, scales = reference.quantize_colwise_per_group(x, offs, dtype=dtype, power_of_two=power_of_two)
        return codes, scales
    codes, scales = colwise_per_group_outputs(x, offs, dtype, power_of_two, candidate)
    operand = launch.Operand(x[None], codes, scales)
    launch.launch_columns([operand], offs, launch.How(dtype, power_of_two, candidate))
    return codes, scales


@_colwise_per_group.register_fake
def colwise_per_group_outputs(
    x: Tensor, offs: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None
) -> Pair:
    tokens, width = x.shape
    codes_KM = x.new_empty((width, tokens), dtype=dtype_or_default(dtype, x))
    return codes_KM.t(), x.new_empty((offs.shape[0] * width,), dtype=torch.float32)


@operator("fp8_quantize_colwise_per_group_padded")
def colwise_per_group_padded(
    x: Tensor,
    offs: Tensor,
    dtype: torch.dtype | None,
    power_of_two: bool,
    candidate: int | None,
    inverse: bool = False,
) -> Triple:
    dtype = dtype_or_default(dtype, x)
    if path(x.device) == "eager":
        codes, scales, padded_offs = reference.quantize_colwise_per_group(
            x, offs, dtype=dtype, power_of_two=power_of_two, alignment=ALIGNMENT
        )
        return codes, maybe_inverse(scales, inverse), padded_offs
    codes, scales, padded_offs = padded_outputs(x, offs, dtype, power_of_two, candidate)
    operand = launch.Operand(x[None], codes, scales)
    how = launch.How(dtype, power_of_two, candidate, inverse)
    launch.launch_columns([operand], offs, how, padded_offs=padded_offs)
    return codes, scales, padded_offs


@colwise_per_group_padded.register_fake
def padded_outputs(
    x: Tensor,
    offs: Tensor,
    dtype: torch.dtype | None,
    power_of_two: bool,
    candidate: int | None,
    inverse: bool = False,
) -> Triple:
    tokens, width = x.shape
    codes_KP = x.new_empty((width, padded_rows(tokens, offs.shape[0])), dtype=dtype_or_default(dtype, x))
    scales = x.new_empty((offs.shape[0] * width,), dtype=torch.float32)
    return codes_KP.t(), scales, offs.new_empty(offs.shape)


def quantize_colwise_per_group_dual(
    x1: Tensor,
    x2: Tensor,
    offs: Tensor,
    *,
    dtype: torch.dtype | None = None,
    power_of_two: bool = False,
    alignment: int | None = None,
    candidate: int | None = None,
) -> tuple[Tensor, ...]:
    """x1 (M, K1), x2 (M, K2), offs (G,) -> codes1, scales1, codes2, scales2 as `quantize_colwise_per_group`;
    with `alignment` padded_offs besides."""
    require_input(x1, ndim=2, name="x1")
    require_input(x2, ndim=2, name="x2")
    require_same_tokens(x1, x2)
    require_offs(offs, x1, name="x1")
    require_alignment(alignment)
    if alignment is not None:
        return _colwise_per_group_dual_padded(x1, x2, offs, dtype, power_of_two, candidate)
    return _colwise_per_group_dual(x1, x2, offs, dtype, power_of_two, candidate)


@operator("fp8_quantize_colwise_per_group_dual")
def _colwise_per_group_dual(
    x1: Tensor,
    x2: Tensor,
    offs: Tensor,
    dtype: torch.dtype | None,
    power_of_two: bool,
    candidate: int | None,
) -> Quad:
    dtype = dtype_or_default(dtype, x1)
    if path(x1.device) == "eager":
        codes1, scales1, codes2, scales2 = reference.quantize_colwise_per_group_dual(
            x1, x2, offs, dtype=dtype, power_of_two=power_of_two
        )
        return codes1, scales1, codes2, scales2
    codes1, scales1, codes2, scales2 = _dual_outputs(x1, x2, offs, dtype, power_of_two, candidate)
    operands = [launch.Operand(x1[None], codes1, scales1), launch.Operand(x2[None], codes2, scales2)]
    launch.launch_columns(operands, offs, launch.How(dtype, power_of_two, candidate))
    return codes1, scales1, codes2, scales2


@_colwise_per_group_dual.register_fake
def _dual_outputs(
    x1: Tensor,
    x2: Tensor,
    offs: Tensor,
    dtype: torch.dtype | None,
    power_of_two: bool,
    candidate: int | None,
) -> Quad:
    first = colwise_per_group_outputs(x1, offs, dtype, power_of_two, candidate)
    second = colwise_per_group_outputs(x2, offs, dtype, power_of_two, candidate)
    return *first, *second


@operator("fp8_quantize_colwise_per_group_dual_padded")
def _colwise_per_group_dual_padded(
    x1: Tensor,
    x2: Tensor,
    offs: Tensor,
    dtype: torch.dtype | None,
    power_of_two: bool,
    candidate: int | None,
) -> Quint:
    dtype = dtype_or_default(dtype, x1)
    if path(x1.device) == "eager":
        codes1, scales1, codes2, scales2, padded_offs = reference.quantize_colwise_per_group_dual(
            x1, x2, offs, dtype=dtype, power_of_two=power_of_two, alignment=ALIGNMENT
        )
        return codes1, scales1, codes2, scales2, padded_offs
    results = _dual_padded_outputs(x1, x2, offs, dtype, power_of_two, candidate)
    codes1, scales1, codes2, scales2, padded_offs = results
    operands = [launch.Operand(x1[None], codes1, scales1), launch.Operand(x2[None], codes2, scales2)]
    launch.launch_columns(operands, offs, launch.How(dtype, power_of_two, candidate), padded_offs=padded_offs)
    return results


@_colwise_per_group_dual_padded.register_fake
def _dual_padded_outputs(
    x1: Tensor,
    x2: Tensor,
    offs: Tensor,
    dtype: torch.dtype | None,
    power_of_two: bool,
    candidate: int | None,
) -> Quint:
    codes1, scales1, _ = padded_outputs(x1, offs, dtype, power_of_two, candidate)
    codes2, scales2, padded_offs = padded_outputs(x2, offs, dtype, power_of_two, candidate)
    return codes1, scales1, codes2, scales2, padded_offs


def quantize_transpose_3d_atomic(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """w (E, K, N) -> codes (E, N, K) fp8, strides (N * K, 1, N); scales (E, K) fp32, reduced over N.

    The amax of a column is an atomic maximum over the programs that share it; on Hopper a weight of few rows has
    one program a column (`panels.py`)."""
    require_input(w, ndim=3, name="w")
    return transpose_3d_atomic(w, dtype, power_of_two, candidate)


@operator("fp8_quantize_transpose_3d_atomic")
def transpose_3d_atomic(
    w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> Pair:
    return _transpose_3d(w, dtype, power_of_two, candidate, atomic=True, inverse=inverse)


def quantize_transpose_3d_reduction(
    w: Tensor, *, dtype: torch.dtype | None = None, power_of_two: bool = False, candidate: int | None = None
) -> Pair:
    """The same result as `quantize_transpose_3d_atomic`; programs that share a column store their amax each, and all
    read all."""
    require_input(w, ndim=3, name="w")
    return _transpose_3d_reduction(w, dtype, power_of_two, candidate)


@operator("fp8_quantize_transpose_3d_reduction")
def _transpose_3d_reduction(w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None) -> Pair:
    return _transpose_3d(w, dtype, power_of_two, candidate, atomic=False)


def _transpose_3d(
    w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, atomic: bool, inverse: bool = False
) -> Pair:
    dtype = dtype_or_default(dtype, w)
    if path(w.device) == "eager":
        codes, scales = reference.quantize_transpose_3d_atomic(w, dtype=dtype, power_of_two=power_of_two)
        return codes, maybe_inverse(scales, inverse)
    codes, scales = transpose_3d_outputs(w, dtype, power_of_two, candidate)
    operand = launch.Operand(w.transpose(1, 2), codes, scales)
    launch.launch_columns([operand], None, launch.How(dtype, power_of_two, candidate, inverse), atomic)
    return codes, scales


@transpose_3d_atomic.register_fake
def transpose_3d_outputs(
    w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None, inverse: bool = False
) -> Pair:
    experts, inner, outer = w.shape
    codes_EKN = w.new_empty((experts, inner, outer), dtype=dtype_or_default(dtype, w))
    return codes_EKN.transpose(1, 2), w.new_empty((experts, inner), dtype=torch.float32)


@_transpose_3d_reduction.register_fake
def _reduction_outputs(w: Tensor, dtype: torch.dtype | None, power_of_two: bool, candidate: int | None) -> Pair:
    return transpose_3d_outputs(w, dtype, power_of_two, candidate)  # type: ignore[no-any-return]


def maybe_inverse(scales: Tensor, inverse: bool) -> Tensor:
    """What the reference returns, as an operator with `inverse` returns it."""
    return scales.reciprocal() if inverse else scales


def dtype_or_default(dtype: torch.dtype | None, x: Tensor) -> torch.dtype:
    """`dtype`, or the one of the device of x."""
    return format_of(default_fp8_dtype(x.device) if dtype is None else dtype).dtype
