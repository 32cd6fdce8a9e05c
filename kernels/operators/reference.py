"""The eager truth of every operator under the operator's name; each stands beside its kernel."""

from kernels.operators.clamped_swiglu import reference as clamped_swiglu
from kernels.operators.cross_entropy import reference as cross_entropy
from kernels.operators.gather import reference as padded_index_gather
from kernels.operators.grouped_linear import reference as grouped_linear
from kernels.operators.indexed_bias_add import reference as indexed_bias_add
from kernels.operators.linear_cross_entropy import reference as linear_cross_entropy
from kernels.operators.rms_norm import reference as rms_norm
from kernels.operators.rms_norm_quantize import reference as rms_norm_quantize
from kernels.operators.rope import reference as rope
from kernels.operators.scatter import reference as scatter_for_grouped_gemm
from kernels.operators.silu_mul import reference as silu_mul

__all__ = [
    "clamped_swiglu",
    "cross_entropy",
    "grouped_linear",
    "indexed_bias_add",
    "linear_cross_entropy",
    "padded_index_gather",
    "rms_norm",
    "rms_norm_quantize",
    "rope",
    "scatter_for_grouped_gemm",
    "silu_mul",
]
