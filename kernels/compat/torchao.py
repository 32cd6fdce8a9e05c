"""The FP8 quantisers and the FP8 grouped matmul by torchao's names, as `torchao.prototype.moe_training` 0.18 has them.

Names, positional order, defaults, and the shapes and strides of results are torchao's. What differs:

- every function runs without a GPU, too, by torch operators;
- inputs may have any strides, and groups any sizes: `pad_token_groups_for_grouped_mm` changes nothing here, where
  torchao 0.18 refuses True, its default;
- scales are computed in float64 before they are rounded to float32 (kernels.md section 1), so a code at a rounding tie
  can differ by one step.

Shape suffixes: M rows (tokens), K and N widths, E experts, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import fp8

Pair = tuple[Tensor, Tensor]


def triton_fp8_rowwise_2d_scale_and_cast(
    hp_tensor: Tensor, output_dtype: torch.dtype = torch.float8_e4m3fn, round_scales_to_power_of_2: bool = False
) -> Pair:
    """(M, K) -> codes (M, K), strides (K, 1); scales (M, 1) float32."""
    return fp8.quantize_rowwise(hp_tensor, dtype=output_dtype, power_of_two=round_scales_to_power_of_2)


def triton_fp8_colwise_3d_scale_and_cast(
    hp_tensor: Tensor, output_dtype: torch.dtype = torch.float8_e4m3fn, round_scales_to_power_of_2: bool = False
) -> Pair:
    """(E, K, N) -> codes (E, K, N), strides (K N, 1, K); scales (E, 1, N) float32."""
    return fp8.quantize_colwise_3d(hp_tensor, dtype=output_dtype, power_of_two=round_scales_to_power_of_2)


def triton_fp8_rowwise_3d_transpose_rhs(
    hp_tensor: Tensor, output_dtype: torch.dtype = torch.float8_e4m3fn, round_scales_to_power_of_2: bool = False
) -> Pair:
    """(E, K, N) -> codes (E, N, K), strides (N K, 1, N); scales (E, K) float32."""
    return fp8.quantize_transpose_3d_atomic(hp_tensor, dtype=output_dtype, power_of_two=round_scales_to_power_of_2)


def triton_fp8_rowwise_3d_transpose_rhs_fused_reduction(
    hp_tensor: Tensor, output_dtype: torch.dtype = torch.float8_e4m3fn, round_scales_to_power_of_2: bool = False
) -> Pair:
    """As `triton_fp8_rowwise_3d_transpose_rhs`."""
    return fp8.quantize_transpose_3d_reduction(hp_tensor, dtype=output_dtype, power_of_two=round_scales_to_power_of_2)


def triton_fp8_per_group_rowwise_scales(
    hp_tensor: Tensor,
    offsets: Tensor,
    output_dtype: torch.dtype = torch.float8_e4m3fn,
    round_scales_to_power_of_2: bool = False,
) -> Pair:
    """(M, K), offsets (G,), the ends of groups of columns -> codes (M, K), strides (K, 1); scales (G M,) float32."""
    how = {"dtype": output_dtype, "power_of_two": round_scales_to_power_of_2}
    return fp8.quantize_rowwise_per_group(hp_tensor, offsets, **how)


def triton_fp8_per_group_colwise_scales(
    hp_tensor: Tensor,
    offsets: Tensor,
    output_dtype: torch.dtype = torch.float8_e4m3fn,
    round_scales_to_power_of_2: bool = False,
) -> Pair:
    """(M, K), offsets (G,), the ends of groups of rows -> codes (M, K), strides (1, M); scales (G K,) float32."""
    codes, scales = fp8.quantize_colwise_per_group(
        hp_tensor, offsets, dtype=output_dtype, power_of_two=round_scales_to_power_of_2
    )
    return codes, scales


def triton_fp8_per_group_colwise_scales_dual(
    hp_tensor_1: Tensor,
    hp_tensor_2: Tensor,
    offsets: Tensor,
    output_dtype: torch.dtype = torch.float8_e4m3fn,
    round_scales_to_power_of_2: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `triton_fp8_per_group_colwise_scales` of both: codes and scales of the first, then of the second."""
    codes_1, scales_1, codes_2, scales_2 = fp8.quantize_colwise_per_group_dual(
        hp_tensor_1, hp_tensor_2, offsets, dtype=output_dtype, power_of_two=round_scales_to_power_of_2
    )
    return codes_1, scales_1, codes_2, scales_2


def _to_fp8_rowwise_then_scaled_grouped_mm(
    A: Tensor,
    B_t: Tensor,
    offs: Tensor,
    out_dtype: torch.dtype | None = torch.bfloat16,
    float8_dtype: torch.dtype = torch.float8_e4m3fn,
    pad_token_groups_for_grouped_mm: bool = True,
) -> Tensor:
    """A (M, K), B_t (E, K, N), offs (E,) int32, the ends of groups of rows -> (M, N), differentiable in A and B_t.

    Both operands are quantised along K with power-of-two scales; accumulation is fast, as in torchao.
    `kernels.fp8.grouped_mm` says what is kept for the backward pass.
    """
    return fp8.grouped_mm(A, B_t, offs, out_dtype=out_dtype or torch.bfloat16, dtype=float8_dtype)
