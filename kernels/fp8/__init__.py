"""FP8 for training: quantisers along rows, columns, groups and experts, and the grouped matmul made of them."""

from kernels.fp8 import reference
from kernels.fp8.formats import FORMATS, Format, format_of
from kernels.fp8.grouped_mm import grouped_mm
from kernels.fp8.ops import (
    path,
    quantize_1x128,
    quantize_128x128,
    quantize_colwise_3d,
    quantize_colwise_per_group,
    quantize_colwise_per_group_dual,
    quantize_colwise_transpose_3d,
    quantize_mx,
    quantize_rowwise,
    quantize_rowwise_colwise_per_group,
    quantize_rowwise_per_group,
    quantize_transpose_3d_atomic,
    quantize_transpose_3d_reduction,
)

__all__ = [
    "FORMATS",
    "Format",
    "format_of",
    "grouped_mm",
    "path",
    "quantize_1x128",
    "quantize_128x128",
    "quantize_colwise_3d",
    "quantize_colwise_per_group",
    "quantize_colwise_per_group_dual",
    "quantize_colwise_transpose_3d",
    "quantize_mx",
    "quantize_rowwise",
    "quantize_rowwise_colwise_per_group",
    "quantize_rowwise_per_group",
    "quantize_transpose_3d_atomic",
    "quantize_transpose_3d_reduction",
    "reference",
]
