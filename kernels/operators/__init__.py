"""Operators that save memory in training: fused gates, gather and scatter, bias, cross entropy, deferred weights."""

from __future__ import annotations

from kernels.operators import reference
from kernels.operators.clamped_swiglu import clamped_swiglu
from kernels.operators.cross_entropy import cross_entropy
from kernels.operators.gather import padded_index_gather
from kernels.operators.grouped_linear import GroupedLinear
from kernels.operators.indexed_bias_add import indexed_bias_add
from kernels.operators.linear_cross_entropy import linear_cross_entropy
from kernels.operators.rows import path
from kernels.operators.scatter import Scattered, scatter_for_grouped_gemm
from kernels.operators.silu_mul import silu_mul
from kernels.operators.weight_grad_store import WeightGradStore

__all__ = [
    "GroupedLinear",
    "Scattered",
    "WeightGradStore",
    "clamped_swiglu",
    "cross_entropy",
    "indexed_bias_add",
    "linear_cross_entropy",
    "padded_index_gather",
    "path",
    "reference",
    "scatter_for_grouped_gemm",
    "silu_mul",
]
