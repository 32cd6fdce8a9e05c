"""Operators that save memory in training: fused gates, norm and positions, gather and scatter, bias, cross entropy,
deferred weights.

Integers (indices, experts, targets) are int64 or int32. Autocast reaches nothing inside, forward or backward: an
operator takes its inputs as they are, and its result follows their dtype. What holds a linear layer, `GroupedLinear`
and `linear_cross_entropy`, takes input, weight and bias in autocast's dtype, as `torch.nn.Linear` does, and gives
gradients in their own. `kernels.fp8`, `kernels.grouped` and `kernels.moe` keep the same rule.
"""

from __future__ import annotations

from kernels.operators import reference
from kernels.operators.clamped_swiglu import clamped_swiglu
from kernels.operators.cross_entropy import cross_entropy
from kernels.operators.gather import padded_index_gather
from kernels.operators.grouped_linear import GroupedLinear
from kernels.operators.indexed_bias_add import indexed_bias_add
from kernels.operators.linear_cross_entropy import linear_cross_entropy
from kernels.operators.rms_norm import rms_norm
from kernels.operators.rms_norm_quantize import Normed, rms_norm_quantize
from kernels.operators.rope import rope
from kernels.operators.rows import path
from kernels.operators.scatter import Scattered, scatter_for_grouped_gemm
from kernels.operators.silu_mul import silu_mul
from kernels.operators.weight_grad_store import WeightGradStore

__all__ = [
    "GroupedLinear",
    "Normed",
    "Scattered",
    "WeightGradStore",
    "clamped_swiglu",
    "cross_entropy",
    "indexed_bias_add",
    "linear_cross_entropy",
    "padded_index_gather",
    "path",
    "reference",
    "rms_norm",
    "rms_norm_quantize",
    "rope",
    "scatter_for_grouped_gemm",
    "silu_mul",
]
