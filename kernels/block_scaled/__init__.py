"""FP8 for training with a scale a block: DeepSeek-V3's squares of 128 and OCP's MXFP8, and the groups they multiply."""

from kernels.block_scaled import reference
from kernels.block_scaled.grouped_mm import Scaling, grouped_mm, path

__all__ = ["Scaling", "grouped_mm", "path", "reference"]
